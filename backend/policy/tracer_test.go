package policy_test

import (
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/oracle"
)

// tracer walks a packet through the rules that knftables' fake kernel holds, by their text. It knows the words that our rules
// are made of, and fails the test at any other.
type tracer struct {
	t     *testing.T
	table *knftables.FakeTable
	ops   int // statements that were evaluated, since the tracer was made

	marked bool // the packet bears the mark for the guard
}

// packet is a packet as the rules see it. It begins a connection unless it says otherwise.
type packet struct {
	oracle.Packet
	sport       uint16
	established bool // conntrack knows it, or what it is about
	middle      bool // of TCP: not a SYN
	neighbour   bool // IPv6 neighbour discovery
	local       bool // from an address of the node
}

// passes tells whether a packet gets through a hook.
func (tr *tracer) passes(hook string, p packet) bool {
	if tr.table == nil || tr.table.Chains[hook] == nil && hook == "input" {
		return true // a hook that nothing looks at
	}
	tr.marked = false
	verdict := tr.chain(hook, p)
	if judged := !p.established && !p.neighbour && !p.local; judged && verdict != "drop" && !tr.marked && tr.table.Chains["let-through"] != nil {
		tr.t.Errorf("the %s hook lets %v pass without the mark, and the guard drops it", hook, p)
	}
	return verdict != "drop"
}

// chain returns "accept", "drop", or "return" at the end of the chain.
func (tr *tracer) chain(name string, p packet) string {
	c, ok := tr.table.Chains[name]
	if !ok {
		tr.t.Fatalf("there is no chain %q", name)
	}
	for _, r := range c.Rules {
		words := &words{tr: tr, list: strings.Fields(r.Rule), rule: r.Rule}
		if v := words.run(p); v != "" {
			return v
		}
	}
	return "return"
}

// words is a rule that is being read.
type words struct {
	tr   *tracer
	list []string
	rule string
}

func (w *words) next() string {
	if len(w.list) == 0 {
		w.tr.t.Fatalf("the rule ends too early: %s", w.rule)
	}
	word := w.list[0]
	w.list = w.list[1:]
	return word
}

func (w *words) peek() string {
	if len(w.list) == 0 {
		return ""
	}
	return w.list[0]
}

// run evaluates a rule; "" means that the next one is asked.
func (w *words) run(p packet) string {
	for len(w.list) > 0 {
		w.tr.ops++
		switch word := w.next(); word {
		case "accept", "drop", "return":
			return word
		case "continue":
			return ""
		case "jump":
			if v := w.tr.chain(w.next(), p); v != "return" {
				return v
			}
			return ""
		case "goto":
			return w.tr.chain(w.next(), p)
		case "counter":
			w.next()
			if _, ok := w.tr.table.Counters[w.next()]; !ok {
				w.tr.t.Fatalf("no such counter: %s", w.rule)
			}
		case "update":
			w.next()
			w.skipBraces()
		default:
			hit, verdict := w.match(word, p)
			if verdict != "" {
				return verdict
			}
			if !hit {
				return ""
			}
		}
	}
	return ""
}

// match evaluates one expression. A verdict comes of a map, when what it leads to is final.
func (w *words) match(word string, p packet) (hit bool, verdict string) {
	next := w.peek()
	switch {
	case word == "meta" && next == "mark":
		const set = "mark set meta mark or 0x1000"
		n := len(strings.Fields(set))
		if strings.Join(w.list[:min(n, len(w.list))], " ") != set {
			w.tr.t.Fatalf("unknown mark: %s", w.rule)
		}
		w.list, w.tr.marked = w.list[n:], true
		return true, ""
	case word == "ct":
		switch what := w.next() + " " + w.next(); what {
		case "state established,related", "status confirmed":
			return p.established, ""
		case "state new":
			return !p.established, ""
		default:
			w.tr.t.Fatalf("unknown: ct %s", what)
		}
	case word == "fib":
		w.next()
		w.next()
		return p.local && w.next() == "local", ""
	case next == "hoplimit":
		w.next()
		return p.neighbour && w.next() == "255", ""
	case word == "icmpv6":
		w.next()
		w.skipBraces()
		return p.neighbour, ""
	case word == "tcp" && next == "flags":
		const flags = "flags & (fin | syn | rst | ack) != syn"
		n := len(strings.Fields(flags))
		if strings.Join(w.list[:n], " ") != flags {
			w.tr.t.Fatalf("unknown flags: %s", w.rule)
		}
		w.list = w.list[n:]
		return p.Proto == policy.TCP && p.middle, ""
	case next == "dport":
		w.next()
		return w.ports(p) && word == p.Proto.String(), ""
	}
	return w.lookup(word, p)
}

