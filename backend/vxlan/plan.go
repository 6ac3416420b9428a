package vxlan

import (
	"fmt"
	"net/netip"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// Plan says what the kernel shall hold for the peers that speak VXLAN; whether they can be taken as they are has been seen to.
// One that lacks a MAC, or has that of another, is left out; Problems lists those. The error is about our own configuration, and then there is no plan.
func Plan(cfg Config, s subnet.Snapshot) (kernel.State, error) {
	if err := cfg.Validate(); err != nil {
		return kernel.State{}, fmt.Errorf("plan the VXLAN overlay: %w", err)
	}
	p := newPlanner(cfg)
	for _, peer := range s.Peers {
		p.addPeer(peer)
	}
	return p.state, nil
}

// Problems lists the peers that Plan leaves out or cannot vouch for, and why. It is empty when our own configuration
// is not usable: Plan says so itself.
func Problems(cfg Config, s subnet.Snapshot) []subnet.Problem {
	if cfg.Validate() != nil {
		return nil
	}
	p := newPlanner(cfg)
	for _, peer := range s.Peers {
		p.addPeer(peer)
	}
	return p.problems
}

// planner collects one plan.
type planner struct {
	cfg      Config
	state    kernel.State
	macs     map[kernel.FDBKey]string // who has a MAC
	problems []subnet.Problem
}

func newPlanner(cfg Config) *planner {
	p := &planner{cfg: cfg, state: kernel.New(), macs: map[kernel.FDBKey]string{}}
	p.state.Networks = cfg.Networks
	for _, f := range subnet.Families() {
		if v := cfg.VTEPs[f]; !v.IsZero() {
			p.addSelf(f, v)
		}
	}
	return p
}

func (p *planner) addSelf(f subnet.Family, v VTEP) {
	name := p.cfg.Device(f)
	p.state.Links[name] = kernel.Link{
		Kind: "vxlan", VNI: p.cfg.VNI, Local: v.Local, Port: p.cfg.Port, Parent: v.Parent, MTU: p.cfg.DeviceMTU(f), MAC: v.MAC,
		Learning: p.cfg.Learning, GBP: p.cfg.GBP, Up: true, SoftChecksum: p.cfg.SoftChecksum,
	}
	first := v.PodCIDR.Masked().Addr()
	p.state.Addrs[kernel.Addr{Link: name, Prefix: netip.PrefixFrom(first, first.BitLen())}] = struct{}{}
	p.macs[kernel.FDBKey{Link: name, MAC: v.MAC}] = "this node"
}

func (p *planner) addPeer(peer subnet.Peer) {
	if !peer.Speaks(subnet.VXLAN) {
		return
	}
	if peer.VNI != p.cfg.VNI {
		p.report(peer, "OtherVNI", "it announces VNI %d, ours is %d: no packet passes until both are the same", peer.VNI, p.cfg.VNI)
	}
	for _, f := range subnet.Families() {
		if e := peer.Endpoints[f]; !e.IsZero() && !p.cfg.VTEPs[f].IsZero() && p.usable(f, peer) {
			p.addEndpoint(f, peer)
		}
	}
}

// usable reports whether a peer's endpoint can be written down without harm to another peer.
func (p *planner) usable(f subnet.Family, peer subnet.Peer) bool {
	e := peer.Endpoints[f]
	other, taken := p.macs[kernel.FDBKey{Link: p.cfg.Device(f), MAC: e.MAC}]
	switch {
	case e.MAC.IsZero() || !e.PodCIDR.IsValid() || !e.PublicIP.IsValid():
		p.report(peer, "Incomplete", "its %s announcement lacks a pod CIDR, an address or a MAC: %s, %s, %s", f, e.PodCIDR, e.PublicIP, e.MAC)
	case taken:
		p.report(peer, "DuplicateMAC", "its MAC %s is that of %s: remove the flannel device of one of them, it gets a new MAC", e.MAC, other)
	default:
		return true
	}
	return false
}

func (p *planner) addEndpoint(f subnet.Family, peer subnet.Peer) {
	e, name := peer.Endpoints[f], p.cfg.Device(f)
	gateway := e.PodCIDR.Masked().Addr()
	port := p.cfg.PeerPort(peer)
	if port == p.cfg.Port {
		port = 0 // the device's own
	}
	fdb := kernel.FDBKey{Link: name, MAC: e.MAC}
	p.macs[fdb] = "node " + peer.Name
	p.state.FDB[fdb] = kernel.FDBDest{Dst: e.PublicIP, Port: port}
	p.state.Neighs[kernel.Neigh{Link: name, IP: gateway}] = e.MAC
	p.state.Routes[kernel.RouteKey{Dst: e.PodCIDR.Masked(), Metric: kernel.RouteMetric(f)}] = kernel.Route{
		Link: name, Via: gateway, Onlink: true, Ours: true, Type: "unicast",
	}
}

func (p *planner) report(peer subnet.Peer, reason, format string, args ...any) {
	p.problems = append(p.problems, subnet.Problem{Node: peer.Name, Reason: reason, Text: fmt.Sprintf(format, args...)})
}
