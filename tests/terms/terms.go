// Package terms puts what a test says of IPv4 into the terms of another family, so that no test is written twice: addresses,
// ranges, MACs, the names of our devices, and what ip, nft and iptables call the family.
package terms

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// words finds what is different in the families' terms. What begins with fd00:: is "an address of the other family".
var words = regexp.MustCompile(`fd00::\d+|\b0a(:[0-9a-f]{2}){5}\b|\b\d+(\.\d+){3}(/\d+)?\b|\bflannel\.\d+|^(ip )?(route|neigh)\b|` +
	`\bip (nat|filter|daddr|saddr)\b|\biptables-|\b(peers|tunnels|exclude)-ipv4\b|^-4 |\s-4\s`)

// deviceMTU is how a line about one of our devices begins.
var deviceMTU = regexp.MustCompile(`(?m)^(flannel\S* \w+ mtu )(\d+)`)

// In puts a text that speaks of IPv4 into the terms of a family. A node's device of IPv6 has a MAC of its own: 0e where the one
// of IPv4 has 0a in front.
func In(f subnet.Family, text string) string {
	if f == subnet.IPv4 {
		return text
	}
	return words.ReplaceAllStringFunc(text, word)
}

// Section is In for lists of devices as well: one of IPv6 has 20 bytes less for its packets.
func Section(f subnet.Family, text string) string {
	if f == subnet.IPv4 {
		return text
	}
	return In(f, deviceMTU.ReplaceAllStringFunc(text, func(line string) string {
		at := strings.LastIndex(line, " ") + 1
		mtu, _ := strconv.Atoi(line[at:]) // the expression has seen to it
		return fmt.Sprintf("%s%d", line[:at], mtu-20)
	}))
}

// word puts one word into the terms of IPv6.
func word(w string) string {
	if rest, ok := strings.CutPrefix(w, "fd00::"); ok {
		return "192.0.2." + rest
	}
	for _, r := range []struct{ old, renamed string }{
		{"0a:", "0e:"}, {"flannel.", "flannel-v6."}, {"iptables-", "ip6tables-"}, {"peers-ipv4", "peers-ipv6"}, {"tunnels-ipv4", "tunnels-ipv6"},
		{"exclude-ipv4", "exclude-ipv6"}, {"ip route", "ip -6 route"}, {"ip neigh", "ip -6 neigh"}, {"route", "-6 route"},
		{"neigh", "-6 neigh"}, {"ip ", "ip6 "},
	} {
		if rest, ok := strings.CutPrefix(w, r.old); ok {
			return r.renamed + rest
		}
	}
	if strings.TrimSpace(w) == "-4" {
		return strings.Replace(w, "4", "6", 1)
	}
	return address(w)
}

// address is the IPv6 counterpart of an IPv4 address or range: 10.244.3.7/24 is fd00:10:244:3::7/64, and 192.168.50.3, on the
// tests' underlay, is fd00:50::3.
func address(w string) string {
	text, length, ranged := strings.Cut(w, "/")
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return w
	}
	a := addr.As4()
	onUnderlay := a[0] == 192 && a[1] == 168
	six := fmt.Sprintf("fd00:%d:%d:%x::%x", a[0], a[1], a[2], a[3])
	switch {
	case onUnderlay && a[2] == 50:
		six = fmt.Sprintf("fd00:50::%x", a[3])
	case onUnderlay:
		six = fmt.Sprintf("fd00:50::%02x%02x", a[2], a[3])
	case addr.IsUnspecified():
		six = "::"
	case addr.IsMulticast():
		six = fmt.Sprintf("ff05::%x:%x", a[2], a[3])
	}
	addr, err = netip.ParseAddr(six)
	bits, berr := strconv.Atoi(length)
	switch {
	case err != nil || ranged && berr != nil:
		return w
	case !ranged:
		return addr.String()
	case bits == 0:
		return "::/0"
	case bits == 32:
		return addr.String() + "/128"
	case onUnderlay:
		return addr.String() + "/64" // one subnet
	case bits <= 16:
		return fmt.Sprintf("%s/%d", addr, bits+32)
	}
	return fmt.Sprintf("%s/%d", addr, bits+40)
}
