package underlay

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// Path is how packets go from the host to an address, by the main table.
type Path struct {
	Link   string     // the device they leave by; "" when there is no route that leads anywhere
	Via    netip.Addr // the gateway; invalid when there is none
	OnLink bool       // the address is a neighbour's, to whom a packet for anybody can be handed: no gateway, and a device that passes it on
	MTU    int        // what the device takes, or less if the route says so; 0 when there is no route
}

// Paths answers for many addresses what a look through all routes would cost each time.
type Paths struct {
	v      view
	routes map[netip.Prefix]kernel.HostRoute // the best one of each destination
	bits   [2][]int                          // the lengths of the destinations by family, longest first
}

// NewPaths reads the routes of a host.
func NewPaths(host kernel.Host) Paths {
	p := Paths{v: newView(Options{}, host), routes: map[netip.Prefix]kernel.HostRoute{}}
	for _, r := range host.Routes {
		old, there := p.routes[r.Dst]
		if there && old.Metric <= r.Metric { // of equal ones the first: the kernel's order
			continue
		}
		p.routes[r.Dst] = r
		f := subnet.FamilyOf(r.Dst.Addr())
		if !slices.Contains(p.bits[f], r.Dst.Bits()) {
			p.bits[f] = append(p.bits[f], r.Dst.Bits())
		}
	}
	for f := range p.bits {
		slices.SortFunc(p.bits[f], func(a, b int) int { return cmp.Compare(b, a) })
	}
	return p
}

// To is the path to an address: that of the longest matching route, and of the lowest metric among equally long ones. An
// address of the host itself has no path.
func (p Paths) To(addr netip.Addr) Path {
	if slices.ContainsFunc(p.v.host.Addrs, func(a kernel.HostAddr) bool { return a.Prefix.Addr() == addr }) {
		return Path{}
	}
	for _, bits := range p.bits[subnet.FamilyOf(addr)] {
		dst, err := addr.Prefix(bits)
		if err != nil {
			continue
		}
		if r, ok := p.routes[dst]; ok {
			return p.along(r)
		}
	}
	return Path{}
}

// along follows a route. One of several hops is as narrow as its narrowest, and no neighbour's: which hop a packet takes is
// not for us to say.
func (p Paths) along(r kernel.HostRoute) Path {
	var out Path
	if r.Type != unicast && r.Type != "" {
		return out
	}
	for _, hop := range r.Hops {
		l, ok := p.v.link(hop.Index)
		if !ok {
			continue
		}
		if out.Link == "" {
			out = Path{Link: l.Name, Via: hop.Via, MTU: l.MTU}
			out.OnLink = len(r.Hops) == 1 && !hop.Via.IsValid() && p.v.passesOn(l)
		}
		out.MTU = min(out.MTU, l.MTU)
	}
	if r.MTU > 0 && out.MTU > 0 {
		out.MTU = min(out.MTU, r.MTU)
	}
	return out
}

// passesOn reports whether a device hands a packet for anybody to the neighbour it is told. One of layer 3 that ends at a
// program or at WireGuard decides by the packet's own address instead, and knows nothing of pods. (A tap is a tun with a MAC.)
func (v view) passesOn(l kernel.HostLink) bool {
	return l.Up && v.barred(l) == nil && l.Kind != "wireguard" && (l.Kind != "tun" || !l.MAC.IsZero())
}

// OnLink tells whether an address is a neighbour's, on which device, and by which gateway packets go if it is not.
func OnLink(host kernel.Host, addr netip.Addr) (via netip.Addr, link string, ok bool) {
	p := NewPaths(host).To(addr)
	return p.Via, p.Link, p.OnLink
}

// WayMTU is how large a packet may be that leaves for an address; 0 when there is no route to it.
func WayMTU(host kernel.Host, addr netip.Addr) int { return NewPaths(host).To(addr).MTU }
