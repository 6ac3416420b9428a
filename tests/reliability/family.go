package reliability

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
)

// words are what a family is called by, and where things are in it: one row of data each, so that no row of the bench is
// written twice.
type words struct {
	ip        string // the command
	nft       string // the word in rules, and the family of a table
	iptables  string // what the programs' names begin with
	sysctl    string // the folder below /proc/sys/net
	bits      int    // of the underlay's addresses
	overhead  int    // of VXLAN
	metric    int    // what the kernel gives a route that names none
	gateway   string // the router's address on the switch
	doorstep  string // its address towards the outside
	outside   string // the host outside
	service   string // the Service's address
	nowhere   string // an address on the switch that nobody has
	tunnel    string // what makes a VXLAN device one of this family: ip link's words, {local} is the node's address
	other     string // the name of a device
	elsewhere string // a range outside the pod network
	all       string // everything there is
}

func wordsFor(f subnet.Family) words {
	return [2]words{
		subnet.IPv4: {
			ip: "ip", nft: "ip", iptables: "iptables", sysctl: "ipv4", bits: 24, overhead: 50, gateway: "192.168.50.254",
			doorstep: "203.0.113.1", outside: "203.0.113.9", service: "10.96.0.10", nowhere: "192.168.50.99", other: "other",
			elsewhere: "10.99.0.0/24", all: "0.0.0.0/0",
		},
		subnet.IPv6: {
			ip: "ip -6", nft: "ip6", iptables: "ip6tables", sysctl: "ipv6", bits: 64, overhead: 70, metric: 1024, gateway: "fd00:50::ffff",
			doorstep: "2001:db8:113::1", outside: "2001:db8:113::9", service: "fd00:10:96::10", nowhere: "fd00:50::99",
			tunnel: "local {local}", other: "other6", elsewhere: "fd00:10:99::/64", all: "::/0",
		},
	}[f]
}

// OutsideAddr is the address of the host outside.
func OutsideAddr(f subnet.Family) netip.Addr { return netip.MustParseAddr(wordsFor(f).outside) }

// device is the name of a node's VXLAN device.
func device(f subnet.Family) string { return kernel.DeviceName(f, 1) }

// podMTU is what the lane's families leave of the underlay's MTU: the smaller of the two.
func podMTU(l lane.Lane, underlay int) int {
	mtu := underlay
	for _, f := range l.Families() {
		mtu = min(mtu, underlay-wordsFor(f).overhead)
	}
	return mtu
}

// podCIDRs are the pod ranges of node i, in the lane's order.
func podCIDRs(l lane.Lane, i int) []netip.Prefix {
	var out []netip.Prefix
	for _, f := range l.Families() {
		out = append(out, lane.PodCIDR(f, i))
	}
	return out
}

// expand writes a command for one family: about the given node, and the second one as its peer.
func (b *Bench) expand(n *Node, f subnet.Family, command string) string {
	w, end, peer := wordsFor(f), n.Ends[f], b.Nodes[1].Ends[f]
	stray := end.CIDR.Addr().AsSlice()
	stray[len(stray)-1] = 0x77
	odd, _ := netip.AddrFromSlice(stray)
	text := strings.NewReplacer("{tunnel}", w.tunnel).Replace(command)
	text = strings.NewReplacer(
		"{ip}", w.ip, "{nft}", w.nft, "{device}", device(f), "{gateway}", w.gateway, "{nowhere}", w.nowhere, "{other}", w.other,
		"{local}", end.IP.String(), "{mtu}", fmt.Sprint(n.MTU-w.overhead), "{stray}", fmt.Sprintf("%s/%d", odd, odd.BitLen()),
		"{peer}", peer.CIDR.Addr().String(), "{peercidr}", peer.CIDR.String(), "{peermac}", peer.MAC.String(),
		"{network}", lane.Network(f).String(), "{service}", w.service, "{iptables}", w.iptables, "{sysctl}", w.sysctl,
	).Replace(text)
	return strings.Join(strings.Fields(text), " ")
}

// hurts are the families that the present row damages: all of the lane, or those that it names.
func (b *Bench) hurts() []subnet.Family {
	if len(b.struck) > 0 {
		return b.struck
	}
	return b.Lane.Families()
}

// inEach runs something for each family that the row damages.
func (b *Bench) inEach(do func(f subnet.Family) error) error {
	for _, f := range b.hurts() {
		if err := do(f); err != nil {
			return fmt.Errorf("%s: %w", f, err)
		}
	}
	return nil
}

// struck are the families that a fault damages in a lane: none when it does not exist there.
func (f Fault) struck(l lane.Lane) []subnet.Family {
	return slices.DeleteFunc(l.Families(), func(x subnet.Family) bool {
		return len(f.Families) > 0 && !slices.Contains(f.Families, x)
	})
}
