// Package traffic lets pod traffic through a node: it masquerades what leaves the pod network, keeps the overlay's own
// packets out of connection tracking, lets peers on another UDP port be heard, and opens a closed iptables FORWARD chain.
//
// Everything is one nftables table, "inet weft", that is ours alone: Rules computes it from a Config, Manager compares it
// with the kernel's and writes it in one transaction. An accept in nftables ends only the base chain that it stands in, so
// a foreign drop cannot be overridden from our table; iptables is touched just where its FORWARD chain drops, and what no
// rule of ours can cure is said in words (Result.Problems).
package traffic

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// Place says where in the iptables FORWARD chain the jump to our accept rules goes.
type Place string

// The places. Auto is right unless an operator's rules say otherwise.
const (
	PlaceAuto  Place = "auto"  // only where FORWARD stops pod traffic: before the first rule that stops everything, else last
	PlaceFirst Place = "first" // always, before every other rule
	PlaceLast  Place = "last"  // always, after every other rule
	PlaceOff   Place = "off"   // never; a jump that is there is removed
)

// Net is what the rules need to know of one family. The zero value means that the family is off.
type Net struct {
	Network netip.Prefix // all pods of the cluster, masked
	PodCIDR netip.Prefix // the pods of this node; invalid while none is assigned
	// KeepSource leaves the family out of Masquerade: its pod addresses are routed outside, as public IPv6 ranges are.
	KeepSource bool
}

// Config is everything that the rules depend on.
type Config struct {
	Nets [2]Net // by subnet.Family

	Masquerade   bool           // rewrite the source of what leaves the pod network
	RandomFully  bool           // let the kernel choose source ports at random; off keeps the application's port
	Exclude      []netip.Prefix // destinations that see the pod's own address; any family, may overlap
	Forward      bool           // accept pod traffic in an iptables FORWARD chain that drops it
	ForwardPlace Place          // "" means PlaceAuto

	Port      uint16           // UDP port that our VXLAN device hears; 0 means there is no overlay port
	Peers     []netip.AddrPort // outer address and port of every peer, any family
	Mixed     []uint16         // ports beside Port that were ours, so that peers may still send to them; each peer's own is added for it
	Listens   [2][]uint16      // further UDP ports that peers send to, by the family that carries them: WireGuard's
	IPIP      bool             // peers send IP in IP, which has no port; their addresses are in Peers
	AntiSpoof bool             // drop encapsulated packets from an address that is not a peer's
	Inner     Inner            // what AntiSpoof lets out of the tunnels
	Sealed    Sealed           // what is never to be sent or heard in the clear

	// Tracked leaves overlay packets to connection tracking. Manager sets it by itself where a rule of the host lets them
	// in or out by "state NEW" alone, which an untracked packet would not match.
	Tracked bool
}

// Validate reports all that is wrong with the Config, joined.
func (c Config) Validate() error {
	var errs []error
	for _, f := range families() {
		n := c.Nets[f.Family]
		for _, p := range []netip.Prefix{n.Network, n.PodCIDR} {
			if p.IsValid() && (subnet.FamilyOf(p.Addr()) != f.Family || p != p.Masked()) {
				errs = append(errs, fmt.Errorf("check traffic config: %s is not a masked %s prefix", p, f.Family))
			}
		}
		if n.PodCIDR.IsValid() && (!n.Network.IsValid() || !covers(n.Network, n.PodCIDR)) {
			errs = append(errs, fmt.Errorf("check traffic config: pod CIDR %s is not inside the network %s", n.PodCIDR, n.Network))
		}
	}
	for _, p := range c.Exclude {
		if !p.IsValid() {
			errs = append(errs, errors.New("check traffic config: an excluded destination is no prefix"))
		}
	}
	if !slices.Contains([]Place{"", PlaceAuto, PlaceFirst, PlaceLast, PlaceOff}, c.ForwardPlace) {
		errs = append(errs, fmt.Errorf("check traffic config: forward place %q is none of auto, first, last, off", c.ForwardPlace))
	}
	return errors.Join(errs...)
}

// enabled tells whether the family takes part.
func (c Config) enabled(f subnet.Family) bool { return c.Nets[f].Network.IsValid() }

// place is where the FORWARD jump goes, with the switches folded in.
func (c Config) place(f subnet.Family) Place {
	switch {
	case !c.Forward || !c.enabled(f):
		return PlaceOff
	case c.ForwardPlace == "":
		return PlaceAuto
	}
	return c.ForwardPlace
}

// systemPorts are those below 1024: DNS, DHCP, NTP, IKE, QUIC.
const systemPorts = 1024

// former lists the own ports that peers may still send to, sorted.
func (c Config) former() []uint16 {
	if c.Port == 0 {
		return nil
	}
	ports := slices.Sorted(slices.Values(c.Mixed))
	return slices.DeleteFunc(slices.Compact(ports), func(p uint16) bool { return p == 0 || p == c.Port })
}

// tunnels lists by address and port what else peers send by, and hear: each its own port, and those that were ours. It is empty in
// a cluster of one port. A port that a peer announces counts for that peer's address alone, and is never a system's: whatever it
// names, others' packets to that port are left as they are.
func (c Config) tunnels(f subnet.Family) []netip.AddrPort {
	var out []netip.AddrPort
	for _, p := range c.Peers {
		addr := p.Addr().WithZone("")
		if c.Port == 0 || subnet.FamilyOf(addr) != f {
			continue
		}
		if p.Port() >= systemPorts && p.Port() != c.Port {
			out = append(out, netip.AddrPortFrom(addr, p.Port()))
		}
		for _, port := range c.former() {
			out = append(out, netip.AddrPortFrom(addr, port))
		}
	}
	slices.SortFunc(out, netip.AddrPort.Compare)
	return slices.Compact(out)
}
