package policy

import (
	"fmt"
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// source is one alternative for the other end of a rule, as sets.
type source struct {
	any  bool
	pods *Peer
	set  string // networks or nodes, less the family
	has  [2]bool
	nets [2][]addrRange // of networks
}

// portTerm is one alternative for the destination port of a rule.
type portTerm struct {
	proto Proto
	ports []portRange
	named *Port
}

// rules makes the nft rules of one rule of a policy: one for each alternative of peers and of ports. To is what they do.
func (b *build) rules(r Rule, to match, why string) []ChainRule {
	var out []ChainRule
	terms := portTerms(r)
	for _, s := range b.sources(r) {
		for _, t := range terms {
			for _, m := range b.combine(s, t, to) {
				out = append(out, m.rule(why))
			}
		}
	}
	return out
}

// combine makes the matches of one alternative of each kind, in each family that is in use.
func (b *build) combine(s source, t portTerm, to match) []match {
	to.proto, to.ports = t.proto, t.ports
	if s.any && t.named == nil {
		return []match{to}
	}
	var named *group
	if t.named != nil {
		if named = b.named(s, *t.named, to.dir); named == nil {
			return nil
		}
	}
	var out []match
	for _, f := range b.families {
		m := to
		m.family = f
		switch {
		case named != nil && to.dir == Egress: // the set has the peers' ports only
		case s.any:
		case s.pods != nil:
			g := b.group(group{peer: *s.pods})
			b.denying[g.name] = b.denying[g.name] || to.verdict != allow
			m.peer = setName(g.name, f)
		case !s.has[f.Family]:
			continue
		default:
			m.peer = setName(s.set, f)
			b.denying[m.peer] = b.denying[m.peer] || to.verdict != allow
		}
		if named != nil {
			b.denying[named.name] = b.denying[named.name] || to.verdict != allow
			m.named = setName(named.name, f)
		}
		out = append(out, m)
	}
	return out
}

// named finds the ports that a name means: inbound those of our own pods, outbound those of the peers. Nodes have none.
func (b *build) named(s source, p Port, d Direction) *group {
	switch {
	case d == Ingress:
		return b.group(group{any: true, local: true, port: &p})
	case s.any:
		return b.group(group{any: true, port: &p})
	case s.pods != nil:
		return b.group(group{peer: *s.pods, port: &p})
	case len(s.nets[0])+len(s.nets[1]) > 0:
		return b.group(group{any: true, nets: true, inside: s.nets, port: &p})
	}
	return nil
}

// group returns the group that is like the given one.
func (b *build) group(like group) *group {
	key := like.key()
	if g, ok := b.used[key]; ok {
		return g
	}
	g, ok := b.known[key]
	if !ok {
		g = &like
		g.name = "pods-" + key
		if g.port != nil {
			g.name = "ports-" + key
		}
		b.fresh = append(b.fresh, g)
	}
	b.used[key] = g
	return g
}

// sources are the alternatives for the other end. All networks of a rule are one set.
func (b *build) sources(r Rule) []source {
	if r.AllPeers {
		return []source{{any: true}}
	}
	var out []source
	var networks []Network
	for _, p := range r.Peers {
		switch {
		case len(p.Networks) > 0:
			networks = append(networks, p.Networks...)
		case p.Nodes != nil:
			out = append(out, b.nodes(*p.Nodes))
		default:
			out = append(out, source{pods: &p})
		}
	}
	if len(networks) > 0 {
		out = append(out, b.networks(networks))
	}
	return out
}

// networks makes the sets of some networks, which are named for what they contain.
func (b *build) networks(in []Network) source {
	s := source{}
	var words []string
	var elements [2][]string
	for _, f := range subnet.Families() {
		s.nets[f] = networkRanges(in, f)
		for _, r := range s.nets[f] {
			elements[f] = append(elements[f], r.String())
		}
		words = append(append(words, elements[f]...), "and")
	}
	s.set = "nets-" + hash(words...)
	b.enter(&s, Interval, elements)
	return s
}

// nodes makes the sets of some nodes' addresses.
func (b *build) nodes(sel Selector) source {
	s := source{set: "nodes-" + hash(sel.String())}
	var elements [2][]string
	for _, n := range b.world.Nodes {
		if !sel.Matches(n.Labels) {
			continue
		}
		for _, a := range n.Addrs {
			elements[subnet.FamilyOf(a)] = append(elements[subnet.FamilyOf(a)], a.String())
		}
	}
	b.enter(&s, Exact, elements)
	return s
}

// enter adds a source's sets, of the families that are in use and that have elements.
func (b *build) enter(s *source, kind SetKind, elements [2][]string) {
	for _, f := range b.families {
		list := elements[f.Family]
		if len(list) == 0 {
			continue
		}
		slices.Sort(list)
		name := setName(s.set, f)
		s.has[f.Family] = true
		b.sets[name] = Set{Name: name, Type: f.Addr, Kind: kind, Elements: slices.Compact(list)}
	}
}

// portTerms are the alternatives for the destination port: the numbers of each protocol together, and each name.
func portTerms(r Rule) []portTerm {
	if r.AllPorts {
		return []portTerm{{}}
	}
	var out []portTerm
	for _, proto := range []Proto{TCP, UDP, SCTP} {
		var ranges []portRange
		all := false
		for _, p := range r.Ports {
			switch {
			case p.Name != "" || p.Proto != proto:
			case p.First == 0 && p.Last == 0:
				all = true
			case p.First <= p.Last:
				ranges = append(ranges, portRange{p.First, p.Last})
			}
		}
		switch {
		case all:
			out = append(out, portTerm{proto: proto})
		case len(ranges) > 0:
			out = append(out, portTerm{proto: proto, ports: mergePorts(ranges)})
		}
	}
	for _, p := range r.Ports {
		if p.Name != "" {
			out = append(out, portTerm{named: &Port{Name: p.Name, Proto: p.Proto}})
		}
	}
	return out
}

// why says which rule of which policy an nft rule comes from.
func why(key string, d Direction, rule int, name string) string {
	text := fmt.Sprintf("%s %s rule %d", key, d, rule+1)
	if name != "" {
		text += " (" + name + ")"
	}
	return text
}

// netipOf reads an address that was printed from one.
func netipOf(s string) netip.Addr {
	a, _ := netip.ParseAddr(s)
	return a
}
