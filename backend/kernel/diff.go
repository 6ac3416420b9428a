package kernel

import (
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// Diff lists the changes that turn have into want, in an order in which every state in between is sound:
//
//   - a device, then its address, then per kind forwarding entries, neighbours, WireGuard peers and routes, so that a route
//     never points to a peer that the device does not know; removals afterwards, the other way round;
//   - a device that cannot become the wanted one by changing it is removed and made anew, and everything on it is set
//     again in the same list; if only its port differs, it is put aside instead, and removed after its successor is complete;
//   - while a device is missing, a blackhole for the pod network keeps pods' packets from leaving in the clear;
//   - what is in the way of a wanted entry is removed before it: an address of ours that has become a peer's, a
//     device that holds the UDP port in another mode.
//
// It is pure, and the same for a first start, a restart, a repair and a single event. Two equal states give no Op.
func Diff(have, want State) []Op {
	d := differ{have: have, want: want, guards: map[RouteKey]struct{}{}}
	d.links()
	d.addrs()
	d.fdb()
	d.neighs()
	d.peers()
	d.routes()
	d.pruneLinks()
	slices.Reverse(d.removals)
	d.ops = append(d.ops, d.removals...)
	for _, key := range sorted(d.guards, func(RouteKey, struct{}) bool { return true }, RouteKey.compare) {
		d.set(Op{Kind: RouteDel, Key: key, Route: guardRoute(), Guard: true})
	}
	return d.ops
}

// differ collects one Diff. have loses what the Ops so far take away from it, on purpose or as the kernel's side
// effect, and becomes a copy for that; removals are collected in the order of sets and run in reverse.
type differ struct {
	have, want    State
	copied        bool
	ops, removals []Op
	leaving       []string // devices that go at the very end
	inTheWay      []Addr   // own addresses that are a peer's gateway now
	guards        map[RouteKey]struct{}
	ends          map[netip.Prefix]netip.Addr // what endpoints has found
}

func (d *differ) set(op Op)    { d.ops = append(d.ops, op) }
func (d *differ) remove(op Op) { op.Prune = true; d.removals = append(d.removals, op) }

// sorted returns the keys of a map that pass, in order. Usually none does, so nothing is sorted that is not needed.
func sorted[K comparable, V any](m map[K]V, pass func(K, V) bool, compare func(a, b K) int) []K {
	var keys []K
	for k, v := range m {
		if pass(k, v) {
			keys = append(keys, k)
		}
	}
	slices.SortFunc(keys, compare)
	return keys
}

// lacks makes a pass for the keys that another map does not have.
func lacks[K comparable, V, W any](m map[K]W) func(K, V) bool {
	return func(k K, _ V) bool {
		_, ok := m[k]
		return !ok
	}
}

func (d *differ) addrs() {
	for _, a := range sorted(d.want.Addrs, lacks[Addr, struct{}](d.have.Addrs), Addr.compare) {
		d.set(Op{Kind: AddrSet, Addr: a})
	}
	for _, a := range sorted(d.have.Addrs, lacks[Addr, struct{}](d.want.Addrs), Addr.compare) {
		switch {
		case d.isGateway(a.Prefix.Addr()) || d.isRouted(a.Prefix.Masked()):
			d.inTheWay = append(d.inTheWay, a)
		case d.isOurs(a.Prefix.Addr()) && !d.isLeaving(a.Link):
			d.remove(Op{Kind: AddrDel, Addr: a})
		}
	}
}

func (d *differ) isGateway(a netip.Addr) bool {
	for _, r := range d.want.Routes {
		if r.Via == a {
			return true
		}
	}
	return false
}

// isOurs reports whether an address on our device is one that we, or flannel, put there. An IPv4 address outside the
// pod network was put there by somebody else; IPv6 knows no such guests (the contract in section 6.1).
func (d *differ) isOurs(a netip.Addr) bool {
	network := d.want.Networks[subnet.FamilyOf(a)]
	return a.Is6() || !network.IsValid() || network.Contains(a)
}

func (d *differ) fdb() {
	differs := func(k FDBKey, want FDBDest) bool {
		have, ok := d.have.FDB[k]
		return !ok || d.canonical(k, have) != d.canonical(k, want)
	}
	for _, k := range sorted(d.want.FDB, differs, FDBKey.compare) {
		d.set(Op{Kind: FDBSet, FDBKey: k, FDB: d.canonical(k, d.want.FDB[k]), Replace: d.have.FDB[k].More == 0})
	}
	for _, k := range sorted(d.have.FDB, lacks[FDBKey, FDBDest](d.want.FDB), FDBKey.compare) {
		if !d.isLeaving(k.Link) && !d.isTheirs(k) {
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
	differs := func(n Neigh, want subnet.MAC) bool {
		have, ok := d.have.Neighs[n]
		return !ok || have != want
	}
	for _, n := range sorted(d.want.Neighs, differs, Neigh.compare) {
		d.set(Op{Kind: NeighSet, Neigh: n, MAC: d.want.Neighs[n]})
	}
	for _, n := range sorted(d.have.Neighs, lacks[Neigh, subnet.MAC](d.want.Neighs), Neigh.compare) {
		if !d.isLeaving(n.Link) {
			d.remove(Op{Kind: NeighDel, Neigh: n, MAC: d.have.Neighs[n]})
		}
	}
}

// routes sets routes. An own address that has become a gateway goes before the routes through it, since the kernel
// refuses a gateway that is its own address ("Nexthop has invalid gateway"), and so does one whose connected route has
// a wanted key. They go after all other routes: the kernel drops what is left on a device with its last address.
func (d *differ) routes() {
	differs := func(k RouteKey, want Route) bool {
		have, ok := d.have.Routes[k]
		return !ok || have != want
	}
	keys := sorted(d.want.Routes, differs, RouteKey.compare)
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
	for _, k := range sorted(d.have.Foreign, d.outranks, RouteKey.compare) {
		d.set(Op{Kind: RouteDel, Key: k, Route: d.have.Foreign[k]})
	}
	for _, k := range sorted(d.have.Routes, lacks[RouteKey, Route](d.want.Routes), RouteKey.compare) {
		have := d.have.Routes[k]
		if _, guarded := d.guards[k]; !guarded && !d.isLeaving(have.Link) {
			d.remove(Op{Kind: RouteDel, Key: k, Route: have, Guard: have == guardRoute() && d.isNetwork(k.Dst)})
		}
	}
}

// outranks reports whether a command's route is to the pods of a wanted one past our devices, and has a metric that the kernel
// likes better, as there is in IPv6 alone: it gives way like one with the same metric.
func (d *differ) outranks(k RouteKey, have Route) bool {
	usual := RouteMetric(subnet.FamilyOf(k.Dst.Addr()))
	want := d.want.Routes[RouteKey{Dst: k.Dst, Metric: usual}]
	return k.Metric < usual && want.Link != "" && !IsDeviceName(want.Link) && (have.Link != want.Link || have.Via != want.Via)
}

func (d *differ) isNetwork(p netip.Prefix) bool { return slices.Contains(d.want.Networks[:], p) }

// setRoute sets one route, in place of what is there of ours or, past our devices, of a command's. Only the underlay's own
// routes may be a way that somebody has set up on purpose, and only there we know better: which peer is on the link.
func (d *differ) setRoute(k RouteKey) {
	have, ok := d.have.Routes[k]
	op := Op{Kind: RouteSet, Key: k, Route: d.want.Routes[k], Replace: ok && have.More == 0, RouteWas: have, Direct: d.direct(k)}
	if link := op.Route.Link; link != "" && !IsDeviceName(link) {
		op.Foreign = d.have.Foreign[k]
	}
	d.set(op)
}

// direct is the underlay address of the peer that a wanted route leads to.
func (d *differ) direct(k RouteKey) netip.Addr {
	want := d.want.Routes[k]
	if kindOf(want.Link) == KindVXLAN {
		mac := d.want.Neighs[Neigh{Link: want.Link, IP: want.Via}]
		return d.want.FDB[FDBKey{Link: want.Link, MAC: mac}].Dst
	}
	if want.Via.IsValid() {
		return want.Via
	}
	return d.endpoints()[k.Dst]
}

// endpoints are the underlay addresses of WireGuard peers by pod range.
func (d *differ) endpoints() map[netip.Prefix]netip.Addr {
	if d.ends == nil {
		d.ends = map[netip.Prefix]netip.Addr{}
		for _, p := range d.want.Peers {
			for _, r := range valid(p.Allowed) {
				d.ends[r] = p.Endpoint.Addr()
			}
		}
	}
	return d.ends
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
