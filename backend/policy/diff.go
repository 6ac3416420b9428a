package policy

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// Difference is what has to be done to make the table in the kernel equal to a Ruleset.
type Difference struct {
	Texts []string // in words; empty when nothing is to be done

	rewrite  bool // more differs than can be changed in place
	counters []Counter
	sets     []Set    // new ones, whole
	chains   []Chain  // new ones and those whose rules differ, whole
	elements []change // of sets that stay
	old      leftover
	narrows  bool         // something that was allowed may be no more
	narrowed []netip.Addr // the same, but only to and from these
}

// change is elements that a set lacks, or has too many.
type change struct {
	set       Set
	add, drop []string
}

// leftover is what nothing refers to any more.
type leftover struct{ chains, sets, maps, counters []string }

// Empty tells whether nothing is to be done.
func (d Difference) Empty() bool { return len(d.Texts) == 0 }

// Diff compares two Rulesets. Of one that was read from the kernel the rules' comments are compared, which carry a hash of
// the text: nft does not print the text that was written.
func Diff(have, want Ruleset) Difference {
	var d Difference
	switch {
	case have.Empty() && want.Empty():
		return d
	case have.Empty():
		d.replace("it is missing")
		return d
	case want.Empty():
		d.replace("it is not wanted")
		return d
	}
	d.diffCounters(have, want)
	d.diffSets(have, want)
	d.diffChains(have, want)
	return d
}

func (d *Difference) say(format string, args ...any) {
	d.Texts = append(d.Texts, fmt.Sprintf("table inet %s: ", TableName)+fmt.Sprintf(format, args...))
}

func (d *Difference) replace(text string) {
	d.rewrite, d.narrows = true, true
	d.say("%s", text)
}

func (d *Difference) diffCounters(have, want Ruleset) {
	missing, extra := keys(have.Counters, want.Counters, func(c Counter) string { return c.Name })
	d.counters = missing
	for _, c := range missing {
		d.say("counter %s is missing", c.Name)
	}
	for _, c := range extra {
		d.say("counter %s is not wanted", c.Name)
		d.old.counters = append(d.old.counters, c.Name)
	}
}

func (d *Difference) diffSets(have, want Ruleset) {
	missing, extra := keys(have.Sets, want.Sets, func(s Set) string { return s.Name })
	d.sets = missing
	for _, s := range missing {
		d.say("set %s is missing", s.Name)
	}
	for _, s := range extra {
		d.say("set %s is not wanted", s.Name)
		if s.Kind == Verdicts {
			d.old.maps = append(d.old.maps, s.Name)
			continue
		}
		d.old.sets = append(d.old.sets, s.Name)
	}
	for _, s := range want.Sets {
		old, ok := have.set(s.Name)
		switch {
		case !ok:
		case old.Type != s.Type || old.Kind != s.Kind:
			d.replace(fmt.Sprintf("set %s is of type %s, not %s", s.Name, old.Type, s.Type))
		case s.Kind != Timed:
			d.diffElements(old, s)
		}
	}
}

func (d *Difference) diffElements(have, want Set) {
	if same(have.Elements, want.Elements) {
		return
	}
	c := change{set: want}
	i, j := 0, 0
	for i < len(have.Elements) || j < len(want.Elements) {
		switch {
		case j == len(want.Elements) || i < len(have.Elements) && have.Elements[i] < want.Elements[j]:
			c.drop = append(c.drop, have.Elements[i])
			i++
		case i == len(have.Elements) || want.Elements[j] < have.Elements[i]:
			c.add = append(c.add, want.Elements[j])
			j++
		default:
			i, j = i+1, j+1
		}
	}
	for _, e := range c.drop {
		d.say("set %s has %s", want.Name, e)
	}
	for _, e := range c.add {
		d.say("set %s lacks %s", want.Name, e)
	}
	if len(c.add)+len(c.drop) > 0 {
		d.elements = append(d.elements, c)
	}
	// More peers allow more under NetworkPolicies, but a Deny may have the set too.
	d.narrows = d.narrows || len(c.drop) > 0
	if want.Kind != Verdicts && !want.denies {
		return
	}
	for _, e := range c.add {
		word, _, _ := strings.Cut(e, " ")
		addr, err := netip.ParseAddr(word)
		d.narrows = d.narrows || err != nil // a network
		d.narrowed = append(d.narrowed, addr)
	}
}

// less tells whether something that was allowed may be no more.
func (d Difference) less() bool { return d.narrows || len(d.narrowed) > 0 }

// cuts tells whether there may be connections that are no longer allowed. There are none of an address that is held.
func (d Difference) cuts(held func(netip.Addr) bool) bool {
	return d.narrows || slices.ContainsFunc(d.narrowed, func(a netip.Addr) bool { return held == nil || !held(a) })
}

// same tells in no time that a list is the very one that was written.
func same(a, b []string) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0])
}

func (d *Difference) diffChains(have, want Ruleset) {
	missing, extra := keys(have.Chains, want.Chains, func(c Chain) string { return c.Name })
	d.chains = missing
	for _, c := range missing {
		d.say("chain %s is missing", c.Name)
		d.narrows = d.narrows || c.Hook != "" // what leads to another is a rule or an element that is new as well
	}
	for _, c := range extra {
		d.say("chain %s is not wanted", c.Name)
		d.old.chains = append(d.old.chains, c.Name)
	}
	for _, c := range want.Chains {
		old, ok := have.chain(c.Name)
		switch {
		case !ok:
		case old.Hook != c.Hook:
			d.replace(fmt.Sprintf("chain %s has the hook %q, not %q", c.Name, old.Hook, c.Hook))
		case !slices.EqualFunc(old.Rules, c.Rules, ChainRule.same):
			d.say("chain %s has other rules than wanted", c.Name)
			d.chains = append(d.chains, c)
			d.narrows = true
		}
	}
}

// keys finds what only one of two lists has. Both are sorted by name.
func keys[T any](have, want []T, name func(T) string) (missing, extra []T) {
	i, j := 0, 0
	for i < len(have) || j < len(want) {
		switch {
		case j == len(want) || i < len(have) && name(have[i]) < name(want[j]):
			extra = append(extra, have[i])
			i++
		case i == len(have) || name(want[j]) < name(have[i]):
			missing = append(missing, want[j])
			j++
		default:
			i, j = i+1, j+1
		}
	}
	return missing, extra
}
