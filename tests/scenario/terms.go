package scenario

import (
	"fmt"
	"net/netip"
	"regexp"
	"strconv"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// terms finds what is different in the families' words, in a text written for IPv4: addresses and ranges, MACs (a node has
// one for each device), names of our devices, what ip and nft call the family, and the MTU of a device in a section. What
// begins with fd00:: is "an address of the other family".
var terms = regexp.MustCompile(`fd00::\d+|\b0a(:[0-9a-f]{2}){5}\b|\b\d+(\.\d+){3}(/\d+)?\b|\bflannel\.\d+|^ip (route|neigh)\b|` +
	`\bip (nat|daddr|saddr)\b|\biptables-|\bpeers-ipv4\b`)

// deviceMTU is how a section of devices begins.
var deviceMTU = regexp.MustCompile(`(?m)^(flannel\S* \w+ mtu )(\d+)`)

// in puts a text of a story, which speaks of IPv4, into the terms of a family.
func in(f subnet.Family, text string) string {
	if f == subnet.IPv4 {
		return text
	}
	return terms.ReplaceAllStringFunc(text, func(word string) string {
		switch {
		case strings.HasPrefix(word, "fd00::"):
			return "192.0.2." + strings.TrimPrefix(word, "fd00::")
		case strings.HasPrefix(word, "0a:"):
			second, _ := strconv.ParseUint(word[3:5], 16, 8) // the expression has seen to it
			return fmt.Sprintf("0a:%02x%s", second^6, word[5:])
		case strings.HasPrefix(word, "ip route"), strings.HasPrefix(word, "ip neigh"):
			return "ip -6" + strings.TrimPrefix(word, "ip")
		}
		if renamed, ok := strings.CutPrefix(word, "flannel."); ok {
			return "flannel-v6." + renamed
		}
		for old, name := range map[string]string{"ip ": "ip6 ", "iptables-": "ip6tables-", "peers-ipv4": "peers-ipv6"} {
			if rest, ok := strings.CutPrefix(word, old); ok {
				return name + rest
			}
		}
		return sixth(word)
	})
}

// inSection is in for a section of expectations: there, a device of IPv6 has 20 bytes less for its packets.
func inSection(f subnet.Family, text string) string {
	if f == subnet.IPv4 {
		return text
	}
	return in(f, deviceMTU.ReplaceAllStringFunc(text, func(line string) string {
		at := strings.LastIndex(line, " ") + 1
		mtu, _ := strconv.Atoi(line[at:]) // the expression has seen to it
		return fmt.Sprintf("%s%d", line[:at], mtu-20)
	}))
}

// sixth is the IPv6 counterpart of an IPv4 address or range: 10.244.3.7/24 is fd00:10:244:3::7/64, and the underlay's
// 192.168.50.3 is fd00:50::3203.
func sixth(word string) string {
	text, length, ranged := strings.Cut(word, "/")
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return word
	}
	a := addr.As4()
	six := fmt.Sprintf("fd00:%d:%d:%x::%x", a[0], a[1], a[2], a[3])
	if a[0] == 192 && a[1] == 168 {
		six = fmt.Sprintf("fd00:50::%02x%02x", a[2], a[3])
	}
	addr, err = netip.ParseAddr(six)
	bits, berr := strconv.Atoi(length)
	switch {
	case err != nil || ranged && berr != nil:
		return word
	case !ranged:
		return addr.String()
	case bits == 32:
		return addr.String() + "/128"
	case a[0] == 192 && a[1] == 168:
		return addr.String() + "/64" // the underlay is one subnet
	case bits <= 16:
		return fmt.Sprintf("%s/%d", addr, bits+32)
	}
	return fmt.Sprintf("%s/%d", addr, bits+40)
}
