package kernel

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"strings"
)

// String lists the state as ip and bridge would, one entry a line, sorted.
func (s State) String() string {
	var b strings.Builder
	for _, name := range slices.Sorted(maps.Keys(s.Links)) {
		l := s.Links[name]
		state := "DOWN"
		if l.Up {
			state = "UP"
		}
		fmt.Fprintf(&b, "link %s mtu %d state %s%s %s", name, l.MTU, state, address(l), l)
		if l.Kind == KindWireGuard {
			b.WriteString(wireGuardChanges(l, Link{Extra: l.Extra}))
		}
		if l.SoftChecksum {
			b.WriteString(" " + checksumFeature + " off")
		}
		b.WriteString("\n")
	}
	for _, a := range slices.SortedFunc(maps.Keys(s.Addrs), Addr.compare) {
		fmt.Fprintf(&b, "addr %s\n", a)
	}
	for _, n := range slices.SortedFunc(maps.Keys(s.Neighs), Neigh.compare) {
		fmt.Fprintf(&b, "neigh %s dev %s lladdr %s PERMANENT\n", n.IP, n.Link, s.Neighs[n])
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.FDB), FDBKey.compare) {
		permanent := " permanent"
		if s.FDB[k].Learned {
			permanent = ""
		}
		fmt.Fprintf(&b, "fdb %s dev %s %s self%s\n", k.MAC, k.Link, s.FDB[k], permanent)
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.Peers), WGKey.compare) {
		fmt.Fprintf(&b, "peer %s dev %s%s\n", k.Key, k.Link, s.Peers[k])
	}
	for _, k := range slices.SortedFunc(maps.Keys(s.Routes), RouteKey.compare) {
		fmt.Fprintf(&b, "route %s\n", routeText(k, s.Routes[k]))
	}
	return b.String()
}

func (a Addr) compare(b Addr) int {
	return cmp.Or(cmp.Compare(a.Link, b.Link), a.Prefix.Compare(b.Prefix))
}

func (n Neigh) compare(o Neigh) int {
	return cmp.Or(cmp.Compare(n.Link, o.Link), n.IP.Compare(o.IP))
}

func (k FDBKey) compare(o FDBKey) int {
	return cmp.Or(cmp.Compare(k.Link, o.Link), slices.Compare(k.MAC[:], o.MAC[:]))
}

func (k WGKey) compare(o WGKey) int {
	return cmp.Or(cmp.Compare(k.Link, o.Link), slices.Compare(k.Key[:], o.Key[:]))
}

func (k RouteKey) compare(o RouteKey) int {
	return cmp.Or(k.Dst.Compare(o.Dst), cmp.Compare(k.Metric, o.Metric))
}
