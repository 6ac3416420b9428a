package policy

import (
	"encoding/json"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/subnet"
)

// parse reads `nft -j list table inet weft-policy`. What can never be ours is named in strange; such a table is written anew.
func parse(text string) (r Ruleset, strange []string, err error) {
	if text == "" {
		return Ruleset{}, nil, nil
	}
	chains := map[string]*Chain{}
	err = netfilter.Objects(text, func(kind string, o netfilter.Object) {
		switch kind {
		case "metainfo":
		case "table":
			if flags := string(o.Flags); flags != "" {
				strange = append(strange, "the table has flags "+flags) // a dormant table does nothing
			}
		case "counter":
			r.Counters = append(r.Counters, Counter{Name: o.Name})
		case "chain":
			chains[o.Name] = chainOf(o)
		case "rule":
			if c := chains[o.Chain]; c != nil {
				c.Rules = append(c.Rules, ChainRule{comment: o.Comment})
			}
		case "set", "map":
			if o.Name == signatureSet {
				return
			}
			s, odd := setOf(kind, o)
			strange = append(strange, odd...)
			r.Sets = append(r.Sets, s)
		default:
			strange = append(strange, kind+" "+o.Name+" is not ours")
		}
	})
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
func chainOf(o netfilter.Object) *Chain {
	c := &Chain{Name: o.Name, Hook: o.Hook}
	if c.Hook != "" && (netfilter.Word(o.Type) != "filter" || o.Prio != priority || o.Policy != "accept") {
		c.Hook = fmt.Sprintf("%s, type %s, priority %d, policy %s", o.Hook, o.Type, o.Prio, o.Policy)
	}
	return c
}

// set reads a set or a map. An element that we cannot spell makes the whole table strange, since we could not delete it.
func setOf(kind string, o netfilter.Object) (s Set, strange []string) {
	s.Name, s.Type = o.Name, netfilter.Word(o.Type)
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
	if kind == Verdicts {
		return spellVerdict(raw)
	}
	k, wrapped := netfilter.ParseKey(raw)
	if wrapped && kind != Timed {
		return "", false
	}
	switch {
	case k.Word != "":
		a, err := netip.ParseAddr(k.Word)
		return a.String(), err == nil
	case k.Range != nil && kind == Interval:
		return strings.Join(k.Range, "-"), true
	case k.Prefix.Addr().IsValid() && kind == Interval:
		return rangeOf(k.Prefix).String(), true
	case k.Concat != nil && (kind == Exact || wrapped):
		return spellConcat(k.Concat), true
	}
	return "", false
}

// spellConcat reads a key of several parts. nft prints a protocol by name where there is an /etc/protocols, which a small image
// lacks, and by number else.
func spellConcat(words []string) string {
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
	return netfilter.Word(pair[0]) + " : jump " + verdict.Jump.Target, true
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
