package policy_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"testing"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/oracle"
)

// One change at a time, of every kind that there is: none takes an allowance away without a look for the connections that had it.
func TestNoChangeTakesAnAllowanceAwayUnseen(t *testing.T) { // N-15
	taken := map[string]int{}
	for _, seed := range seeds(t, 400) {
		r := rand.New(rand.NewPCG(seed, 15))
		w := oracle.Random(seed, 2).World
		c := policy.NewCompiler()
		have := c.Compile(w, policy.Config{})
		for step := range 6 {
			next, what := changed(r, w, oracle.Random(seed*1000+uint64(step)+500, 2).World)
			want := c.Compile(next, policy.Config{})
			held := addrOfSome(r, next.Pods)
			isHeld := func(a netip.Addr) bool { return a == held }
			for _, f := range flows(w, next) {
				if !lost(have, want, f) {
					continue
				}
				taken[what]++
				if !policy.Cuts(have, want, nil) {
					t.Fatalf("WEFT_SEED=%d step %d: %s takes %v away, and nobody looks", seed, step, what, f)
				}
				if f.Src != held && f.Dst != held && !policy.Cuts(have, want, isHeld) {
					t.Fatalf("WEFT_SEED=%d step %d: %s takes %v away, and nobody looks while %v is held", seed, step, what, f, held)
				}
			}
			w, have = next, want
		}
	}
	t.Log(taken)
	if len(taken) < 6 && len(seeds(t, 400)) > 1 {
		t.Errorf("the changes take too little away: %v", taken)
	}
}

func lost(have, want policy.Ruleset, f policy.Flow) bool {
	return have.Judge(f).Allowed && !want.Judge(f).Allowed || have.JudgeToNode(f).Allowed && !want.JudgeToNode(f).Allowed
}

// changed is a World with one change, and what it is.
func changed(r *rand.Rand, w, other policy.World) (policy.World, string) {
	pick := func(n int) int { return r.IntN(max(n, 1)) }
	switch kind := r.IntN(9); {
	case kind == 0 && len(w.Pods) > 1:
		w.Pods = edited(w.Pods, pick(len(w.Pods)), func(p *policy.Pod) { p.Labels = other.Pods[pick(len(other.Pods))].Labels })
		return w, "another label of a pod"
	case kind == 1 && len(w.Pods) > 1:
		w.Pods = edited(w.Pods, pick(len(w.Pods)), func(p *policy.Pod) { p.Ports = other.Pods[pick(len(other.Pods))].Ports })
		return w, "another named port"
	case kind == 2 && len(w.Pods) > 2:
		i := pick(len(w.Pods))
		w.Pods = slices.Delete(slices.Clone(w.Pods), i, i+1)
		return w, "a pod that goes"
	case kind == 3:
		w.Namespaces = edited(w.Namespaces, pick(len(w.Namespaces)), func(n *policy.Namespace) { n.Labels = other.Namespaces[0].Labels })
		return w, "another label of a namespace"
	case kind == 4 && len(w.Nodes) > 0:
		w.Nodes = edited(w.Nodes, pick(len(w.Nodes)), func(n *policy.Node) { n.Labels = other.Nodes[pick(2)].Labels })
		return w, "another label of a node"
	case kind == 5 && len(w.Nodes) > 0:
		w.Nodes = edited(w.Nodes, pick(len(w.Nodes)), func(n *policy.Node) {
			n.Addrs = append(slices.Clone(n.Addrs), netip.MustParseAddr(fmt.Sprintf("203.0.113.%d", 9+r.IntN(3))))
		})
		return w, "another address of a node"
	case kind == 6:
		w.Policies = other.Policies
		return w, "other NetworkPolicies"
	case kind == 7:
		w.Cluster = other.Cluster
		return w, "other ClusterNetworkPolicies"
	case len(w.Pods) > 0:
		p := w.Pods[pick(len(w.Pods))]
		w.Gated = nil
		if p.Addrs[0].IsValid() && p.Local {
			w.Gated = []netip.Addr{p.Addrs[0]}
		}
		return w, "an address that is gated"
	}
	return w, "nothing"
}

// edited is a list with another value in one place.
func edited[V any](list []*V, at int, edit func(*V)) []*V {
	if len(list) == 0 {
		return list
	}
	next := *list[at]
	edit(&next)
	out := slices.Clone(list)
	out[at] = &next
	return out
}

func addrOfSome(r *rand.Rand, pods []*policy.Pod) netip.Addr {
	for range 10 {
		if p := pods[r.IntN(len(pods))]; p.Local && p.Addrs[0].IsValid() {
			return p.Addrs[0]
		}
	}
	return netip.Addr{}
}

// flows are connections between all that there is in either World, to some ports.
func flows(worlds ...policy.World) (out []policy.Flow) {
	ends := map[netip.Addr]bool{netip.MustParseAddr("203.0.113.9"): true}
	for _, w := range worlds {
		for _, p := range w.Pods {
			for _, a := range p.Addrs {
				ends[a] = a.IsValid()
			}
		}
		for _, n := range w.Nodes {
			for _, a := range n.Addrs {
				ends[a] = true
			}
		}
	}
	delete(ends, netip.Addr{})
	for a := range ends {
		for b := range ends {
			if a == b || a.Is4() != b.Is4() {
				continue
			}
			for _, to := range []policy.Flow{{Proto: policy.TCP, DstPort: 80}, {Proto: policy.UDP, DstPort: 53}, {Proto: policy.SCTP, DstPort: 8080}} {
				to.Src, to.Dst, to.SrcPort = a, b, 40000
				out = append(out, to)
			}
		}
	}
	return out
}
