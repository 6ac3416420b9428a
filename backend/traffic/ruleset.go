package traffic

import (
	"fmt"
	"hash/fnv"
	"maps"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"
)

// TableName is the name of our table in nft's inet family.
const TableName = "weft"

// Ruleset is the content of our table as a value. An empty Ruleset means that there is no table.
type Ruleset struct {
	Chains []Chain
	Sets   []Set
}

// Chain is a base chain with its rules. Why says what the hook and the priority are for.
type Chain struct {
	Name     string
	Type     knftables.BaseChainType
	Hook     knftables.BaseChainHook
	Priority knftables.BaseChainPriority
	Why      string
	Rules    []Rule
}

// Rule is one rule. Why goes into its comment, so that `nft list` explains itself.
type Rule struct {
	Text string
	Why  string
}

// Set is a named set and its elements, spelled as nft lists them.
type Set struct {
	Name     string
	Type     string
	Interval bool
	Elements []string
}

// Comment is what the kernel keeps beside the rule: the reason, and a hash of the text, since the text that nft prints is
// not the text that was written and so cannot be compared.
func (r Rule) Comment() string {
	h := fnv.New32a()
	_, _ = h.Write([]byte(r.Text)) // never returns an error
	return fmt.Sprintf("%s #%08x", r.Why, h.Sum32())
}

// flags are the set's flags in knftables' terms.
func (s Set) flags() []knftables.SetFlag {
	if s.Interval {
		return []knftables.SetFlag{knftables.IntervalFlag}
	}
	return nil
}

// Empty tells whether nothing is wanted: then there must be no table either.
func (r Ruleset) Empty() bool { return len(r.Chains) == 0 }

// Replace adds to the transaction the commands that make our table equal to the Ruleset, whatever it holds now. It is one
// transaction, so no packet meets a table that is half there.
func (r Ruleset) Replace(tx *knftables.Transaction) {
	table := &knftables.Table{}
	tx.Add(table) // so that the delete finds something; nft 1.0.6 has no destroy
	tx.Delete(table)
	if r.Empty() {
		return
	}
	tx.Add(&knftables.Table{Comment: knftables.PtrTo("kept by weft: edits are undone")})
	for _, s := range r.Sets {
		tx.Add(&knftables.Set{Name: s.Name, Type: s.Type, Flags: s.flags()})
		for _, e := range s.Elements {
			tx.Add(&knftables.Element{Set: s.Name, Key: keyOf(e)})
		}
	}
	for _, c := range r.Chains {
		tx.Add(&knftables.Chain{
			Name: c.Name, Type: &c.Type, Hook: &c.Hook, Priority: &c.Priority,
			Policy: knftables.PtrTo(knftables.AcceptPolicy), Comment: &c.Why,
		})
		for _, rule := range c.Rules {
			tx.Add(&knftables.Rule{Chain: c.Name, Rule: rule.Text, Comment: knftables.PtrTo(rule.Comment())})
		}
	}
}

// String renders the table in the language that `nft -f` reads and `nft list table` prints.
func (r Ruleset) String() string {
	if r.Empty() {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", TableName)
	for _, s := range r.Sets {
		fmt.Fprintf(&b, "\tset %s {\n\t\ttype %s\n", s.Name, s.Type)
		if s.Interval {
			b.WriteString("\t\tflags interval\n")
		}
		if len(s.Elements) > 0 {
			fmt.Fprintf(&b, "\t\telements = { %s }\n", strings.Join(s.Elements, ", "))
		}
		b.WriteString("\t}\n\n")
	}
	for i, c := range r.Chains {
		fmt.Fprintf(&b, "\tchain %s {\n\t\tcomment %q\n", c.Name, c.Why)
		fmt.Fprintf(&b, "\t\ttype %s hook %s priority %s; policy accept;\n", c.Type, c.Hook, c.Priority)
		for _, rule := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s comment %q\n", rule.Text, rule.Comment())
		}
		b.WriteString("\t}\n")
		if i < len(r.Chains)-1 {
			b.WriteString("\n")
		}
	}
	b.WriteString("}\n")
	return b.String()
}

// keyOf takes an element apart, as knftables wants it.
func keyOf(element string) []string { return strings.Split(element, " . ") }

// sortedElements turns a set of spellings into the list that renders the same each time.
func sortedElements(m map[string]struct{}) []string { return slices.Sorted(maps.Keys(m)) }
