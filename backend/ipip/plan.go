// Package ipip plans the IP-in-IP overlay: one device per family that wraps a packet in a second IP header and nothing else.
// It is pure. The device has no peers of its own: each peer's route names the peer's public address as its gateway, and the
// device sends to the gateway it is given.
package ipip

import (
	"net/netip"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// Config is what a node knows about its own end of the overlay.
type Config struct {
	Ends [2]End // by family; the zero value switches a family off
}

// End is the own end of the tunnels in one family.
type End struct {
	PodCIDR netip.Prefix // the own pod range
	Local   netip.Addr   // outer source address
	MTU     int          // of the device
}

// Peer is another node in one family.
type Peer struct {
	PodCIDR netip.Prefix
	Addr    netip.Addr // its public one
}

// Plan says what the kernel shall hold: the devices, and a route for each peer.
func Plan(cfg Config, peers []Peer) kernel.State {
	s := kernel.New()
	for _, f := range subnet.Families() {
		e := cfg.Ends[f]
		if e == (End{}) {
			continue
		}
		name, first := kernel.TunnelName(f), e.PodCIDR.Masked().Addr()
		s.Links[name] = kernel.Link{Kind: kernel.TunnelKind(f), Local: e.Local, MTU: e.MTU, Up: true}
		s.Addrs[kernel.Addr{Link: name, Prefix: netip.PrefixFrom(first, first.BitLen())}] = struct{}{}
	}
	for _, p := range peers {
		f := subnet.FamilyOf(p.PodCIDR.Addr())
		key := kernel.RouteKey{Dst: p.PodCIDR.Masked(), Metric: kernel.RouteMetric(f)}
		s.Routes[key] = kernel.Route{Link: kernel.TunnelName(f), Via: p.Addr, Onlink: isOnlink(f), Ours: true, Type: "unicast"}
	}
	return s
}

// isOnlink says how the kernel is to take a gateway that is on the underlay for one of the tunnel's. IPv6 refuses an onlink gateway
// that a route to another device covers, and package kernel shows it the way otherwise.
func isOnlink(f subnet.Family) bool { return f == subnet.IPv4 }
