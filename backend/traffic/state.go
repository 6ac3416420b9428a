package traffic

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/backend/netfilter"
)

// state is our table as it can be compared: what Rules wants and what nft lists come down to the same shape.
type state struct {
	chains  map[string]chainState
	sets    map[string]setState
	strange []string // what is in the table and can never be ours
}

// chainState is a chain's hook as text, and the comments of its rules in order.
type chainState struct {
	hook     string
	comments []string
}

// setState is a set's declaration as text, and its elements.
type setState struct {
	decl     string
	elements map[string]struct{}
}

// exists tells whether there is a table at all.
func (s state) exists() bool { return len(s.chains)+len(s.sets)+len(s.strange) > 0 }

// wanted is the state that a Ruleset asks for.
func wanted(r Ruleset) state {
	s := state{chains: map[string]chainState{}, sets: map[string]setState{}}
	for _, c := range r.Chains {
		// The priorities in Rules all have names that knftables knows.
		prio, _ := knftables.ParsePriority(knftables.InetFamily, string(c.Priority))
		cs := chainState{hook: hookText(string(c.Type), string(c.Hook), prio, string(knftables.AcceptPolicy))}
		for _, rule := range c.Rules {
			cs.comments = append(cs.comments, rule.Comment())
		}
		s.chains[c.Name] = cs
	}
	for _, set := range r.Sets {
		ss := setState{decl: declText(set.Type, set.Interval), elements: map[string]struct{}{}}
		for _, e := range set.Elements {
			ss.elements[e] = struct{}{}
		}
		s.sets[set.Name] = ss
	}
	return s
}

func hookText(kind, hook string, prio int, policy string) string {
	return fmt.Sprintf("type %s hook %s priority %d policy %s", kind, hook, prio, policy)
}

func declText(kind string, interval bool) string {
	if interval {
		return kind + " interval"
	}
	return kind
}

// parseTable reads `nft -j list table inet weft`.
func parseTable(text string) (state, error) {
	s := state{chains: map[string]chainState{}, sets: map[string]setState{}}
	err := netfilter.Objects(text, func(kind string, o netfilter.Object) {
		switch kind {
		case "metainfo":
		case "table":
			if flags := string(o.Flags); flags != "" {
				s.strange = append(s.strange, "the table has flags "+flags) // a dormant table does nothing
			}
		case "chain":
			s.chains[o.Name] = chainState{hook: hookText(netfilter.Word(o.Type), o.Hook, o.Prio, o.Policy)}
		case "rule":
			c := s.chains[o.Chain]
			c.comments = append(c.comments, o.Comment)
			s.chains[o.Chain] = c
		case "set":
			s.addSet(o)
		default:
			s.strange = append(s.strange, kind+" "+o.Name+" is not ours")
		}
	})
	return s, err
}

// addSet notes a set; an element that we cannot spell makes the whole table strange, since we could not delete it.
func (s *state) addSet(o netfilter.Object) {
	flags := strings.Trim(string(o.Flags), `[]" `)
	set := setState{decl: strings.TrimSpace(typeWord(o.Type) + " " + flags), elements: map[string]struct{}{}}
	for _, raw := range o.Elem {
		e, ok := parseElement(raw)
		if !ok {
			s.strange = append(s.strange, fmt.Sprintf("set %s has the element %s", o.Name, raw))
			continue
		}
		set.elements[e] = struct{}{}
	}
	s.sets[o.Name] = set
}

// typeWord spells a set's type as we do: that of a concatenation is listed by its parts.
func typeWord(raw json.RawMessage) string {
	var parts []string
	if json.Unmarshal(raw, &parts) == nil {
		return strings.Join(parts, " . ")
	}
	return netfilter.Word(raw)
}

// parseElement reads an address, with a port or without, or a prefix, as nft lists them, and spells it as we do.
func parseElement(raw json.RawMessage) (string, bool) {
	k, wrapped := netfilter.ParseKey(raw)
	switch {
	case wrapped:
	case k.Word != "":
		a, err := netip.ParseAddr(k.Word)
		return a.String(), err == nil
	case len(k.Concat) == 2:
		a, err := netip.ParseAddr(k.Concat[0])
		return a.String() + " . " + k.Concat[1], err == nil
	case k.Prefix.Addr().IsValid():
		return element(k.Prefix), true
	}
	return "", false
}
