package policy

import (
	"cmp"
	"errors"
	"maps"
	"slices"
	"strings"
)

// errNoCounters means that the table is not there just now: somebody took it, and it will come back.
var errNoCounters = errors.New("list counters: the table is gone")

// counts adds up the counters of a listing by policy and direction.
func counts(r Ruleset, text string) ([]Count, error) {
	if text == "" {
		return nil, errNoCounters
	}
	type key struct {
		policy string
		dir    Direction
	}
	sum := map[key]Count{}
	byName := map[string]Counter{}
	for _, c := range r.Counters {
		byName[c.Name] = c
	}
	err := objects(text, func(kind string, o object) {
		c, ours := byName[o.Name]
		if kind != "counter" || !ours {
			return
		}
		policies := c.Policies
		if len(policies) == 0 {
			policies = []string{""}
		}
		for _, p := range policies {
			k := key{p, c.Direction}
			n := sum[k]
			sum[k] = Count{Policy: p, Direction: c.Direction, Packets: n.Packets + o.Packets, Bytes: n.Bytes + o.Bytes}
		}
	})
	out := slices.Collect(maps.Values(sum))
	slices.SortFunc(out, func(a, b Count) int {
		return cmp.Or(strings.Compare(a.Policy, b.Policy), cmp.Compare(a.Direction, b.Direction))
	})
	return out, err
}
