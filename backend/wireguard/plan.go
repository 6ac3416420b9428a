// Package wireguard plans the encrypted overlay: WireGuard devices of the kernel, whose peers are the other nodes. It is pure.
//
// A peer is known by its public key. The pod ranges that are allowed for it say whose packets are taken from it; which
// packets are sent to it is said by one route per peer, never by one for the whole network: a node whose peer is missing has
// no route for its pods, and not one that leads to nobody.
package wireguard

import (
	"net/netip"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// eager is the keepalive towards a peer whose session is wanted before any packet needs it.
const eager = 2 * time.Second

// Config is what a node knows about its own end of the overlay.
type Config struct {
	Conf subnet.WireGuardConf
	Key  subnet.Secret // the node's private key
	Ends [2]End        // by family; the zero value switches a family off
}

// End is the own end in one family.
type End struct {
	PodCIDR netip.Prefix // the own pod range
	Local   netip.Addr   // address on the underlay: whether there can be tunnels of this family, and of which scope it is
	MTU     int          // of the device that carries pods of this family
}

// Peer is another node. Its endpoints hold the families that it can be reached in by WireGuard.
type Peer struct {
	subnet.Peer
	Routed [2]bool // packets for its pods go to it
	Eager  bool    // a session is wanted although nothing is sent yet
}

// Single reports whether one device carries both families.
func (c Config) Single() bool { return c.Conf.Mode != subnet.ModeSeparate && c.Conf.Mode != "" }

// Shared reports whether one session with a peer carries both families: so it is when either end has one device. All devices of
// a node have its one key, and if two of them talked to the one of a peer they would take its session from each other. A node
// says that it has one device by one port for both families.
func (c Config) Shared(p subnet.Peer) bool {
	return c.Single() || c.both() && p.WGPorts[subnet.IPv4] != 0 && p.WGPorts[subnet.IPv4] == p.WGPorts[subnet.IPv6]
}

// both reports whether the node takes part in both families.
func (c Config) both() bool {
	return c.Ends[subnet.IPv4].Local.IsValid() && c.Ends[subnet.IPv6].Local.IsValid()
}

// DeviceTo is the name of the device that carries pods of a family to and from a peer.
func (c Config) DeviceTo(f subnet.Family, p subnet.Peer) string {
	if c.Shared(p) {
		f = subnet.IPv4
	}
	return c.Device(f)
}

// Device is the name of the device that carries pods of a family.
func (c Config) Device(f subnet.Family) string {
	if c.Single() {
		f = subnet.IPv4
	}
	return kernel.WireGuardName(f)
}

// port is the own UDP port of the device that carries pods of a family.
func (c Config) port(f subnet.Family) uint16 {
	if c.Single() {
		f = subnet.IPv4
	}
	return c.Conf.Ports[f]
}

// Endpoint is where packets for a peer's pods of a family are sent to; false when no tunnel can lead there.
func (c Config) Endpoint(f subnet.Family, p subnet.Peer) (netip.AddrPort, bool) {
	tunnel, ok := f, c.joins(f, p)
	if c.Shared(p) {
		tunnel, ok = c.tunnel(p)
	}
	if !ok {
		return netip.AddrPort{}, false
	}
	port := p.WGPorts[tunnel]
	if first := p.WGPorts[subnet.IPv4]; first != 0 && c.both() && c.Shared(p) {
		port = first // whichever family leads there: the device has a socket in both
	}
	if port == 0 {
		port = c.port(f) // a peer that does not say has ours
	}
	return netip.AddrPortFrom(p.Endpoints[tunnel].PublicIP, port), port != 0
}

// joins reports whether both ends have an address of a family.
func (c Config) joins(f subnet.Family, p subnet.Peer) bool {
	return c.Ends[f].Local.IsValid() && p.Endpoints[f].PublicIP.IsValid()
}

// tunnel chooses the family of the tunnel to a peer. Where only one family joins the two ends, that one has to do, whatever
// Mode says. Mode auto prefers addresses that are reached from anywhere, and IPv4 among equals.
func (c Config) tunnel(p subnet.Peer) (subnet.Family, bool) {
	four, six := c.joins(subnet.IPv4, p), c.joins(subnet.IPv6, p)
	switch {
	case four != six:
		return map[bool]subnet.Family{true: subnet.IPv4, false: subnet.IPv6}[four], true
	case !four:
		return 0, false
	case c.Conf.Mode == subnet.ModeIPv6:
		return subnet.IPv6, true
	case c.Conf.Mode == subnet.ModeIPv4 || !p.Endpoints[subnet.IPv4].PublicIP.IsPrivate():
		return subnet.IPv4, true
	case !p.Endpoints[subnet.IPv6].PublicIP.IsPrivate() && !c.Ends[subnet.IPv6].Local.IsPrivate():
		return subnet.IPv6, true
	}
	return subnet.IPv4, true
}

// Plan says what the kernel shall hold: the devices with our key, every peer that speaks WireGuard, and routes to those that
// are routed. A peer is there before it is routed, so that its session can come up first and its packets are taken.
func Plan(cfg Config, peers []Peer) kernel.State {
	s := kernel.New()
	for _, f := range subnet.Families() {
		if e := cfg.Ends[f]; e != (End{}) {
			cfg.addSelf(s, f, e)
		}
	}
	for _, p := range peers {
		for _, f := range subnet.Families() {
			if !p.Endpoints[f].IsZero() && cfg.Ends[f] != (End{}) {
				cfg.addPeer(s, f, p)
			}
		}
	}
	return s
}

func (c Config) addSelf(s kernel.State, f subnet.Family, e End) {
	name := c.Device(f)
	link := kernel.Link{Kind: kernel.KindWireGuard, Port: c.port(f), Key: c.Key, MTU: e.MTU, Up: true}
	if other, ok := s.Links[name]; ok {
		link.MTU = min(link.MTU, other.MTU)
	}
	s.Links[name] = link
	c.address(s, f, name)
}

// leastIPv6 is below what the kernel takes IPv6 off a device. The packets around those that are larger than the underlay takes
// then travel in fragments, which WireGuard lets them.
const leastIPv6 = 1280

// address gives a device the node's address of a family.
func (c Config) address(s kernel.State, f subnet.Family, link string) {
	s.Addrs[c.own(f, link)] = struct{}{}
	if l := s.Links[link]; f == subnet.IPv6 {
		l.MTU = max(l.MTU, leastIPv6)
		s.Links[link] = l
	}
}

// own is the node's address of a family on a device.
func (c Config) own(f subnet.Family, link string) kernel.Addr {
	first := c.Ends[f].PodCIDR.Masked().Addr()
	return kernel.Addr{Link: link, Prefix: netip.PrefixFrom(first, first.BitLen())}
}

func (c Config) addPeer(s kernel.State, f subnet.Family, p Peer) {
	endpoint, ok := c.Endpoint(f, p.Peer)
	if !ok {
		return
	}
	key := kernel.WGKey{Link: c.DeviceTo(f, p.Peer), Key: p.Key}
	entry := s.Peers[key] // of the other family, if one device has both
	entry.Endpoint, entry.PSK, entry.Keepalive = endpoint, c.Conf.PSK, c.Conf.Keepalive
	if p.Eager && (entry.Keepalive == 0 || entry.Keepalive > eager) {
		entry.Keepalive = eager
	}
	cidr := p.Endpoints[f].PodCIDR.Masked()
	entry.Allowed[f] = cidr
	s.Peers[key] = entry
	c.address(s, f, key.Link) // the peer takes packets of our range alone, the node's own among them
	if p.Routed[f] {
		s.Routes[kernel.RouteKey{Dst: cidr, Metric: kernel.RouteMetric(f)}] = kernel.Route{Link: key.Link, Ours: true, Type: "unicast"}
	}
}
