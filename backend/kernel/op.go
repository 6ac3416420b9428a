package kernel

import (
	"net/netip"
	"slices"
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

	RouteWas Route // RouteSet: what it takes the place of; its Type is empty for nothing

	PeerKey WGKey
	Peer    WGPeer       // PeerSet: as it shall be; without Endpoint where the kernel is to keep the one it has
	PeerWas WGPeer       // PeerSet: as it is
	Range   netip.Prefix // RangeDel: what the peer has, and nobody on the device shall have any more

	// Replace says that the key is known to be held by an entry of ours alone, so that it may be overwritten blindly.
	// Without it a route that is in the way is first looked at: it may be somebody else's.
	Replace bool
	// Foreign is a route of somebody else that this one takes the place of: a peer's pods are reached the way we say. It is
	// invalid for none, and its Link is then empty.
	Foreign Route
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
	LinkSet        // MTU, MAC, learning, up, WireGuard's key and port: what can be changed on a live device
	LinkDel
	LinkMove // another name, while everything on the device goes on
	AddrSet
	AddrDel
	FDBSet
	FDBDel
	NeighSet
	NeighDel
	PeerSet  // adds to the peer's ranges, and takes none away unless there are some that nobody knows
	RangeDel // takes one away, without a moment in which the others are nobody's
	PeerDel
	RouteSet
	RouteDel
)

// WithoutPruning drops the removals that only tidy up: all, or those that may concern one of some families. What remains still
// ends with every wanted entry in place.
func WithoutPruning(ops []Op, families ...subnet.Family) []Op {
	var kept []Op
	for _, op := range ops {
		f, one := op.family()
		if !op.Prune || one && len(families) > 0 && !slices.Contains(families, f) {
			kept = append(kept, op)
		}
	}
	return kept
}

// family is the family that an Op is about, if it is about one alone.
func (o Op) family() (subnet.Family, bool) {
	for _, p := range []netip.Addr{o.Addr.Prefix.Addr(), o.Neigh.IP, o.FDB.Dst, o.Key.Dst.Addr()} {
		if p.IsValid() {
			return subnet.FamilyOf(p), true
		}
	}
	for _, f := range subnet.Families() {
		if name := o.Name + o.FDBKey.Link; name != "" && strings.HasPrefix(name, strings.TrimSuffix(DeviceName(f, 0), "0")) {
			return f, true
		}
	}
	return 0, false
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

// Displaces reports whether a route that somebody's command has made gives way to that of the Op, which an administrator should
// hear of. One that leads the same way does not count: it is what flannel leaves behind.
func (o Op) Displaces() bool {
	if r := o.Route; o.Kind == RouteDel {
		return !r.Ours && r.Link != "" && !IsDeviceName(r.Link)
	}
	return o.Kind == RouteSet && o.Foreign.Type != "" && o.Foreign.Via != o.Direct
}