// skipBraces goes behind "{ ... }".
func (w *words) skipBraces() {
	for w.next() != "}" {
	}
}

// ports reads "80", "80-90" or "{ 80, 90-95 }".
func (w *words) ports(p packet) bool {
	list := []string{w.next()}
	if list[0] == "{" {
		list = nil
		for word := w.next(); word != "}"; word = w.next() {
			list = append(list, strings.TrimSuffix(word, ","))
		}
	}
	return slices.ContainsFunc(list, func(s string) bool {
		first, last, both := strings.Cut(s, "-")
		if !both {
			last = first
		}
		a, err1 := strconv.Atoi(first)
		b, err2 := strconv.Atoi(last)
		if err1 != nil || err2 != nil {
			w.tr.t.Fatalf("not a port: %q in %s", s, w.rule)
		}
		return a <= int(p.Port) && int(p.Port) <= b
	})
}

// lookup reads "ip saddr . ip daddr @set", "ip saddr vmap @map" and "meta l4proto tcp".
func (w *words) lookup(word string, p packet) (bool, string) {
	var key []string
	valid := true
	for {
		value, ok := w.field(word+" "+w.next(), p)
		key, valid = append(key, value), valid && ok
		if w.peek() != "." {
			break
		}
		w.next()
		word = w.next()
	}
	operand := w.next()
	switch {
	case operand == "vmap":
		return w.vmap(strings.TrimPrefix(w.next(), "@"), key[0], valid, p)
	case strings.HasPrefix(operand, "@"):
		return valid && w.has(operand[1:], strings.Join(key, " . ")), ""
	}
	return valid && key[0] == operand, ""
}

// field is a part of the packet as text; false when the packet has no such part.
func (w *words) field(name string, p packet) (string, bool) {
	four := p.Src.Is4()
	switch name {
	case "ip saddr":
		return p.Src.String(), four
	case "ip daddr":
		return p.Dst.String(), four
	case "ip6 saddr":
		return p.Src.String(), !four
	case "ip6 daddr":
		return p.Dst.String(), !four
	case "meta nfproto":
		return map[bool]string{true: "ipv4", false: "ipv6"}[four], true
	case "meta l4proto":
		return p.Proto.String(), true
	case "th sport":
		return strconv.Itoa(int(p.sport)), true
	case "th dport":
		return strconv.Itoa(int(p.Port)), true
	}
	w.tr.t.Fatalf("unknown field %q in %s", name, w.rule)
	return "", false
}

// has looks a key up in a set.
func (w *words) has(name, key string) bool {
	set, ok := w.tr.table.Sets[name]
	if !ok {
		w.tr.t.Fatalf("there is no set %q: %s", name, w.rule)
	}
	interval := slices.Contains(set.Flags, knftables.IntervalFlag)
	return slices.ContainsFunc(set.Elements, func(e *knftables.Element) bool {
		spelled := strings.Join(e.Key, " . ")
		first, last, both := strings.Cut(spelled, "-")
		if !interval || !both {
			return spelled == key
		}
		a := netip.MustParseAddr(key)
		return netip.MustParseAddr(first).Compare(a) <= 0 && a.Compare(netip.MustParseAddr(last)) <= 0
	})
}

// vmap follows a verdict map.
func (w *words) vmap(name, key string, valid bool, p packet) (bool, string) {
	m, ok := w.tr.table.Maps[name]
	if !ok {
		w.tr.t.Fatalf("there is no map %q: %s", name, w.rule)
	}
	if !valid {
		return false, ""
	}
	for _, e := range m.Elements {
		if e.Key[0] != key {
			continue
		}
		target, isJump := strings.CutPrefix(e.Value[0], "jump ")
		if !isJump {
			w.tr.t.Fatalf("unknown verdict %q", e.Value[0])
		}
		if v := w.tr.chain(target, p); v != "return" {
			return true, v
		}
	}
	return false, ""
}
