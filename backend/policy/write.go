package policy

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"sigs.k8s.io/knftables"
)

// signatureSet is a set that no rule uses. Each of our transactions adds an element to it, with a comment that tells the watcher
// whose the transaction was. They go by themselves: a transaction that takes anything away, or writes rules, waits for the
// kernel to be done with what was there, 10 ms or more, and one that only adds a pod does not.
const (
	signatureSet  = "signatures"
	signatureTime = time.Minute
)

// bundleSize is how many elements of a new set stand in one command: with one each, 100,000 elements cost nft 170 MB.
const bundleSize = 500

// writer adds commands to a transaction.
type writer struct {
	tx     *knftables.Transaction
	bundle int // elements in a command; the Fake wants one
	sign   signature
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
	w.signs()
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
	w.declare(want)
	for _, f := range w.cut {
		w.tx.Add(cutKey(f))
	}
	w.signs()
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
	w.signs()
}

// signs tells whose the transaction is.
func (w writer) signs() {
	w.tx.Add(&knftables.Set{Name: signatureSet, Type: "mark", Flags: []knftables.SetFlag{knftables.TimeoutFlag}, Timeout: knftables.PtrTo(signatureTime)})
	w.tx.Add(&knftables.Element{Set: signatureSet, Key: []string{fmt.Sprintf("%#08x", w.sign.number)}, Comment: knftables.PtrTo(w.sign.text)})
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
