package cluster

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
)

// Addrs is an address for each family; one that is not valid is a family without.
type Addrs [2]netip.Addr

// In is the address of a family as text.
func (a Addrs) In(f subnet.Family) string { return a[f].String() }

// ParseAddrs reads addresses with spaces between them, one of a family.
func ParseAddrs(list string) (Addrs, error) {
	var all Addrs
	for field := range strings.FieldsSeq(list) {
		addr, err := netip.ParseAddr(field)
		if err != nil {
			return all, fmt.Errorf("read the addresses %q: %w", list, err)
		}
		all[subnet.FamilyOf(addr)] = addr
	}
	return all, nil
}

// list writes the addresses in their order, with commas.
func (a Addrs) list() string {
	var all []string
	for _, addr := range a {
		if addr.IsValid() {
			all = append(all, addr.String())
		}
	}
	return strings.Join(all, ",")
}

// Underlay is how the nodes are joined.
type Underlay string

// The underlays: one network for all nodes, or one for the first two nodes and one for the others, with a router between.
const (
	Flat   Underlay = "flat"
	Routed Underlay = "routed"
)

// segment is one network of the underlay: a bridge in the fabric, which is its router.
type segment struct {
	bridge string
	nets   [2]netip.Prefix // with the router's address
}

// segments lists the networks of the underlay.
func (u Underlay) segments() []segment {
	all := []segment{{"br0", [2]netip.Prefix{netip.MustParsePrefix("172.30.0.1/24"), netip.MustParsePrefix("fd30::1/64")}}}
	if u == Routed {
		all = append(all, segment{"br1", [2]netip.Prefix{netip.MustParsePrefix("172.30.1.1/24"), netip.MustParsePrefix("fd30:0:0:1::1/64")}})
	}
	return all
}

// segment is where the n-th node hangs.
func (u Underlay) segment(n int) segment {
	all := u.segments()
	if n < 3 {
		return all[0]
	}
	return all[len(all)-1]
}

// OnLink reports whether two nodes, by their numbers, hang on one network.
func (u Underlay) OnLink(a, b int) bool { return u.segment(a).bridge == u.segment(b).bridge }

// nodeAddrs are the addresses of the n-th node, counted from 1. Its last octet is 10 and its number in both families, as
// text: 172.30.0.11 and fd30::11. A cluster of IPv4 has both, since most networks do.
func (c Config) nodeAddrs(n int) Addrs {
	var all Addrs
	for _, f := range subnet.Families() {
		if !c.Lane.Has(f) && f == subnet.IPv4 {
			continue
		}
		base := c.Underlay.segment(n).nets[f].Addr().AsSlice()
		last := 10 + n
		if f == subnet.IPv6 {
			last = last/10*16 + last%10
		}
		base[len(base)-1] = byte(last)
		all[f], _ = netip.AddrFromSlice(base)
	}
	return all
}

// of leaves the families of a lane.
func (a Addrs) of(l lane.Lane) Addrs {
	for _, f := range subnet.Families() {
		if !l.Has(f) {
			a[f] = netip.Addr{}
		}
	}
	return a
}

// join is the addresses of the families of a lane, with commas between them: 10.244.0.0/16,fd00:10:244::/48.
func join[T fmt.Stringer](l lane.Lane, each func(subnet.Family) T) string {
	var all []string
	for _, f := range l.Families() {
		all = append(all, each(f).String())
	}
	return strings.Join(all, ",")
}

// ServiceNetwork is the range of a family's Services.
func ServiceNetwork(f subnet.Family) netip.Prefix {
	return [2]netip.Prefix{netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:10:96::/112")}[f]
}

// outsideNet is the network of the host that is no node, with its router's address.
func outsideNet(f subnet.Family) netip.Prefix {
	return [2]netip.Prefix{netip.MustParsePrefix("192.0.2.1/24"), netip.MustParsePrefix("2001:db8::1/64")}[f]
}

// OutsideAddrs are the addresses of the host that is no node.
func OutsideAddrs() Addrs {
	return Addrs{netip.MustParseAddr("192.0.2.10"), netip.MustParseAddr("2001:db8::10")}
}

func nodeName(n int) string { return fmt.Sprintf("node-%d", n) }
