package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-cni/weft/backend/policy/guard"
	"github.com/weft-cni/weft/subnet"
)

// listing is what `nft -j list table` prints, as far as we look.
type listing struct {
	Nftables []map[string]json.RawMessage `json:"nftables"`
}

// object holds the fields of every kind of object in a listing that we compare.
type object struct {
	Name    string            `json:"name"`
	Chain   string            `json:"chain"`
	Comment string            `json:"comment"`
	Type    json.RawMessage   `json:"type"`
	Hook    string            `json:"hook"`
	Prio    int               `json:"prio"`
	Policy  string            `json:"policy"`
	Flags   json.RawMessage   `json:"flags"`
	Elem    []json.RawMessage `json:"elem"`
	Packets uint64            `json:"packets"`
	Bytes   uint64            `json:"bytes"`
}

// objects calls f for each object of a listing, in its order.
func objects(text string, f func(kind string, o object)) error {
	var l listing
	if err := json.Unmarshal([]byte(text), &l); err != nil {
		return fmt.Errorf("read nft's listing: %w", err)
	}
	for _, entry := range l.Nftables {
		for kind, raw := range entry {
			var o object
			if err := json.Unmarshal(raw, &o); err != nil {
				return fmt.Errorf("read nft's listing of a %s: %w", kind, err)
			}
			f(kind, o)
		}
	}
	return nil
}

