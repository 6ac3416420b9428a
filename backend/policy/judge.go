package policy

import (
	"net/netip"
	"slices"
	"sort"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// Verdict is what becomes of a Flow on this node, and why.
type Verdict struct {
	Allowed bool
	Steps   []Step // egress of the source, then ingress of the destination, as far as they are judged here
}

// Step is one direction's part of a Verdict.
type Step struct {
	Direction Direction
	Allowed   bool
	Why       string // the comment of the rule that decided: policy, direction, number of the rule

	// Policies are those that deny, by Key: with NetworkPolicies all that isolate the pod, since none of them allows.
	Policies []string
}

// Judge walks a new Flow through the rules as the kernel would. It knows nothing of this node's own addresses, which the
// rules leave alone: flows from them and to them are not to be asked about.
func (r Ruleset) Judge(f Flow) Verdict {
	v := Verdict{Allowed: true}
	if r.Empty() || f.Src == f.Dst {
		return v
	}
	for _, end := range []struct {
		dir  Direction
		addr netip.Addr
	}{{Egress, f.Src}, {Ingress, f.Dst}} {
		chain, ok := r.entry(mapName(end.dir, families()[subnet.FamilyOf(end.addr)]), end.addr)
		if !ok {
			continue
		}
		step := r.walk(chain, end.dir, f)
		v.Steps = append(v.Steps, step)
		if !step.Allowed {
			v.Allowed = false
			return v
		}
	}
	return v
}

// JudgeToNode is Judge for a flow from a pod of this node to the node itself.
func (r Ruleset) JudgeToNode(f Flow) Verdict {
	chain, ok := r.entry(mapNames(families()[subnet.FamilyOf(f.Src)])[toNode], f.Src)
	if !ok {
		return Verdict{Allowed: true}
	}
	step := r.walk(chain, Egress, f)
	return Verdict{Allowed: step.Allowed, Steps: []Step{step}}
}

// Guards tells whether policies, or the gate, have a say over the address in either direction.
func (r Ruleset) Guards(a netip.Addr) bool {
	for _, name := range mapNames(families()[subnet.FamilyOf(a)]) {
		if _, ok := r.entry(name, a); ok {
			return true
		}
	}
	return false
}

// entry finds the chain that judges a pod's packets, in one of the maps.
func (r Ruleset) entry(name string, a netip.Addr) (string, bool) {
	s, ok := r.set(name)
	if !ok {
		return "", false
	}
	key := a.String() + " : "
	i := sort.SearchStrings(s.Elements, key)
	if i == len(s.Elements) || !strings.HasPrefix(s.Elements[i], key) {
		return "", false
	}
	_, target, _ := strings.Cut(s.Elements[i][len(key):], " ")
	return target, true
}

// walk follows the rules from a chain to the end.
func (r Ruleset) walk(name string, d Direction, f Flow) Step {
	for name != "" {
		c, _ := r.chain(name)
		name = ""
		for _, rule := range c.Rules {
			if !rule.match.hits(r, f) {
				continue
			}
			if rule.match.verdict == skip {
				name = rule.match.target
				break
			}
			return r.step(d, rule)
		}
	}
	return Step{Direction: d, Allowed: true, Why: "no rule objects"}
}

// step is what a rule decides.
func (r Ruleset) step(d Direction, rule ChainRule) Step {
	s := Step{Direction: d, Allowed: rule.match.verdict == allow || rule.match.audit, Why: rule.Why}
	if rule.match.verdict != deny {
		return s
	}
	for _, c := range r.Counters {
		if c.Name == rule.match.counter {
			s.Policies = c.Policies
		}
	}
	return s
}

// has tells whether a set has an address.
func (r Ruleset) has(set string, a netip.Addr) bool {
	s, ok := r.set(set)
	if !ok || s.Kind != Interval {
		return ok && r.hasText(set, a.String())
	}
	return slices.ContainsFunc(s.Elements, func(e string) bool {
		first, last, both := strings.Cut(e, "-")
		if !both {
			last = first
		}
		from, err1 := netip.ParseAddr(first)
		to, err2 := netip.ParseAddr(last)
		return err1 == nil && err2 == nil && addrRange{from, to}.contains(a)
	})
}

// hasText tells whether a set has an element of that spelling.
func (r Ruleset) hasText(set, element string) bool {
	s, _ := r.set(set)
	_, ok := slices.BinarySearch(s.Elements, element)
	return ok
}
