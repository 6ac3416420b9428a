package underlay

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// Shadows finds routes of others that take packets for a peer's pods another way than the wanted routes do: those to a part of its
// range, and those to all of it that the kernel likes better. A local network in there is not among them: Overlaps tells of that.
// The answer is one line with the cure; empty when there are none.
func Shadows(want kernel.State, host kernel.Host) string {
	v := newView(Options{}, host)
	wanted, bits := map[netip.Prefix]kernel.Route{}, [2][]int{}
	for key, r := range want.Routes {
		if f := subnet.FamilyOf(key.Dst.Addr()); r.Type == unicast {
			wanted[key.Dst] = r
			if !slices.Contains(bits[f], key.Dst.Bits()) {
				bits[f] = append(bits[f], key.Dst.Bits())
			}
		}
	}
	var found []string
	for _, r := range host.Routes {
		for _, n := range bits[subnet.FamilyOf(r.Dst.Addr())] {
			if n > r.Dst.Bits() {
				continue
			}
			dst, _ := r.Dst.Addr().Prefix(n) // n is not too long
			if ours, ok := wanted[dst]; ok && v.shadows(r, dst, ours) {
				found = append(found, fmt.Sprintf("%s for %s", v.routeText(r), dst))
			}
		}
	}
	return listed("other nodes' pods", found)
}

// listed is one line about foreign routes, empty without any.
func listed(whose string, routes []string) string {
	const most = 5
	if len(routes) == 0 {
		return ""
	}
	if more := len(routes) - most; more > 0 {
		routes = append(routes[:most], fmt.Sprintf("and %d more", more))
	}
	return "routes of somebody else take packets for " + whose + " another way; remove them (ip route del): " + strings.Join(routes, "; ")
}

// ShadowsOwn finds routes of others that take packets for this node's own pods away from them, as the block routes of another
// network plugin do that was there before, and those to the node which had the range before. own are the node's pod ranges.
func ShadowsOwn(own []netip.Prefix, host kernel.Host) string {
	v := newView(Options{PodNetworks: own}, host)
	var found []string
	for _, r := range host.Routes {
		i := slices.IndexFunc(own, func(p netip.Prefix) bool { return p.Contains(r.Dst.Addr()) && p.Bits() <= r.Dst.Bits() })
		if i >= 0 && !r.Ours && !v.leadsToPods(r) && (r.Dst != own[i] || r.Metric < connectedMetric(r.Dst)) {
			found = append(found, fmt.Sprintf("%s for %s", v.routeText(r), own[i]))
		}
	}
	return listed("this node's own pods", found)
}

// connectedMetric is that of the route which the bridge's address brings along, plus one: of two IPv4 routes of metric 0 the older
// one is taken.
func connectedMetric(dst netip.Prefix) int { return [2]int{1, 256}[subnet.FamilyOf(dst.Addr())] }

// leadsToPods reports whether a route leads to the pods' bridge, to one pod behind its own device, or into a local network, of
// which Overlaps tells.
func (v view) leadsToPods(r kernel.HostRoute) bool {
	return slices.ContainsFunc(r.Hops, func(hop kernel.Hop) bool {
		l, ok := v.link(hop.Index)
		local := func(a kernel.HostAddr) bool { return a.Index == hop.Index && r.Dst.Contains(a.Prefix.Addr()) }
		return !ok || l.Kind == "veth" || v.barred(l) != nil || slices.ContainsFunc(v.host.Addrs, local)
	})
}

// shadows reports whether a route is taken instead of ours, and leads somewhere else.
func (v view) shadows(r kernel.HostRoute, dst netip.Prefix, ours kernel.Route) bool {
	if r.Ours || r.Dst == dst && r.Metric >= kernel.RouteMetric(subnet.FamilyOf(dst.Addr())) {
		return false
	}
	if slices.ContainsFunc(v.host.Addrs, func(a kernel.HostAddr) bool { return r.Dst.Contains(a.Prefix.Addr()) }) {
		return false
	}
	if len(r.Hops) != 1 {
		return true
	}
	l, _ := v.link(r.Hops[0].Index)
	return !kernel.IsDeviceName(l.Name) && (l.Name != ours.Link || r.Hops[0].Via != ours.Via)
}

// routeText is a route in the words of ip(8).
func (v view) routeText(r kernel.HostRoute) string {
	text := r.Dst.String()
	if r.Type != unicast && r.Type != "" {
		text = r.Type + " " + text
	}
	for _, hop := range r.Hops {
		if hop.Via.IsValid() {
			text += " via " + hop.Via.String()
		}
		if l, ok := v.link(hop.Index); ok {
			text += " dev " + l.Name
		}
	}
	return text
}
