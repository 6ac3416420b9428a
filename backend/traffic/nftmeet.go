package traffic

import (
	"encoding/json"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// stops tells whether a base chain stops packets that go a way of the overlay's. Who has a word about the way anywhere in the
// table is believed to have let it through, unless the word is no.
func (t nftTable) stops(chain string, a arrival) bool {
	o, outright := t.meet(chain, a, maxDepth)
	switch {
	case o == accepts:
		return false
	case o == stops && outright:
		return true
	}
	return (o == stops || t.chains[chain].dropped) && !a.inListing(t.known)
}

// meet follows the overlay's packets through a chain, as xtable.meet does. Outright is whether the rule that stops them is about
// nothing else.
func (t nftTable) meet(chain string, a arrival, depth int) (o outcome, outright bool) {
	for _, r := range t.chains[chain].rules {
		m := r.fits(a)
		if m == never || depth == 0 {
			continue
		}
		switch r.verdict {
		case "accept", "vmap":
			return accepts, false
		case "drop", "reject":
			o, outright = stops, r.conditional()
		case "jump", "goto":
			o, outright = t.meet(r.target, a, depth-1)
		default:
			o = falls
		}
		switch {
		case o == accepts, o == stops && m == always:
			return o, outright
		case m == always && (r.verdict == "return" || r.verdict == "goto"):
			return falls, false
		}
	}
	return falls, false
}

// fits tells whether a rule is about packets that go this way.
func (r nftRule) fits(a arrival) fit {
	m := always
	if r.strange {
		return never
	}
	for _, w := range r.when {
		m = min(m, w.fits(a))
	}
	return m
}

// fits is the same for one condition.
func (m nftMatch) fits(a arrival) fit {
	right, not := string(m.Right), m.Op == "!="
	is := func(yes bool) fit {
		if yes == not {
			return never
		}
		return always
	}
	switch p := m.Left.Payload; {
	case p.Field == "dport":
		return is(a.port != 0 && p.Protocol != "tcp" && p.Protocol != "sctp" && mentionsPort(right, a.port))
	case p.Field == "protocol" || p.Field == "nexthdr" || m.Left.Meta.Key == "l4proto":
		return is(slices.ContainsFunc(wordsOf(right), a.isProtocol))
	case p.Field == "saddr":
		return min(perhaps, a.from(m.Right, not))
	case p.Field == "daddr":
		return perhaps
	}
	switch {
	case m.Left.Meta.Key == "nfproto":
		return is(slices.Contains(wordsOf(right), a.nfproto))
	case slices.Contains([]string{"iif", "iifname", "oif", "oifname"}, m.Left.Meta.Key):
		if right == `"lo"` && !not {
			return never
		}
		return perhaps
	case m.Left.Meta.Key == "pkttype":
		return perhaps
	case m.Left.CT.Key == "state":
		if words := wordsOf(right); (slices.Contains(words, "new") || slices.Contains(words, "untracked")) != not {
			return perhaps
		}
	}
	return never
}

// from tells whether a condition on the source is about a peer. One on a set that has a name is thought to be.
func (a arrival) from(right json.RawMessage, not bool) fit {
	if not || strings.HasPrefix(strings.Trim(string(right), `" `), "@") {
		return perhaps
	}
	holds := func(p netip.Prefix) bool { return slices.ContainsFunc(a.peers, p.Contains) }
	for _, m := range prefixInListing.FindAllStringSubmatch(string(right), -1) {
		if p, err := netip.ParsePrefix(m[1] + "/" + m[2]); err == nil && holds(p) {
			return perhaps
		}
	}
	for _, word := range wordsOf(string(right)) {
		if addr, err := netip.ParseAddr(word); err == nil && holds(netip.PrefixFrom(addr, addr.BitLen())) {
			return perhaps
		}
	}
	return never
}

// wordsOf are the values in a piece of a listing.
func wordsOf(text string) []string {
	return strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(`{}[]", `, r) })
}

// peersOf are the outer addresses of the peers of a family.
func (c Config) peersOf(f subnet.Family) []netip.Addr {
	var out []netip.Addr
	for _, p := range c.Peers {
		if addr := p.Addr().WithZone(""); subnet.FamilyOf(addr) == f {
			out = append(out, addr)
		}
	}
	return out
}
