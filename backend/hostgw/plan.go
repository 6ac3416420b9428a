// Package hostgw plans plain routes: a peer that is a neighbour on the underlay is the gateway of its own pods, and packets
// go there as they are. It is pure. There is no device, so that only peers on the same link can be reached; DirectRouting of
// the tunnel backends is the same for the peers that are.
package hostgw

import (
	"net/netip"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// Neighbour is a peer on the same link, in one family.
type Neighbour struct {
	PodCIDR netip.Prefix
	Addr    netip.Addr // its public one
	Link    string     // the underlay device that it is reached by
}

// Plan says what the kernel shall hold for the neighbours: one route each. It follows the device that leads to the peer now,
// so that a NIC that was replaced, or another address of a peer, leaves nothing behind.
func Plan(neighbours []Neighbour) kernel.State {
	s := kernel.New()
	for _, n := range neighbours {
		key := kernel.RouteKey{Dst: n.PodCIDR.Masked(), Metric: kernel.RouteMetric(subnet.FamilyOf(n.PodCIDR.Addr()))}
		s.Routes[key] = kernel.Route{Link: n.Link, Via: n.Addr, Ours: true, Type: "unicast"}
	}
	return s
}
