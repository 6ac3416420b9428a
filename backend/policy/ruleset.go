package policy

import (
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"strconv"
	"strings"
)

// TableName is the name of our table in nft's inet family.
const TableName = "weft-policy"

// Ruleset is the content of our table as a value. An empty Ruleset means that there is no table.
//
// Names say what a thing is for, by a hash of it, and not what it contains: a pod that comes adds an element to some sets, an
// edited policy changes the rules of some chains, and nothing else moves. Only sets of networks are named for their content.
type Ruleset struct {
	Chains   []Chain   // by name
	Sets     []Set     // by name
	Counters []Counter // by name

	chains map[string]int // index of Chains by name
	sets   map[string]int // index of Sets by name
}

// Chain is a chain with its rules. One with a Hook is a base chain: all packets of the node that pass the hook enter it.
type Chain struct {
	Name  string
	Hook  string // "", "forward", "output", "input"
	Why   string // the comment of a base chain
	Rules []ChainRule
}

// priority is where base chains stand in their hooks: behind whoever else filters, which is around 0, and in the input hook before
// those who translate a source, of which the guard is one: the kernel calls them all at 100.
const priority = 10

// ChainRule is one rule of a chain. Why goes into its comment, so that `nft list` explains itself.
type ChainRule struct {
	Text string
	Why  string

	match   match  // the same as Text, for Judge
	comment string // what was read from the kernel, of a rule that was
}

// SetKind says what a set's elements look like.
type SetKind uint8

// The kinds. Elements are spelled as nft lists them.
const (
	Exact    SetKind = iota // "10.244.1.5" or "10.244.1.5 . tcp . 80"
	Interval                // "10.0.0.0-10.255.255.255"
	Verdicts                // a map: "10.244.1.5 : jump in-np-..."
	Timed                   // elements come with time-outs, and go by themselves: what is in it is not compared
)

// Set is a named set or map and its elements, sorted.
type Set struct {
	Name     string
	Type     string // of the keys
	Kind     SetKind
	Elements []string

	denies bool // some rule denies what is in the set
}

// Counter counts what the policies deny, together: a packet that none of several policies allows is the deed of them all.
type Counter struct {
	Name      string
	Direction Direction
	Policies  []string // their Keys, sorted
}

// Empty tells whether nothing is wanted: then there must be no table either.
func (r Ruleset) Empty() bool { return len(r.Chains) == 0 }

// set finds a set by its name.
func (r Ruleset) set(name string) (Set, bool) {
	i, ok := r.sets[name]
	if !ok {
		return Set{}, false
	}
	return r.Sets[i], true
}

// chain finds a chain by its name.
func (r Ruleset) chain(name string) (Chain, bool) {
	i, ok := r.chains[name]
	if !ok {
		return Chain{}, false
	}
	return r.Chains[i], true
}

// indexed returns the Ruleset with its indexes made.
func (r Ruleset) indexed() Ruleset {
	r.chains, r.sets = make(map[string]int, len(r.Chains)), make(map[string]int, len(r.Sets))
	for i, c := range r.Chains {
		r.chains[c.Name] = i
	}
	for i, s := range r.Sets {
		r.sets[s.Name] = i
	}
	return r
}

// commentMost is nft's limit on a comment.
const commentMost = 127

// same tells whether two rules are one in the kernel. Most comparisons are of what was made of the same policies before.
func (r ChainRule) same(o ChainRule) bool {
	if r.Text != "" && r.Text == o.Text && r.Why == o.Why && r.comment == o.comment {
		return true
	}
	return r.Comment() == o.Comment()
}

// Comment is what the kernel keeps beside the rule: the reason, and a hash of the text, since the text that nft prints is
// not the text that was written and so cannot be compared.
func (r ChainRule) Comment() string {
	if r.comment != "" {
		return r.comment
	}
	const tail = len(" #") + 8
	why := clean(r.Why)
	if len(why) > commentMost-tail {
		why = why[:commentMost-tail]
	}
	return why + " #" + hash(r.Why, r.Text)[:8]
}

// clean leaves what nft reads inside quotes without harm. The names of ClusterPolicies' rules are free text.
func clean(s string) string {
	return strings.Map(func(c rune) rune {
		if c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || c >= '0' && c <= '9' || strings.ContainsRune(" -._/:,()[]=", c) {
			return c
		}
		return '_'
	}, s)
}

// hash names things: 80 bits of SHA-256, since whoever may write a policy must not be able to find two things of one name.
func hash(words ...string) string {
	var b []byte
	for _, w := range words {
		b = append(strconv.AppendInt(b, int64(len(w)), 10), ':') // the length, so that no two lists of words are written alike
		b = append(b, w...)
	}
	sum := sha256.Sum256(b)
	return hex.EncodeToString(sum[:10])
}

// String renders the table in the language that `nft -f` reads and `nft list table` prints.
func (r Ruleset) String() string {
	if r.Empty() {
		return ""
	}
	var b strings.Builder
	fmt.Fprintf(&b, "table inet %s {\n", TableName)
	for _, c := range r.Counters {
		fmt.Fprintf(&b, "\tcounter %s { }\n", c.Name)
	}
	for _, s := range r.Sets {
		b.WriteString(s.String())
	}
	for _, c := range r.Chains {
		fmt.Fprintf(&b, "\tchain %s {\n", c.Name)
		if c.Hook != "" {
			fmt.Fprintf(&b, "\t\ttype filter hook %s priority filter + %d; policy accept;\n", c.Hook, priority)
		}
		for _, rule := range c.Rules {
			fmt.Fprintf(&b, "\t\t%s comment %q\n", rule.Text, rule.Comment())
		}
		b.WriteString("\t}\n")
	}
	b.WriteString("}\n")
	return b.String()
}

// String is the set's block in nft's language.
func (s Set) String() string {
	var b strings.Builder
	kind, suffix := "set", ""
	if s.Kind == Verdicts {
		kind, suffix = "map", " : verdict"
	}
	fmt.Fprintf(&b, "\t%s %s {\n\t\ttype %s%s\n", kind, s.Name, s.Type, suffix)
	switch s.Kind {
	case Interval:
		b.WriteString("\t\tflags interval\n")
	case Timed:
		fmt.Fprintf(&b, "\t\tsize %d\n\t\tflags dynamic,timeout\n\t\ttimeout %s\n", cutMost, cutTime)
	}
	if len(s.Elements) > 0 {
		fmt.Fprintf(&b, "\t\telements = { %s }\n", strings.Join(s.Elements, ", "))
	}
	b.WriteString("\t}\n")
	return b.String()
}
