package traffic

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/netfilter"
)

// nftTable is what is known of a table of others.
type nftTable struct {
	chains map[string]nftChain
	known  string // all of its rules and sets as text
}

// nftChain is one chain. The hook is empty for those that are only jumped to.
type nftChain struct {
	hook    string
	dropped bool // its policy is drop
	rules   []nftRule
}

// nftRule is one rule: its conditions, and what it does to what meets all of them.
type nftRule struct {
	expr    []json.RawMessage
	verdict string // "accept", "drop", "reject", "jump", "goto", "return", "vmap" or nothing
	target  string // of a jump or goto
	when    []nftMatch
	strange bool // it has a condition that is none of those
}

// nftMatch is a condition: a comparison, or the key of a verdict map with all of the map.
type nftMatch struct {
	Op   string `json:"op"`
	Left struct {
		Payload struct {
			Protocol string `json:"protocol"`
			Field    string `json:"field"`
		} `json:"payload"`
		Meta struct {
			Key string `json:"key"`
		} `json:"meta"`
		CT struct {
			Key string `json:"key"`
		} `json:"ct"`
	} `json:"left"`
	Right json.RawMessage `json:"right"`
}

// tableTrouble reads one table's listing and tells which of its chains stop pods or the overlay.
func tableTrouble(listing, name string, c Config) (trouble, error) {
	t := nftTable{chains: map[string]nftChain{}}
	var found trouble
	var known strings.Builder
	err := netfilter.Objects(listing, func(kind string, o netfilter.Object) {
		switch kind {
		case "chain":
			t.chains[o.Name] = nftChain{hook: o.Hook, dropped: o.Policy == "drop"}
		case "rule":
			chain := t.chains[o.Chain]
			chain.rules = append(chain.rules, readRule(o.Expr))
			t.chains[o.Chain] = chain
			text := joined(o.Expr)
			known.WriteString(text)
			// A chain without a hook may be reached from INPUT or OUTPUT; one of another hook is not about the overlay.
			onTheWay := slices.Contains([]string{"", "input", "output"}, chain.hook)
			found.tracked = found.tracked || onTheWay && acceptsNew(text, c.Port)
		case "set", "map":
			known.WriteString(joined(o.Elem))
		}
	})
	t.known = known.String()
	for _, chain := range slices.Sorted(maps.Keys(t.chains)) {
		switch t.chains[chain].hook {
		case "forward":
			if t.closed(chain, maxDepth) {
				found.texts = append(found.texts, forwardCure(name, chain, t.known, c)...)
			}
		case "input", "output":
			found.texts = append(found.texts, gateCures(t, name, chain, c)...)
		}
	}
	return found, err
}

// readRule takes a rule apart.
func readRule(expr []json.RawMessage) nftRule {
	r := nftRule{expr: expr}
	for _, raw := range expr {
		var e map[string]json.RawMessage
		if json.Unmarshal(raw, &e) != nil {
			r.strange = true
			continue
		}
		for kind, value := range e {
			r.read(kind, value)
		}
	}
	return r
}

func (r *nftRule) read(kind string, value json.RawMessage) {
	var m nftMatch
	switch kind {
	case "counter", "log":
	case "accept", "drop", "reject", "return":
		r.verdict = kind
	case "jump", "goto":
		var to struct{ Target string }
		_ = json.Unmarshal(value, &to) // without a name there is no such chain
		r.verdict, r.target = kind, to.Target
	case "match":
		_ = json.Unmarshal(value, &m) // what is of another form is a condition that nobody knows
		r.when = append(r.when, m)
	case "vmap":
		var v struct {
			Key  json.RawMessage `json:"key"`
			Data json.RawMessage `json:"data"`
		}
		_ = json.Unmarshal(value, &v)
		_ = json.Unmarshal(v.Key, &m.Left)
		m.Op, m.Right = "==", v.Data
		r.verdict, r.when = kind, append(r.when, m)
	default:
		r.strange = true
	}
}

// conditional tells whether some packets pass the rule by.
func (r nftRule) conditional() bool { return r.strange || len(r.when) > 0 }

// forAll tells whether a rule is about all packets, or all that begin a connection.
func (r nftRule) forAll() bool {
	return !r.strange && !slices.ContainsFunc(r.when, func(m nftMatch) bool {
		return m.Left.CT.Key != "state" || m.Op == "!=" || !slices.Contains(wordsOf(string(m.Right)), "new")
	})
}

// closed tells whether a chain stops what none of its conditions is about.
func (t nftTable) closed(chain string, depth int) bool {
	return t.chains[chain].dropped || depth > 0 && slices.ContainsFunc(t.chains[chain].rules, func(r nftRule) bool {
		return r.forAll() && (r.verdict == "drop" || r.verdict == "reject" || r.target != "" && t.closed(r.target, depth-1))
	})
}

func joined(parts []json.RawMessage) string {
	var b strings.Builder
	for _, p := range parts {
		b.Write(p)
	}
	return b.String()
}
