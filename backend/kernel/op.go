package kernel

import (
	"fmt"
	"net/netip"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// Op is one change to the kernel. Its String reads like the ip or bridge command that does the same.
type Op struct {
	Kind   OpKind
	Name   string // device name
	To     string // LinkMove: its new name
	Link   Link   // as it shall be
	Was    Link   // LinkSet: as it is
	Addr   Addr
	Neigh  Neigh
	MAC    subnet.MAC
	FDBKey FDBKey
	FDB    FDBDest
	Key    RouteKey
	Route  Route

	// Replace says that the key is known to be held by an entry of ours alone, so that it may be overwritten blindly.
	// Without it a route that is in the way is first looked at: it may be somebody else's.
	Replace bool
	// Direct is the peer's underlay address, for a route. A route via it that is not ours is what flannel leaves behind
	// with DirectRouting, and may be replaced.
	Direct netip.Addr
	// Regain says that the key was held by this very route when it was last looked at. Whatever an administrator's command or a
	// script has put there since has replaced it, and is replaced in turn.
	Regain bool
	// Prune marks a removal that nothing else in the list depends on: what is gone from the cluster, or never was in
	// it. As long as the cluster is not known for sure, such Ops are left out (WithoutPruning).
	Prune bool
	// Guard marks the route that keeps pods' packets from leaving untunnelled while a device is made anew. Its removal has to be
	// left out when something before it failed: the packets would have nowhere else to go.
	Guard bool
}

// OpKind is the kind of an Op, in the order of a set; removals run in the reverse order.
type OpKind uint8

// The kinds of Op. A forwarding entry comes before the neighbour that points to it, and both before the route, so
// that no packet finds half a path.
const (
	LinkAdd OpKind = iota
	LinkSet        // MTU, MAC, learning, up: what can be changed on a live device
	LinkDel
	LinkMove // another name, while everything on the device goes on
	AddrSet
	AddrDel
	FDBSet
	FDBDel
	NeighSet
	NeighDel
	RouteSet
	RouteDel
)

// WithoutPruning drops the removals that only tidy up. What remains still ends with every wanted entry in place.
func WithoutPruning(ops []Op) []Op {
	var kept []Op
	for _, op := range ops {
		if !op.Prune {
			kept = append(kept, op)
		}
	}
	return kept
}

// Regaining marks the routes that were in place already, by the state that was reached last: a route that is missing now was
// taken away.
func Regaining(ops []Op, reached State) []Op {
	for i, op := range ops {
		if was, ok := reached.Routes[op.Key]; op.Kind == RouteSet && ok && was == op.Route {
			ops[i].Regain = true
		}
	}
	return ops
}

// String is the command that does the same.
func (o Op) String() string {
	switch o.Kind {
	case LinkAdd:
		return fmt.Sprintf("ip link add %s address %s mtu %d%s type %s", o.Name, o.Link.MAC, o.Link.MTU, up(o.Link), o.Link) + o.offload("; ")
	case LinkSet:
		if changes := o.changes(); changes != "" {
			return "ip link set " + o.Name + changes + o.offload("; ")
		}
		return o.offload("")
	case LinkDel:
		return "ip link del " + o.Name
	case LinkMove:
		return "ip link set " + o.Name + " name " + o.To
	case AddrSet:
		return "ip addr replace " + o.Addr.String()
	case AddrDel:
		return "ip addr del " + o.Addr.String()
	case NeighSet:
		return fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud permanent", o.Neigh.IP, o.MAC, o.Neigh.Link)
	case NeighDel:
		return fmt.Sprintf("ip neigh del %s dev %s", o.Neigh.IP, o.Neigh.Link)
	case FDBSet:
		return fmt.Sprintf("bridge fdb replace %s dev %s %s self permanent", o.FDBKey.MAC, o.FDBKey.Link, o.FDB)
	case FDBDel:
		return fmt.Sprintf("bridge fdb del %s dev %s self", o.FDBKey.MAC, o.FDBKey.Link)
	case RouteSet:
		return fmt.Sprintf("ip route %s %s", map[bool]string{true: "replace", false: "add"}[o.Replace], routeText(o.Key, o.Route))
	case RouteDel:
		return "ip route del " + routeText(o.Key, o.Route)
	}
	return fmt.Sprintf("op %d", o.Kind)
}

// changes lists what a LinkSet changes.
func (o Op) changes() string {
	var b strings.Builder
	if o.Link.MTU != o.Was.MTU {
		fmt.Fprintf(&b, " mtu %d", o.Link.MTU)
	}
	if o.Link.MAC != o.Was.MAC {
		fmt.Fprintf(&b, " address %s", o.Link.MAC)
	}
	if o.Link.Up != o.Was.Up {
		b.WriteString(map[bool]string{true: " up", false: " down"}[o.Link.Up])
	}
	if o.Link.Learning != o.Was.Learning {
		b.WriteString(" type vxlan " + learning(o.Link))
	}
	return b.String()
}

// offload is the second command that a device may take.
func (o Op) offload(separator string) string {
	if o.Link.SoftChecksum && !o.Was.SoftChecksum {
		return fmt.Sprintf("%sethtool -K %s %s off", separator, o.Name, checksumFeature)
	}
	return ""
}

func up(l Link) string {
	if l.Up {
		return " up"
	}
	return ""
}

func learning(l Link) string {
	if l.Learning {
		return "learning"
	}
	return "nolearning"
}

// String is the device's type and properties as `ip -d link` words them. The parent is written by its index: the ip
// command takes if2 for a name.
func (l Link) String() string {
	if l.Kind != "vxlan" {
		return l.Kind
	}
	s := fmt.Sprintf("vxlan id %d dev if%d local %s dstport %d %s", l.VNI, l.Parent, l.Local, l.Port, learning(l))
	if l.GBP {
		s += " gbp"
	}
	if l.Extra != "" {
		s += " " + l.Extra
	}
	return s
}

// String is "10.244.1.0/32 dev flannel.1".
func (a Addr) String() string { return fmt.Sprintf("%s dev %s", a.Prefix, a.Link) }

// String is "dst 192.168.0.2", with what is unusual about the destination.
func (d FDBDest) String() string {
	s := "dst " + d.Dst.String()
	if d.Port != 0 {
		s += fmt.Sprintf(" port %d", d.Port)
	}
	if d.More > 0 {
		s += fmt.Sprintf(" and %d more", d.More)
	}
	return s
}

// routeText is a route as `ip route` prints it.
func routeText(k RouteKey, r Route) string {
	var b strings.Builder
	if r.Type != "unicast" && r.Type != "" {
		b.WriteString(r.Type + " ")
	}
	b.WriteString(dstText(k.Dst))
	if r.Via.IsValid() {
		b.WriteString(" via " + r.Via.String())
	}
	if r.Link != "" {
		b.WriteString(" dev " + r.Link)
	}
	if r.Ours {
		fmt.Fprintf(&b, " proto %d", Protocol)
	}
	if k.Metric != 0 {
		fmt.Fprintf(&b, " metric %d", k.Metric)
	}
	if r.Onlink {
		b.WriteString(" onlink")
	}
	if r.More > 0 {
		fmt.Fprintf(&b, " and %d more", r.More)
	}
	return b.String()
}

func dstText(p netip.Prefix) string {
	if p.Bits() == 0 {
		return "default"
	}
	return p.String()
}
