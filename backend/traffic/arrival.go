package traffic

import (
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"
)

// arrival is a way by which peers' packets come to this host: a UDP port, or a protocol that has none. The rest is how it is
// called in words, and in the languages of the firewalls.
type arrival struct {
	port     uint16
	names    []string // of the protocol, as listings have it; none for UDP
	what     string
	iptables string
	nft      string
	firewall string // argument of firewall-cmd
	nfproto  string // the family of the packets, as nft calls it
	peers    []netip.Addr
}

// arrivals lists by which ways peers' packets come in one family.
func (c Config) arrivals(f family) []arrival {
	var out []arrival
	if !c.enabled(f.Family) {
		return nil
	}
	peers := c.peersOf(f.Family)
	for _, port := range append([]uint16{c.Port}, c.Listens[f.Family]...) {
		if port != 0 {
			out = append(out, arrival{
				port: port, what: fmt.Sprintf("UDP port %d", port), iptables: fmt.Sprintf("-p udp --dport %d", port),
				nft: fmt.Sprintf("udp dport %d", port), firewall: fmt.Sprintf("--add-port=%d/udp", port), nfproto: f.NFProto, peers: peers,
			})
		}
	}
	if c.IPIP {
		out = append(out, arrival{
			names: strings.Fields(f.IPInIP + " " + f.IPInIPNames), what: "IP protocol " + f.IPInIP, iptables: "-p " + f.IPInIP,
			nft: "meta l4proto " + f.IPInIP, firewall: "--add-protocol=" + f.IPInIP, nfproto: f.NFProto, peers: peers,
		})
	}
	return out
}

// protocolInListing is a condition on the protocol, to the end of its value or set of values.
var protocolInListing = regexp.MustCompile(`"(?:l4proto|protocol|nexthdr)"\}\},\s*"right":\s*(\{[^}]*\}|"[^"]*"|\d+)`)

// inListing tells whether a listing of nft knows it.
func (a arrival) inListing(text string) bool {
	if a.port != 0 {
		return mentionsPort(text, a.port)
	}
	for _, m := range protocolInListing.FindAllStringSubmatch(text, -1) {
		for _, word := range strings.FieldsFunc(m[1], func(r rune) bool { return strings.ContainsRune(`{}[]", :`, r) }) {
			if slices.Contains(a.names, word) {
				return true
			}
		}
	}
	return false
}
