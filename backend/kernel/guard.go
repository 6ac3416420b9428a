package kernel

import (
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// guard lets packets for the pod network end at a blackhole behind all other routes while a device is missing: they would take
// the default route, in the clear and with pods' addresses. A pod network so wide that the node itself is in it gets none: the
// way to the API server might end there, too.
func (d *differ) guard(link Link) {
	f := subnet.FamilyOf(link.Local)
	key := guardKey(d.want.Networks[f])
	_, wanted := d.want.Routes[key]
	_, guarded := d.guards[key]
	if !key.Dst.IsValid() || key.Dst.Contains(link.Local) || wanted || guarded {
		return
	}
	d.guards[key] = struct{}{}
	if have, ok := d.have.Routes[key]; !ok || have != guardRoute() {
		d.ops = slices.Insert(d.ops, 0, Op{Kind: RouteSet, Key: key, Route: guardRoute(), Guard: true})
	}
}

// guardKey has the largest metric there is, so that every other route wins.
func guardKey(network netip.Prefix) RouteKey { return RouteKey{Dst: network, Metric: 1<<32 - 1} }

func guardRoute() Route { return Route{Ours: true, Type: "blackhole"} }

// Guards are the Ops that put the guard up for families whose device is not there, for a round that gets no further.
func Guards(have State, networks [2]netip.Prefix, devices [2]string) []Op {
	d := differ{have: have, want: State{Networks: networks}, guards: map[RouteKey]struct{}{}}
	for _, f := range subnet.Families() {
		if _, ok := have.Links[devices[f]]; !ok && networks[f].IsValid() && devices[f] != "" {
			d.guard(Link{Local: [2]netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}[f]})
		}
	}
	return d.ops
}
