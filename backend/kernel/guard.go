package kernel

import (
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// closeGuards puts the guards up that are to stay, before anything else is touched.
func (d *differ) closeGuards() {
	for _, f := range subnet.Families() {
		key := guardKey(d.want.Networks[f])
		if want, ok := d.want.Routes[key]; ok && want == guardRoute() && d.have.Routes[key] != want {
			d.setRoute(key)
			d.own()
			d.have.Routes[key] = want
		}
	}
}

// guard lets packets for the pod network end at a blackhole behind all other routes while a device is missing: they would take
// the default route, in the clear and with pods' addresses. A pod network so wide that the node itself is in it gets none: the
// way to the API server might end there, too.
func (d *differ) guard(name string, link Link) {
	for _, f := range subnet.Families() {
		key := guardKey(d.want.Networks[f])
		_, wanted := d.want.Routes[key]
		_, guarded := d.guards[key]
		if !key.Dst.IsValid() || !d.serves(name, link, f) || d.isWide(key.Dst) || wanted || guarded {
			continue
		}
		d.guards[key] = struct{}{}
		if have, ok := d.have.Routes[key]; !ok || have != guardRoute() {
			d.ops = slices.Insert(d.ops, 0, Op{Kind: RouteSet, Key: key, Route: guardRoute(), Guard: true})
		}
	}
}

// serves reports whether a device carries packets of a family: that of its outer packets, or for WireGuard that of the
// addresses it has.
func (d *differ) serves(name string, link Link, f subnet.Family) bool {
	if link.Local.IsValid() {
		return subnet.FamilyOf(link.Local) == f
	}
	for a := range d.want.Addrs {
		if a.Link == name && subnet.FamilyOf(a.Prefix.Addr()) == f {
			return true
		}
	}
	return false
}

// isWide reports whether a pod network contains a node's own address, ours or, where we know no other, a peer's.
func (d *differ) isWide(network netip.Prefix) bool {
	for _, l := range d.want.Links {
		if l.Local.IsValid() && network.Contains(l.Local) {
			return true
		}
	}
	for _, p := range d.want.Peers {
		if network.Contains(p.Endpoint.Addr()) {
			return true
		}
	}
	return false
}

// guardKey has the largest metric there is, so that every other route wins.
func guardKey(network netip.Prefix) RouteKey { return RouteKey{Dst: network, Metric: 1<<32 - 1} }

func guardRoute() Route { return Route{Ours: true, Type: "blackhole"} }

// Guards are the Ops that put the guard up for families whose device is not there, for a round that gets no further.
func Guards(have State, networks [2]netip.Prefix, devices [2]string) []Op {
	d := differ{have: have, want: State{Networks: networks}, guards: map[RouteKey]struct{}{}}
	for _, f := range subnet.Families() {
		if _, ok := have.Links[devices[f]]; !ok && networks[f].IsValid() && devices[f] != "" {
			d.guard(devices[f], Link{Local: [2]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[f]})
		}
	}
	return d.ops
}
