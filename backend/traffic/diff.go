package traffic

import (
	"fmt"
	"maps"
	"slices"

	"sigs.k8s.io/knftables"
)

// change is one element that a set lacks or has too much.
type change struct {
	set, element string
	remove       bool
}

// difference is what has to be done to our table. Texts says it in words; rewrite means that more than elements differ.
type difference struct {
	rewrite  bool
	elements []change
	texts    []string
}

// compare finds how a table differs from the wanted one.
func compare(have, want state) difference {
	var d difference
	if !have.exists() && !want.exists() {
		return d
	}
	switch {
	case !have.exists():
		d.structure("it is missing")
		return d
	case !want.exists():
		d.structure("it is not wanted")
		return d
	}
	for _, s := range have.strange {
		d.structure(s)
	}
	for _, name := range union(have.chains, want.chains) {
		d.chain(name, have.chains[name], want.chains[name])
	}
	for _, name := range union(have.sets, want.sets) {
		d.set(name, have.sets[name], want.sets[name])
	}
	return d
}

func (d *difference) structure(text string) {
	d.rewrite = true
	d.texts = append(d.texts, fmt.Sprintf("table inet %s: %s", TableName, text))
}

func (d *difference) chain(name string, have, want chainState) {
	switch {
	case have.hook == "":
		d.structure("chain " + name + " is missing")
	case want.hook == "":
		d.structure("chain " + name + " is not wanted")
	case have.hook != want.hook:
		d.structure(fmt.Sprintf("chain %s has %q, not %q", name, have.hook, want.hook))
	case !slices.Equal(have.comments, want.comments):
		d.structure("chain " + name + " has other rules than wanted")
	}
}

func (d *difference) set(name string, have, want setState) {
	if have.decl != want.decl {
		d.structure(fmt.Sprintf("set %s is %q, not %q", name, have.decl, want.decl))
		return
	}
	for _, e := range union(have.elements, want.elements) {
		_, has := have.elements[e]
		_, wants := want.elements[e]
		switch {
		case has && !wants: // removals first: an interval set refuses the new prefix beside the old one that it covers
			d.elements = append(d.elements, change{set: name, element: e, remove: true})
			d.texts = append(d.texts, fmt.Sprintf("table inet %s: set %s has %s", TableName, name, e))
		case wants && !has:
			d.elements = append(d.elements, change{set: name, element: e})
			d.texts = append(d.texts, fmt.Sprintf("table inet %s: set %s lacks %s", TableName, name, e))
		}
	}
}

// fill adds to the transaction the commands that make the table as wanted; elements alone are changed in place.
func (d difference) fill(tx *knftables.Transaction, want Ruleset) {
	if d.rewrite {
		want.Replace(tx)
		return
	}
	for _, remove := range []bool{true, false} {
		for _, c := range d.elements {
			e := &knftables.Element{Set: c.set, Key: keyOf(c.element)}
			switch {
			case c.remove && remove:
				tx.Delete(e)
			case !c.remove && !remove:
				tx.Add(e)
			}
		}
	}
}

// union lists the keys of both maps, sorted.
func union[V any](a, b map[string]V) []string {
	keys := slices.AppendSeq(slices.Collect(maps.Keys(a)), maps.Keys(b))
	slices.Sort(keys)
	return slices.Compact(keys)
}
