package policy_test

import (
	"math/rand/v2"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/oracle"
)

// mix takes each object from one of two clusters, or leaves it out. What stays the same is the same pointer.
func mix(r *rand.Rand, a, b policy.World) policy.World {
	w := policy.World{Nodes: a.Nodes}
	w.Namespaces = blend(r, a.Namespaces, b.Namespaces, func(n *policy.Namespace) string { return n.Name })
	w.Pods = blend(r, a.Pods, b.Pods, func(p *policy.Pod) string { return p.Name })
	w.Policies = blend(r, a.Policies, b.Policies, func(p *policy.NetworkPolicy) string { return p.Name })
	w.Cluster = blend(r, a.Cluster, b.Cluster, func(p *policy.ClusterPolicy) string { return p.Name })
	slices.SortFunc(w.Pods, func(a, b *policy.Pod) int {
		return strings.Compare(a.Namespace+"\x00"+a.Name, b.Namespace+"\x00"+b.Name)
	})
	slices.SortFunc(w.Policies, func(a, b *policy.NetworkPolicy) int {
		return strings.Compare(a.Namespace+"\x00"+a.Name, b.Namespace+"\x00"+b.Name)
	})
	if r.IntN(3) == 0 {
		w.Gated = b.Gated
	}
	return w
}

func blend[T any](r *rand.Rand, a, b []*T, name func(*T) string) []*T {
	all := map[string]*T{}
	for _, x := range a {
		if r.IntN(10) > 0 {
			all[name(x)] = x
		}
	}
	for _, x := range b {
		if r.IntN(4) == 0 {
			all[name(x)] = x
		}
	}
	var names []string
	for n := range all {
		names = append(names, n)
	}
	slices.Sort(names)
	var out []*T
	for _, n := range names {
		out = append(out, all[n])
	}
	return out
}

func TestACompilerThatFollowsEditsSaysWhatAFreshOneSays(t *testing.T) {
	for _, seed := range seeds(t, 200) {
		if seed%10 != 0 && os.Getenv("WEFT_SEED") == "" {
			continue // a walk of fifteen worlds counts for ten
		}
		r := rand.New(rand.NewPCG(seed, 7))
		c := policy.NewCompiler()
		w := oracle.Random(seed, 2).World
		have := c.Compile(w, policy.Config{})
		fake := policy.NewFake(t, have)
		for step := range 15 {
			w = mix(r, w, oracle.Random(seed*1000+uint64(step), 2).World)
			got, want := c.Compile(w, policy.Config{}), policy.Compile(w, policy.Config{})
			if diff := cmp.Diff(want.String(), got.String()); diff != "" {
				t.Fatalf("WEFT_SEED=%d step %d: rules differ from those of a fresh compiler:\n%s", seed, step, diff)
			}
			if err := policy.StepFake(fake, have, got); err != nil {
				t.Fatalf("WEFT_SEED=%d step %d: %v", seed, step, err)
			}
			have = got
			if diff := cmp.Diff(content(policy.NewFake(t, got).Dump()), content(fake.Dump())); diff != "" {
				t.Fatalf("WEFT_SEED=%d step %d: the table differs from a fresh one:\n%s", seed, step, diff)
			}
		}
	}
}

// content is a dump as a set of lines: the order of elements means nothing, and rules have their place in their text.
func content(dump string) []string {
	var out []string
	rules := map[string]int{}
	for line := range strings.Lines(dump) {
		words := strings.Fields(line)
		if len(words) > 4 && words[1] == "rule" {
			rules[words[4]]++
			line = string(rune('a'+rules[words[4]])) + " " + line
		}
		out = append(out, line)
	}
	slices.Sort(out)
	return out
}

// A pod with several interfaces stands in the World once for each address.
func TestAPodOfSeveralAddressesKeepsThoseThatStay(t *testing.T) {
	w := newTown(t)
	w.protect(policy.Selector{})
	first := w.pod("x/a")
	second, third := *first, *first
	second.Addrs[0], third.Addrs[0] = netip.MustParseAddr("10.244.0.101"), netip.MustParseAddr("10.244.0.102")
	second.Addrs[1], third.Addrs[1] = netip.Addr{}, netip.Addr{}
	others := slices.DeleteFunc(slices.Clone(w.Pods), func(p *policy.Pod) bool { return p == first })
	c := policy.NewCompiler()
	for _, of := range [][]*policy.Pod{{first}, {first, &second}, {&second}, {first, &second, &third}, {&third, first}, {first, &third}, {&second, &third}, {first}} {
		w.Pods = append(slices.Clone(of), others...)
		got, want := c.Compile(w.World, policy.Config{}), policy.Compile(w.World, policy.Config{})
		if diff := cmp.Diff(want.String(), got.String()); diff != "" {
			t.Fatalf("with %d addresses: %s", len(of), diff)
		}
	}
}
