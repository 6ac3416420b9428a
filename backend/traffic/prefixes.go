package traffic

import (
	"net/netip"
	"slices"
)

// covers tells whether every address of inner is one of outer.
func covers(outer, inner netip.Prefix) bool {
	return outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}

// disjoint masks the prefixes, drops each that another covers, and sorts. An nft interval set refuses elements that
// overlap, with the whole transaction: an operator's "10.0.0.0/8" and a node inside it must not take our table down.
func disjoint(in []netip.Prefix) []netip.Prefix {
	sorted := make([]netip.Prefix, 0, len(in))
	for _, p := range in {
		sorted = append(sorted, p.Masked())
	}
	// By address, the shorter first: whatever covers a prefix stands before it.
	slices.SortFunc(sorted, func(a, b netip.Prefix) int {
		if c := a.Addr().Compare(b.Addr()); c != 0 {
			return c
		}
		return a.Bits() - b.Bits()
	})
	var out []netip.Prefix
	for _, p := range sorted {
		if len(out) == 0 || !covers(out[len(out)-1], p) {
			out = append(out, p)
		}
	}
	return out
}

// element is a prefix as nft lists it in a set: a single address stands without its length.
func element(p netip.Prefix) string {
	if p.IsSingleIP() {
		return p.Addr().String()
	}
	return p.String()
}
