package mesh

import (
	"cmp"
	"maps"
	"slices"

	"github.com/weft-cni/weft/backend/hostgw"
	"github.com/weft-cni/weft/backend/ipip"
	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/vxlan"
	"github.com/weft-cni/weft/backend/wireguard"
	"github.com/weft-cni/weft/subnet"
)

// join lets each backend's planner plan for the peers that it carries, and puts the plans together.
func (p *planner) join() {
	want := kernel.New()
	want.Networks = p.c.Networks
	for _, s := range []kernel.State{p.hostGW(), p.vxlan(), p.wireGuard(), p.ipip()} {
		want.Add(s)
	}
	for _, f := range subnet.Families() {
		p.blackholes(want, f)
	}
	p.out.Want, p.out.Devices = want, p.devices(want)
}

// blackholes stand behind all other routes. One for the own pod range is asked for by a flag. One for the whole pod network
// stands while this node encrypts: without a device, a route or a peer, packets for pods would take the default route. A pod
// network so wide that the node itself is in it gets none, for the way to the API server might end there, too.
func (p *planner) blackholes(want kernel.State, f subnet.Family) {
	e, network := p.c.Ends[f], p.c.Networks[f]
	if e.IsZero() {
		return
	}
	blackhole := kernel.Route{Ours: true, Type: "blackhole"}
	if p.c.Blackhole {
		want.Routes[kernel.RouteKey{Dst: e.PodCIDR.Masked(), Metric: kernel.LastMetric}] = blackhole
	}
	if p.c.Kind == subnet.WireGuard && network.IsValid() && !network.Contains(e.Local) {
		want.Routes[kernel.RouteKey{Dst: network, Metric: kernel.LastMetric}] = blackhole
	}
}

// devices lists ours, those of the own kind first, and IPv4's before IPv6's.
func (p *planner) devices(want kernel.State) []string {
	rank := func(name string) int {
		kind := map[string]string{kernel.KindVXLAN: subnet.VXLAN, kernel.KindWireGuard: subnet.WireGuard}[want.Links[name].Kind]
		if kind == p.c.Kind || kind == "" && p.c.Kind == subnet.IPIP {
			return len(name) // flannel-v6.1 is longer than flannel.1
		}
		return 100 + len(name)
	}
	return slices.SortedFunc(maps.Keys(want.Links), func(a, b string) int { return cmp.Or(rank(a)-rank(b), cmp.Compare(a, b)) })
}

func (p *planner) hostGW() kernel.State {
	var list []hostgw.Neighbour
	p.each(subnet.HostGW, func(f subnet.Family, q party) {
		e := q.Endpoints[f]
		list = append(list, hostgw.Neighbour{PodCIDR: e.PodCIDR, Addr: e.PublicIP, Link: q.path[f].Link})
	})
	return hostgw.Plan(list)
}

// vxlan plans for peers with those endpoints alone that it carries.
func (p *planner) vxlan() kernel.State {
	if !p.heard.Has(subnet.VXLAN) {
		return kernel.State{}
	}
	var s subnet.Snapshot
	for _, q := range p.peers {
		peer := q.Peer
		for f := range peer.Endpoints {
			if q.way[f].Kind != subnet.VXLAN {
				peer.Endpoints[f] = subnet.Endpoint{}
			}
		}
		if peer.Endpoints != [2]subnet.Endpoint{} {
			s.Peers = append(s.Peers, peer)
		}
	}
	v := p.c.vxlan(p.base)
	want, err := vxlan.Plan(v, s)
	if err != nil {
		return kernel.State{} // it is not our own kind then, and has nothing to work with
	}
	p.out.Problems = append(p.out.Problems, vxlan.Problems(v, s)...)
	return want
}

func (p *planner) wireGuard() kernel.State {
	if !p.heard.Has(subnet.WireGuard) {
		return kernel.State{}
	}
	var list []wireguard.Peer
	for _, q := range p.peers {
		if !q.Speaks(subnet.WireGuard) || q.Key.IsZero() {
			continue
		}
		w := wireguard.Peer{Peer: q.Peer}
		for f := range q.way {
			w.Routed[f] = q.way[f].Kind == subnet.WireGuard
			w.Eager = w.Eager || !q.way[f].Waits.IsZero()
		}
		list = append(list, w)
	}
	return wireguard.Plan(p.c.wireguard(p.base), list)
}

func (p *planner) ipip() kernel.State {
	if !p.heard.Has(subnet.IPIP) {
		return kernel.State{}
	}
	var cfg ipip.Config
	for f, e := range p.c.Ends {
		if !e.IsZero() {
			cfg.Ends[f] = ipip.End{PodCIDR: e.PodCIDR, Local: e.Local, MTU: p.base[f] - subnet.Overhead(subnet.IPIP, subnet.Family(f))}
		}
	}
	var list []ipip.Peer
	p.each(subnet.IPIP, func(f subnet.Family, q party) {
		list = append(list, ipip.Peer{PodCIDR: q.Endpoints[f].PodCIDR, Addr: q.Endpoints[f].PublicIP})
	})
	return ipip.Plan(cfg, list)
}

// each visits the peers that a kind carries, in each family.
func (p *planner) each(kind string, visit func(f subnet.Family, q party)) {
	for _, q := range p.peers {
		for _, f := range subnet.Families() {
			if q.way[f].Kind == kind {
				visit(f, q)
			}
		}
	}
}

// vxlan is what that backend's planner works from; its devices fit into packets of the given sizes.
func (c Config) vxlan(base [2]int) vxlan.Config {
	v := vxlan.Config{
		VNI: c.VXLAN.VNI, Port: c.VXLAN.Port, GBP: c.VXLAN.GBP, Learning: c.VXLAN.Learning, SoftChecksum: c.VXLAN.SoftChecksum,
		SilentPort: c.VXLAN.SilentPort, Networks: c.Networks,
	}
	for f, e := range c.Ends {
		if !e.IsZero() {
			v.VTEPs[f] = vxlan.VTEP{PodCIDR: e.PodCIDR, Local: e.Local, Parent: e.Parent, ParentName: e.ParentName, UnderlayMTU: base[f], MAC: c.VXLAN.MACs[f]}
		}
	}
	return v
}
