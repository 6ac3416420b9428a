package kube

import "net/netip"

// ranges finds overlaps among prefixes. Two prefixes overlap only when one contains the other, so it is enough to look
// up each prefix's parents, at the few lengths that occur, among those that are in, and to note the parents of those
// that are in. 6,000 nodes are 6,000 lookups and not 18 million comparisons.
type ranges struct {
	lengths map[int]bool
	exact   map[netip.Prefix]string // what is in -> its holder
	parents map[netip.Prefix]string // shorter prefixes, of lengths that occur, around what is in -> a holder inside
}

// newRanges prepares for prefixes of the given lengths; others must not be added.
func newRanges(lengths map[int]bool) *ranges {
	return &ranges{lengths: lengths, exact: map[netip.Prefix]string{}, parents: map[netip.Prefix]string{}}
}

// holder names who holds something that overlaps the masked prefix p.
func (r *ranges) holder(p netip.Prefix) (string, bool) {
	for bits := range r.lengths {
		if bits > p.Bits() {
			continue
		}
		if name, ok := r.exact[netip.PrefixFrom(p.Addr(), bits).Masked()]; ok {
			return name, true
		}
	}
	name, ok := r.parents[p]
	return name, ok
}

// add puts in a masked prefix that overlaps nothing that is in.
func (r *ranges) add(p netip.Prefix, name string) {
	r.exact[p] = name
	for bits := range r.lengths {
		if bits >= p.Bits() {
			continue
		}
		parent := netip.PrefixFrom(p.Addr(), bits).Masked()
		if _, there := r.parents[parent]; !there {
			r.parents[parent] = name
		}
	}
}
