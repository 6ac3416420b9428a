package policy

import (
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// addrRange is a range of addresses of one family, both ends included.
type addrRange struct{ first, last netip.Addr }

// String is how nft spells it as an element of an interval set.
func (r addrRange) String() string {
	if r.first == r.last {
		return r.first.String()
	}
	return r.first.String() + "-" + r.last.String()
}

func (r addrRange) contains(a netip.Addr) bool {
	return r.first.Compare(a) <= 0 && a.Compare(r.last) <= 0
}

// rangeOf is a prefix as a range. Host bits are ignored, as the API server's older versions let them through.
func rangeOf(p netip.Prefix) addrRange {
	p = p.Masked()
	b := p.Addr().AsSlice()
	for bit := p.Bits(); bit < len(b)*8; bit++ {
		b[bit/8] |= 0x80 >> (bit % 8)
	}
	last, _ := netip.AddrFromSlice(b)
	return addrRange{p.Addr(), last}
}

// networkRanges are the addresses of one family that at least one of the networks has. An exception takes from its own
// network only: what another one allows stays allowed. The result is sorted and disjoint, and nothing in it touches, for an
// nft set refuses overlapping intervals with the whole transaction.
func networkRanges(networks []Network, f subnet.Family) []addrRange {
	var all []addrRange
	for _, n := range networks {
		if !n.CIDR.IsValid() || subnet.FamilyOf(n.CIDR.Addr()) != f {
			continue
		}
		left := []addrRange{rangeOf(n.CIDR)}
		for _, e := range n.Except {
			if e.IsValid() && subnet.FamilyOf(e.Addr()) == f {
				left = subtract(left, rangeOf(e))
			}
		}
		all = append(all, left...)
	}
	return mergeAddrs(all)
}

// subtract takes a range out of others.
func subtract(from []addrRange, r addrRange) []addrRange {
	var out []addrRange
	for _, x := range from {
		if r.last.Less(x.first) || x.last.Less(r.first) {
			out = append(out, x)
			continue
		}
		if x.first.Less(r.first) {
			out = append(out, addrRange{x.first, r.first.Prev()})
		}
		if r.last.Less(x.last) {
			out = append(out, addrRange{r.last.Next(), x.last})
		}
	}
	return out
}

// mergeAddrs sorts ranges and joins what overlaps or touches.
func mergeAddrs(in []addrRange) []addrRange {
	slices.SortFunc(in, func(a, b addrRange) int { return a.first.Compare(b.first) })
	var out []addrRange
	for _, r := range in {
		n := len(out)
		if n == 0 {
			out = append(out, r)
			continue
		}
		last := &out[n-1]
		// Next of the family's last address is no address: then everything that follows is inside anyway.
		if next := last.last.Next(); next.IsValid() && next.Less(r.first) {
			out = append(out, r)
			continue
		}
		if last.last.Less(r.last) {
			last.last = r.last
		}
	}
	return out
}
