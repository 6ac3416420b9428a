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
	const most = 5
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
	if len(found) == 0 {
		return ""
	}
	if more := len(found) - most; more > 0 {
		found = append(found[:most], fmt.Sprintf("and %d more", more))
	}
	return "routes of somebody else take packets for other nodes' pods another way; remove them (ip route del): " + strings.Join(found, "; ")
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
