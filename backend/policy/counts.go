package policy

import (
	"cmp"
	"context"
	"errors"
	"maps"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/netfilter"
)

// Count is what one policy denied in one direction.
type Count struct {
	Policy    string // "namespace/name", or the name of a ClusterPolicy; "" for what no policy is asked about
	Direction Direction
	Packets   uint64
	Bytes     uint64
}

// Counters reads what was denied since the rules were written. A packet that none of several policies allowed is counted by
// each of them. Policies that select no pod of this node have no counter, so there are as many at most as these pods have.
func (m *Manager) Counters(ctx context.Context) ([]Count, error) {
	r := m.latest.Load()
	if r == nil || r.Empty() {
		return nil, nil
	}
	text, err := m.host.List(ctx, "counters", "table", "inet", TableName)
	if err != nil {
		return nil, err
	}
	return counts(*r, text)
}

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
	err := netfilter.Objects(text, func(kind string, o netfilter.Object) {
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
