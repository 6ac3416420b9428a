package policy

import (
	"slices"
	"strconv"
)

// portRange is a range of ports, both ends included.
type portRange struct{ first, last uint16 }

// String is "80" or "8000-8080", as nft reads it.
func (r portRange) String() string {
	if r.first == r.last {
		return strconv.Itoa(int(r.first))
	}
	return strconv.Itoa(int(r.first)) + "-" + strconv.Itoa(int(r.last))
}

// mergePorts sorts ranges and joins what overlaps or touches: nft refuses a set whose intervals overlap.
func mergePorts(in []portRange) []portRange {
	sorted := slices.Clone(in)
	slices.SortFunc(sorted, func(a, b portRange) int { return int(a.first) - int(b.first) })
	var out []portRange
	for _, r := range sorted {
		if n := len(out); n > 0 && int(r.first) <= int(out[n-1].last)+1 {
			out[n-1].last = max(out[n-1].last, r.last)
			continue
		}
		out = append(out, r)
	}
	return out
}

// sorted sorts a list in place, each element once.
func sorted(list []string) []string {
	slices.Sort(list)
	return slices.Compact(list)
}
