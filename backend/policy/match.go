package policy

import (
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// verdict is what a rule does.
type verdict uint8

const (
	allow verdict = iota // back to the base chain: the other end's direction is judged too
	deny                 // drop, and count
	skip                 // go on in another chain and do not come back
)

// match is a rule as data: nft's text is made from it, and Judge asks it.
type match struct {
	base   bool // a rule of the base chains, which have a text of their own
	dir    Direction
	family family // of the sets
	peer   string // set of addresses of the other end; "" for any
	named  string // set of "address . protocol . port" of the destination; "" for none
	proto  Proto  // AnyProto for every protocol
	ports  []portRange

	verdict verdict
	counter string // of deny
	target  string // of skip
	audit   bool   // deny counts only
}

// text is the rule in nft's language.
func (m match) text() string {
	var w []string
	if m.peer != "" {
		w = append(w, m.family.Proto, [2]string{"saddr", "daddr"}[m.dir], "@"+m.peer)
	}
	switch {
	case m.named != "":
		w = append(w, m.family.Proto+" daddr . meta l4proto . th dport @"+m.named)
	case m.proto == AnyProto:
	case len(m.ports) == 0:
		w = append(w, "meta l4proto "+m.proto.String())
	case len(m.ports) == 1:
		w = append(w, m.proto.String()+" dport "+m.ports[0].String())
	default:
		words := make([]string, len(m.ports))
		for i, p := range m.ports {
			words[i] = p.String()
		}
		w = append(w, m.proto.String()+" dport { "+strings.Join(words, ", ")+" }")
	}
	return strings.Join(append(w, m.end()), " ")
}

func (m match) end() string {
	switch {
	case m.verdict == allow:
		return "return"
	case m.verdict == skip:
		return "goto " + m.target
	case m.audit:
		return "counter name " + m.counter + " return"
	}
	return "counter name " + m.counter + " drop"
}

// rule is the rule with its text.
func (m match) rule(why string) ChainRule { return ChainRule{Text: m.text(), Why: why, match: m} }

// hits tells whether the match is for the flow.
func (m match) hits(r Ruleset, f Flow) bool {
	other := f.Src
	if m.dir == Egress {
		other = f.Dst
	}
	if (m.peer != "" || m.named != "") && subnet.FamilyOf(other) != m.family.Family {
		return false
	}
	if m.peer != "" && !r.has(m.peer, other) {
		return false
	}
	if m.named != "" {
		return r.hasText(m.named, portElement(f.Dst.String(), f.Proto, f.DstPort))
	}
	if m.proto == AnyProto {
		return true
	}
	if m.proto != f.Proto {
		return false
	}
	for _, p := range m.ports {
		if p.first <= f.DstPort && f.DstPort <= p.last {
			return true
		}
	}
	return len(m.ports) == 0
}
