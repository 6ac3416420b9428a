package watch

import (
	"fmt"
	"net/netip"
	"strings"
)

// parseCIDR reads a prefix as API servers have let it pass: with host bits, with leading zeros (which are decimal), and
// as IPv4 mapped into IPv6.
func parseCIDR(text string) (netip.Prefix, error) {
	p, err := netip.ParsePrefix(withoutZeros(text))
	if err != nil {
		return netip.Prefix{}, fmt.Errorf("%q is no CIDR", text)
	}
	if p.Addr().Is4In6() && p.Bits() >= 96 {
		p = netip.PrefixFrom(p.Addr().Unmap(), p.Bits()-96)
	}
	return p.Masked(), nil
}

// withoutZeros takes the leading zeros off the numbers of an IPv4 prefix.
func withoutZeros(text string) string {
	if strings.Contains(text, ":") {
		return text
	}
	addr, bits, _ := strings.Cut(text, "/")
	parts := strings.Split(addr, ".")
	for i, p := range parts {
		if p = strings.TrimLeft(p, "0"); p == "" && parts[i] != "" {
			p = "0"
		}
		parts[i] = p
	}
	return strings.Join(parts, ".") + "/" + bits
}