// parse reads `nft -j list table inet weft-policy`. What can never be ours is named in strange; such a table is written anew.
func parse(text string) (r Ruleset, strange []string, err error) {
	if text == "" {
		return Ruleset{}, nil, nil
	}
	chains := map[string]*Chain{}
	marked := false
	err = objects(text, func(kind string, o object) {
		switch kind {
		case "metainfo":
		case "table":
			if flags := string(o.Flags); flags != "" {
				strange = append(strange, "the table has flags "+flags) // a dormant table does nothing
			}
		case "counter":
			r.Counters = append(r.Counters, Counter{Name: o.Name})
		case "chain":
			chains[o.Name] = o.chain()
		case "rule":
			if c := chains[o.Chain]; c != nil {
				c.Rules = append(c.Rules, ChainRule{comment: o.Comment})
			}
		case "set", "map":
			s, odd := o.set(kind)
			strange = append(strange, odd...)
			r.Sets = append(r.Sets, s)
		default:
			strange = append(strange, kind+" "+o.Name+" is not ours")
		}
	})
	if _, marked = chains[markChain]; marked {
		delete(chains, markChain)
	}
	for _, name := range slices.Sorted(maps.Keys(chains)) {
		r.Chains = append(r.Chains, *chains[name])
	}
	slices.SortFunc(r.Sets, func(a, b Set) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(r.Counters, func(a, b Counter) int { return strings.Compare(a.Name, b.Name) })
	if r.Empty() {
		strange = append(strange, "it is empty")
	}
	return r.indexed(), strange, err
}

// chain is a chain without its rules. The hook of a base chain that is not as ours are says what is wrong with it.
func (o object) chain() *Chain {
	c := &Chain{Name: o.Name, Hook: o.Hook}
	c.Last = c.Hook != "" && o.Prio == guard.Priority+1
	if c.Hook != "" && (text1(o.Type) != "filter" || o.Prio != c.priority() || o.Policy != "accept") {
		c.Hook = fmt.Sprintf("%s, type %s, priority %d, policy %s", o.Hook, o.Type, o.Prio, o.Policy)
	}
	return c
}

// set reads a set or a map. An element that we cannot spell makes the whole table strange, since we could not delete it.
func (o object) set(kind string) (s Set, strange []string) {
	s.Name, s.Type = o.Name, text1(o.Type)
	var types []string
	if json.Unmarshal(o.Type, &types) == nil {
		s.Type = strings.Join(types, " . ")
	}
	switch flags := string(o.Flags); {
	case kind == "map":
		s.Kind = Verdicts
	case strings.Contains(flags, "interval"):
		s.Kind = Interval
	case strings.Contains(flags, "timeout"):
		s.Kind = Timed
	}
	for _, raw := range o.Elem {
		e, ok := spell(raw, s.Kind)
		if !ok {
			strange = append(strange, fmt.Sprintf("set %s has the element %s", o.Name, raw))
			continue
		}
		s.Elements = append(s.Elements, e)
	}
	slices.Sort(s.Elements)
	return s, strange
}

// spell reads an element as nft lists it, and spells it as we do.
func spell(raw json.RawMessage, kind SetKind) (string, bool) {
	if addr := text1(raw); raw[0] == '"' {
		a, err := netip.ParseAddr(addr)
		return a.String(), err == nil
	}
	if kind == Verdicts {
		return spellVerdict(raw)
	}
	var e struct {
		Concat []json.RawMessage `json:"concat"`
		Range  []string          `json:"range"`
		Prefix struct {
			Addr netip.Addr `json:"addr"`
			Len  int        `json:"len"`
		} `json:"prefix"`
		Elem struct {
			Val json.RawMessage `json:"val"`
		} `json:"elem"`
	}
	if json.Unmarshal(raw, &e) != nil {
		return "", false
	}
	switch {
	case len(e.Elem.Val) > 0 && kind == Timed:
		return spell(e.Elem.Val, Exact)
	case len(e.Range) == 2 && kind == Interval:
		return strings.Join(e.Range, "-"), true
	case e.Prefix.Addr.IsValid() && kind == Interval:
		return rangeOf(netip.PrefixFrom(e.Prefix.Addr, e.Prefix.Len)).String(), true
	case len(e.Concat) > 0 && kind == Exact:
		return spellConcat(e.Concat), true
	}
	return "", false
}

// spellConcat reads a key of several parts. nft prints a protocol by name where there is an /etc/protocols, which a small image
// lacks, and by number else.
func spellConcat(parts []json.RawMessage) string {
	words := make([]string, len(parts))
	for i, part := range parts {
		words[i] = text1(part)
	}
	at, has := map[int]int{3: 1, 5: 2}[len(words)] // address, protocol, port; two addresses, protocol, two ports
	if !has {
		return strings.Join(words, " . ")
	}
	for _, p := range []Proto{TCP, UDP, SCTP} {
		if words[at] == strconv.Itoa(int(p)) {
			words[at] = p.String()
		}
	}
	return strings.Join(words, " . ")
}

// spellVerdict reads an element of a verdict map: ["10.244.1.5", {"jump": {"target": "in-np-..."}}].
func spellVerdict(raw json.RawMessage) (string, bool) {
	var pair [2]json.RawMessage
	var verdict struct {
		Jump struct {
			Target string `json:"target"`
		} `json:"jump"`
	}
	if json.Unmarshal(raw, &pair) != nil || json.Unmarshal(pair[1], &verdict) != nil {
		return "", false
	}
	return text1(pair[0]) + " : jump " + verdict.Jump.Target, true
}

// text1 is a JSON string, or the raw JSON of what is none.
func text1(raw json.RawMessage) string {
	var s string
	if json.Unmarshal(raw, &s) == nil {
		return s
	}
	return string(raw)
}

// parseFlow reads an element of a cut set.
func parseFlow(e string) (Flow, bool) {
	w := strings.Split(e, " . ")
	if len(w) != 5 {
		return Flow{}, false
	}
	f := Flow{Src: netipOf(w[0]), Dst: netipOf(w[1])}
	proto, known := ParseProto(w[2])
	if n, err := strconv.ParseUint(w[2], 10, 8); err == nil {
		proto, known = Proto(n), true
	}
	from, err1 := strconv.ParseUint(w[3], 10, 16)
	to, err2 := strconv.ParseUint(w[4], 10, 16)
	f.Proto, f.SrcPort, f.DstPort = proto, uint16(from), uint16(to)
	return f, known && err1 == nil && err2 == nil && f.Src.IsValid() && f.Dst.IsValid()
}

// cutElement spells a flow as an element of a cut set.
func cutElement(f Flow) (set, element string) {
	proto := f.Proto.String()
	if proto == AnyProto.String() {
		proto = strconv.Itoa(int(f.Proto))
	}
	return setName("cut", families()[subnet.FamilyOf(f.Src)]), strings.Join([]string{
		f.Src.String(), f.Dst.String(), proto, strconv.Itoa(int(f.SrcPort)), strconv.Itoa(int(f.DstPort)),
	}, " . ")
}
