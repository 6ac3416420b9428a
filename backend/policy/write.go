package policy

import (
	"fmt"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"
)

// markChain holds one rule that no packet meets. Each of our transactions writes it anew, with a comment that tells the
// watcher whose the transaction was.
const markChain = "signature"

// bundleSize is how many elements of a new set stand in one command: with one each, 100,000 elements cost nft 170 MB.
const bundleSize = 500

// writer adds commands to a transaction.
type writer struct {
	tx     *knftables.Transaction
	bundle int    // elements in a command; the Fake wants one
	mark   string // comment of the mark
	cut    []Flow // what a table that is written anew has to keep cut
}

// apply adds the commands that make a table, which is as the Difference says, as wanted. What nothing refers to any more
// stays for sweep: kernels before 6.x let no chain go in the transaction that takes the last map element away from it.
func (w writer) apply(d Difference, want Ruleset) {
	if d.rewrite {
		w.replace(want)
		return
	}
	w.declare(Ruleset{Counters: d.counters, Sets: d.sets, Chains: d.chains})
	for _, c := range d.elements {
		for _, e := range c.drop {
			w.tx.Delete(element(c.set, e))
		}
	}
	for _, c := range d.elements {
		for _, e := range c.add {
			w.tx.Add(element(c.set, e))
		}
	}
	w.sign()
}

// replace adds the commands that make our table equal to the Ruleset, whatever it holds now. It is one transaction, so no
// packet meets a table that is half there.
func (w writer) replace(want Ruleset) {
	table := &knftables.Table{}
	w.tx.Add(table) // so that the delete finds something; nft 1.0.6 has no destroy
	w.tx.Delete(table)
	if want.Empty() {
		return
	}
	w.tx.Add(&knftables.Table{Comment: knftables.PtrTo("kept by weft: edits are undone")})
	w.tx.Add(&knftables.Chain{Name: markChain})
	w.declare(want)
	for _, f := range w.cut {
		w.tx.Add(cutKey(f))
	}
	w.sign()
}

// declare adds what is new: counters, empty sets and chains, then what refers to them. Chains that are there get new rules.
func (w writer) declare(r Ruleset) {
	for _, c := range r.Counters {
		w.tx.Add(&knftables.Counter{Name: c.Name})
	}
	for _, s := range r.Sets {
		w.tx.Add(declaration(s))
	}
	for _, c := range r.Chains {
		chain := &knftables.Chain{Name: c.Name}
		if c.Hook != "" {
			chain.Type, chain.Hook = knftables.PtrTo(knftables.FilterType), knftables.PtrTo(knftables.BaseChainHook(c.Hook))
			chain.Priority, chain.Policy = knftables.PtrTo(knftables.BaseChainPriority(fmt.Sprintf("%s+%d", knftables.FilterPriority, priority))), knftables.PtrTo(knftables.AcceptPolicy)
			chain.Comment = knftables.PtrTo(c.Why)
		}
		w.tx.Add(chain)
		w.tx.Flush(&knftables.Chain{Name: c.Name})
	}
	for _, s := range r.Sets {
		size := w.bundle
		if s.Kind == Verdicts {
			size = 1
		}
		for part := range slices.Chunk(s.Elements, max(size, 1)) {
			w.tx.Add(element(s, strings.Join(part, ", ")))
		}
	}
	for _, c := range r.Chains {
		for _, rule := range c.Rules {
			w.tx.Add(&knftables.Rule{Chain: c.Name, Rule: rule.Text, Comment: knftables.PtrTo(rule.Comment())})
		}
	}
}

// sweep adds the commands that take away what nothing refers to any more.
func (w writer) sweep(l leftover) {
	for _, name := range l.chains {
		w.tx.Flush(&knftables.Chain{Name: name})
	}
	for _, name := range l.maps {
		w.tx.Flush(&knftables.Map{Name: name})
	}
	for _, name := range l.chains {
		w.tx.Delete(&knftables.Chain{Name: name})
	}
	for _, name := range l.sets {
		w.tx.Delete(&knftables.Set{Name: name})
	}
	for _, name := range l.maps {
		w.tx.Delete(&knftables.Map{Name: name})
	}
	for _, name := range l.counters {
		w.tx.Delete(&knftables.Counter{Name: name})
	}
	w.sign()
}

// sign writes the mark.
func (w writer) sign() {
	w.tx.Add(&knftables.Chain{Name: markChain})
	w.tx.Flush(&knftables.Chain{Name: markChain})
	w.tx.Add(&knftables.Rule{Chain: markChain, Rule: "continue", Comment: knftables.PtrTo(w.mark)})
}

// declaration is a set in knftables' terms.
func declaration(s Set) knftables.Object {
	if s.Kind == Verdicts {
		return &knftables.Map{Name: s.Name, Type: s.Type + " : verdict"}
	}
	out := &knftables.Set{Name: s.Name, Type: s.Type}
	switch s.Kind {
	case Interval:
		out.Flags = []knftables.SetFlag{knftables.IntervalFlag}
	case Timed:
		out.Flags = []knftables.SetFlag{knftables.DynamicFlag, knftables.TimeoutFlag}
		out.Timeout, out.Size = knftables.PtrTo(cutTime), knftables.PtrTo(uint64(cutMost))
	}
	return out
}

// element is an element in knftables' terms.
func element(s Set, e string) *knftables.Element {
	if s.Kind != Verdicts {
		return &knftables.Element{Set: s.Name, Key: strings.Split(e, " . ")}
	}
	key, value, _ := strings.Cut(e, " : ")
	return &knftables.Element{Map: s.Name, Key: []string{key}, Value: []string{value}}
}
