package underlay

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// Down reports an underlay device that carries nothing: switched off, or without a cable. The overlay is whole then, and
// reaches nobody. It is nil for an underlay that is not in use.
func Down(u Underlay, host kernel.Host) error {
	l, ok := newView(Options{}, host).link(u.Index)
	switch {
	case !ok || !u.Addr.IsValid():
		return nil
	case !l.Up:
		return fmt.Errorf("the underlay device %s is down, so that no other node is reached: ip link set %s up", l.Name, l.Name)
	case !l.Carrier:
		return fmt.Errorf("the underlay device %s has no carrier, so that no other node is reached: see its cable, its peer, or its switch", l.Name)
	}
	return nil
}

// WiderPods lists the host's ends of the pods whose MTU is larger than that of the overlay's devices, as it is when those were
// made smaller after the pods. own are the node's pod ranges.
func WiderPods(mtu int, own []netip.Prefix, host kernel.Host) []kernel.HostLink {
	v := newView(Options{PodNetworks: own}, host)
	var out []kernel.HostLink
	for _, l := range v.links {
		if l.Kind != "veth" || l.MTU <= mtu {
			continue
		}
		bridge, ok := v.link(l.Master)
		if ok && (bridge.Name == podBridge || bridge.Kind == "bridge" && v.servesPods(bridge)) || !ok && v.servesPods(l) {
			out = append(out, l)
		}
	}
	return out
}

// Narrow is a way to a peer that the overlay's largest packets do not fit through in one piece.
type Narrow struct {
	Node string
	Addr netip.Addr // the peer's public one
	MTU  int        // of the way
}

// String is "b (192.168.50.2): 1400".
func (n Narrow) String() string { return fmt.Sprintf("%s (%s): %d", n.Node, n.Addr, n.MTU) }

// NarrowPaths finds the peers of a family to which the way, as the kernel knows it, takes smaller packets than the overlay
// sends at most.
func NarrowPaths(f subnet.Family, largest int, peers []subnet.Peer, paths map[netip.Addr]int) []Narrow {
	var out []Narrow
	for _, p := range peers {
		addr := p.Endpoints[f].PublicIP
		if mtu, ok := paths[addr]; ok && mtu < largest {
			out = append(out, Narrow{Node: p.Name, Addr: addr, MTU: mtu})
		}
	}
	return out
}

// ExplainNarrow is one line about narrow ways, with the cure; empty when there are none.
func ExplainNarrow(largest int, narrow []Narrow) string {
	if len(narrow) == 0 {
		return ""
	}
	const most = 5
	least := slices.MinFunc(narrow, func(a, b Narrow) int { return a.MTU - b.MTU }).MTU
	var names []string
	for _, n := range narrow[:min(most, len(narrow))] {
		names = append(names, n.String())
	}
	if more := len(narrow) - most; more > 0 {
		names = append(names, fmt.Sprintf("and %d more", more))
	}
	return fmt.Sprintf("the overlay sends packets of up to %d bytes, and the way to these nodes takes less, so that large ones travel in "+
		"fragments: %s; set \"MTU\": %d in Backend of net-conf.json", largest, strings.Join(names, ", "), least)
}
