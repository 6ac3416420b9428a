package kernel

import (
	"maps"
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// Diff lists the changes that turn have into want, in an order in which every state in between is sound:
//
//   - a device, then its address, then per kind forwarding entries, neighbours and routes, so that a route never
//     points to a peer without neighbour; removals afterwards, the other way round;
//   - a device that cannot become the wanted one by changing it is removed and made anew, and everything on it is set
//     again in the same list;
//   - what is in the way of a wanted entry is removed before it: an address of ours that has become a peer's, a
//     device that holds the UDP port in another mode.
//
// It is pure, and the same for a first start, a restart, a repair and a single event. Two equal states give no Op.
func Diff(have, want State) []Op {
	d := differ{have: have.Clone(), want: want}
	d.links()
	d.addrs()
	d.fdb()
	d.neighs()
	d.routes()
	d.pruneLinks()
	slices.Reverse(d.removals)
	return append(d.ops, d.removals...)
}

// differ collects one Diff. have loses what the Ops so far take away from it, on purpose or as the kernel's side
// effect; removals are collected in the order of sets and run in reverse.
type differ struct {
	have, want    State
	ops, removals []Op
	leaving       []string // devices that go at the very end
	inTheWay      []Addr   // own addresses that are a peer's gateway now
}

func (d *differ) set(op Op)    { d.ops = append(d.ops, op) }
func (d *differ) remove(op Op) { op.Prune = true; d.removals = append(d.removals, op) }

func (d *differ) addrs() {
	for _, a := range slices.SortedFunc(maps.Keys(d.want.Addrs), Addr.compare) {
		if _, ok := d.have.Addrs[a]; !ok {
			d.set(Op{Kind: AddrSet, Addr: a})
		}
	}
	gateways := map[netip.Addr]bool{}
	for _, r := range d.want.Routes {
		gateways[r.Via] = true
	}
	for _, a := range slices.SortedFunc(maps.Keys(d.have.Addrs), Addr.compare) {
		_, wanted := d.want.Addrs[a]
		switch {
		case wanted:
		case gateways[a.Prefix.Addr()] || d.isRouted(a.Prefix.Masked()):
			d.inTheWay = append(d.inTheWay, a)
		case d.isOurs(a.Prefix.Addr()) && !d.isLeaving(a.Link):
			d.remove(Op{Kind: AddrDel, Addr: a})
		}
	}
}

// isOurs reports whether an address on our device is one that we, or flannel, put there. An IPv4 address outside the
// pod network was put there by somebody else; IPv6 knows no such guests (the contract in section 6.1).
func (d *differ) isOurs(a netip.Addr) bool {
	network := d.want.Networks[subnet.FamilyOf(a)]
	return a.Is6() || !network.IsValid() || network.Contains(a)
}

func (d *differ) fdb() {
	for _, k := range slices.SortedFunc(maps.Keys(d.want.FDB), FDBKey.compare) {
		want := d.canonical(k, d.want.FDB[k])
		have, ok := d.have.FDB[k]
		if !ok || d.canonical(k, have) != want {
			d.set(Op{Kind: FDBSet, FDBKey: k, FDB: want, Replace: have.More == 0})
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(d.have.FDB), FDBKey.compare) {
		_, wanted := d.want.FDB[k]
		if !wanted && !d.isLeaving(k.Link) && !d.isTheirs(k) {
			d.remove(Op{Kind: FDBDel, FDBKey: k, FDB: d.have.FDB[k]})
		}
	}
}

// isTheirs reports whether an entry is the kernel's own business: learned, on a device that shall learn.
func (d *differ) isTheirs(k FDBKey) bool {
	return d.have.FDB[k].Learned && d.want.Links[k.Link].Learning
}

// canonical writes the device's own port as 0, as the kernel does.
func (d *differ) canonical(k FDBKey, dest FDBDest) FDBDest {
	if dest.Port == d.want.Links[k.Link].Port {
		dest.Port = 0
	}
	return dest
}

func (d *differ) neighs() {
	for _, n := range slices.SortedFunc(maps.Keys(d.want.Neighs), Neigh.compare) {
		if mac, ok := d.have.Neighs[n]; !ok || mac != d.want.Neighs[n] {
			d.set(Op{Kind: NeighSet, Neigh: n, MAC: d.want.Neighs[n]})
		}
	}
	for _, n := range slices.SortedFunc(maps.Keys(d.have.Neighs), Neigh.compare) {
		if _, ok := d.want.Neighs[n]; !ok && !d.isLeaving(n.Link) {
			d.remove(Op{Kind: NeighDel, Neigh: n, MAC: d.have.Neighs[n]})
		}
	}
}

// routes sets routes. An own address that has become a gateway goes before the routes through it, since the kernel
// refuses a gateway that is its own address ("Nexthop has invalid gateway"), and so does one whose connected route has
// a wanted key. They go after all other routes: the kernel drops what is left on a device with its last address.
func (d *differ) routes() {
	keys := slices.SortedFunc(maps.Keys(d.want.Routes), RouteKey.compare)
	for _, k := range keys {
		if !d.isBlocked(k) {
			d.setRoute(k)
		}
	}
	for _, a := range d.inTheWay {
		d.set(Op{Kind: AddrDel, Addr: a})
	}
	for _, k := range keys {
		if d.isBlocked(k) {
			d.setRoute(k)
		}
	}
	for _, k := range slices.SortedFunc(maps.Keys(d.have.Routes), RouteKey.compare) {
		have := d.have.Routes[k]
		if _, ok := d.want.Routes[k]; !ok && !d.isLeaving(have.Link) {
			d.remove(Op{Kind: RouteDel, Key: k, Route: have})
		}
	}
}

func (d *differ) setRoute(k RouteKey) {
	have, ok := d.have.Routes[k]
	want := d.want.Routes[k]
	if ok && have == want {
		return
	}
	if ok && have.Link != want.Link && k.Dst.Addr().Is6() {
		// an IPv6 gateway must not be covered by a route to another device, so the old one cannot be replaced in place
		d.set(Op{Kind: RouteDel, Key: k, Route: have})
		have, ok = Route{}, false
	}
	mac := d.want.Neighs[Neigh{Link: want.Link, IP: want.Via}]
	direct := d.want.FDB[FDBKey{Link: want.Link, MAC: mac}].Dst
	d.set(Op{Kind: RouteSet, Key: k, Route: want, Replace: ok && have.More == 0, Direct: direct})
}

// isBlocked reports whether an own address keeps a route from being set: as its gateway, or by the connected route that
// the kernel made for the address.
func (d *differ) isBlocked(k RouteKey) bool {
	return slices.ContainsFunc(d.inTheWay, func(a Addr) bool {
		return a.Prefix.Addr() == d.want.Routes[k].Via || a.Prefix.Masked() == k.Dst
	})
}

func (d *differ) isRouted(dst netip.Prefix) bool {
	_, ok := d.want.Routes[RouteKey{Dst: dst}]
	return ok
}
