package policy

import (
	"net/netip"
	"slices"
	"sort"
	"strconv"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// group is the membership behind a pair of sets, one for each family: the addresses, or the named ports, of all pods that a
// peer matches. Rules that speak of the same pods share a group.
type group struct {
	name   string // of the sets, less the family
	peer   Peer   // its Namespace, Namespaces and Pods; with any, it does not matter
	any    bool   // every pod
	local  bool   // only pods of this node
	inside [2][]addrRange
	nets   bool // only addresses in inside
	port   *Port
	sets   [2][]string // elements, sorted
}

// kind is the nft type of the group's elements.
func (g *group) kind(f family) string {
	if g.port != nil {
		return f.Addr + " . inet_proto . inet_service"
	}
	return f.Addr
}

// key names what the group is asked for.
func (g *group) key() string {
	words := []string{"pods", g.peer.Namespace}
	if g.peer.Namespaces != nil {
		words = append(words, "in", g.peer.Namespaces.String())
	}
	words = append(words, "are", g.peer.Pods.String())
	if g.any {
		words = []string{"any"}
	}
	if g.local {
		words = append(words, "local")
	}
	if g.nets {
		words = append(words, "inside")
		for _, ranges := range g.inside {
			for _, r := range ranges {
				words = append(words, r.String())
			}
		}
	}
	if g.port != nil {
		words = append(words, "port", g.port.Name, g.port.Proto.String())
	}
	return hash(words...)
}

// admits tells whether the group can have pods of a namespace.
func (g *group) admits(namespace string, labels Labels) bool {
	switch {
	case g.any:
		return true
	case g.peer.Namespaces != nil:
		return g.peer.Namespaces.Matches(labels)
	}
	return g.peer.Namespace == namespace
}

// matches tells whether the group has a pod, of a namespace that it admits, under one address.
func (g *group) matches(p *Pod, a netip.Addr) bool {
	if g.local && !p.Local || !g.any && !g.peer.Pods.Matches(p.Labels) {
		return false
	}
	inside := func(r addrRange) bool { return r.contains(a) }
	return !g.nets || slices.ContainsFunc(g.inside[subnet.FamilyOf(a)], inside)
}

// elements spells what a pod brings into the group.
func (g *group) elements(p *Pod, spelled string) []string {
	if g.port == nil {
		return []string{spelled}
	}
	var out []string
	for _, np := range p.Ports {
		if np.Name == g.port.Name && (g.port.Proto == AnyProto || g.port.Proto == np.Proto) {
			out = append(out, portElement(spelled, np.Proto, np.Port))
		}
	}
	return out
}

// portElement spells an address with a port.
func portElement(addr string, p Proto, port uint16) string {
	return addr + " . " + p.String() + " . " + strconv.Itoa(int(port))
}

// update follows the pods that changed.
func (g *group) update(changes []touched, labels map[string]Labels) {
	var gone, come [2][]string
	for _, t := range changes {
		f := subnet.FamilyOf(t.addr)
		if t.old != nil {
			gone[f] = append(gone[f], g.elements(t.old, t.spelled)...)
		}
		if t.new != nil && g.admits(t.new.Namespace, labels[t.new.Namespace]) && g.matches(t.new, t.addr) {
			come[f] = append(come[f], g.elements(t.new, t.spelled)...)
		}
	}
	for f := range g.sets {
		g.sets[f] = replaced(g.sets[f], gone[f], come[f])
	}
}

// replaced is a sorted list without some elements and with others. The list itself is left as it is: it may be in a Ruleset.
func replaced(list, gone, come []string) []string {
	slices.Sort(come)
	come = slices.Compact(come)
	gone = slices.DeleteFunc(gone, func(e string) bool {
		_, has := slices.BinarySearch(list, e)
		_, stays := slices.BinarySearch(come, e)
		return !has || stays
	})
	come = slices.DeleteFunc(come, func(e string) bool {
		_, has := slices.BinarySearch(list, e)
		return has
	})
	if len(gone) == 0 && len(come) == 0 {
		return list
	}
	sort.Strings(gone)
	out := make([]string, 0, len(list)+len(come))
	for _, e := range list {
		for len(come) > 0 && come[0] < e {
			out, come = append(out, come[0]), come[1:]
		}
		if _, leaves := slices.BinarySearch(gone, e); !leaves {
			out = append(out, e)
		}
	}
	return append(out, come...)
}

// fill finds the members of new groups: one walk over the pods for all of them. A pod is shown only to the groups that ask for
// one of its labels, and to those that ask for none in particular.
func (o *owners) fill(groups []*group) {
	if len(groups) == 0 {
		return
	}
	asked := map[Label][]int{}
	var rest []int
	for i, g := range groups {
		label, ok := g.label()
		if !ok {
			rest = append(rest, i)
			continue
		}
		for _, v := range label.Values {
			l := Label{label.Key, v}
			asked[l] = append(asked[l], i)
		}
	}
	admitted := make([]bool, len(groups))
	for i, p := range o.pods {
		if i == 0 || p.Namespace != o.pods[i-1].Namespace {
			for k, g := range groups {
				admitted[k] = g.admits(p.Namespace, o.labels[p.Namespace])
			}
		}
		if !p.member() {
			continue
		}
		o.show(p, groups, rest, admitted)
		for _, l := range p.Labels {
			o.show(p, groups, asked[l], admitted)
		}
	}
	for _, g := range groups {
		for f := range g.sets {
			sort.Strings(g.sets[f])
			g.sets[f] = slices.Compact(g.sets[f])
		}
	}
}

// show offers a pod to some of the groups.
func (o *owners) show(p *Pod, groups []*group, some []int, admitted []bool) {
	for _, i := range some {
		if !admitted[i] {
			continue
		}
		g := groups[i]
		for f, a := range p.Addrs {
			if has := o.of[a]; a.IsValid() && has.pod == p && g.matches(p, a) {
				g.sets[f] = append(g.sets[f], g.elements(p, has.spelled)...)
			}
		}
	}
}

// label is a requirement of the group that names the values of a label.
func (g *group) label() (Requirement, bool) {
	if g.any {
		return Requirement{}, false
	}
	for _, r := range g.peer.Pods.All {
		if r.Op == In {
			return r, true
		}
	}
	return Requirement{}, false
}

// setName is the name of a set for one family.
func setName(name string, f family) string { return strings.Join([]string{name, f.Set}, "-") }
