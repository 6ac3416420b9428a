package underlay

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// unicast is the type of routes that lead somewhere.
const unicast = "unicast"

// byDefault follows the default routes in the order of their metrics, and the hops of a multipath route in theirs, to
// the first device that can carry a tunnel.
func (v view) byDefault() (choice, error) {
	var against []string
	for _, r := range v.routesTo(v.opt.Family, func(dst netip.Prefix) bool { return dst.Bits() == 0 }) {
		found, err := v.follow(r, netip.Addr{})
		if err == nil {
			found.why = fmt.Sprintf("%s, metric %d", found.why, r.Metric)
			return found, nil
		}
		against = append(against, err.Error())
	}
	if len(against) > 0 {
		return choice{}, fmt.Errorf("no %s default route through a usable interface (%s)",
			v.opt.Family, strings.Join(against, ", "))
	}
	return choice{}, fmt.Errorf("unable to find default route for %s in the main table (set one, or name the interface with --iface)", v.opt.Family)
}

// byTarget is --iface-can-reach: the device and the source address of the longest matching route.
func byTarget(text string) func(view) (choice, error) {
	target, err := netip.ParseAddr(text)
	if err != nil {
		return func(view) (choice, error) { return choice{}, mistake("want an address") }
	}
	return func(v view) (choice, error) { return v.byRoute(target) }
}

func (v view) byRoute(target netip.Addr) (choice, error) {
	if found, err := v.byAddr(target); err == nil {
		return found, nil // an own address: the kernel would answer with the loopback
	}
	f := subnet.FamilyOf(target)
	matching := v.routesTo(f, func(dst netip.Prefix) bool { return dst.Contains(target) })
	slices.SortStableFunc(matching, func(a, b kernel.HostRoute) int { return cmp.Compare(b.Dst.Bits(), a.Dst.Bits()) })
	if len(matching) == 0 {
		return choice{}, fmt.Errorf("no route to it in the main table")
	}
	found, err := v.follow(matching[0], target) // and no other: a worse route would not be taken by the kernel either
	if f != v.opt.Family {
		found.way = nil // it says nothing of our family but the device
	}
	return found, err
}

// routesTo lists the routes of a family whose destination is wanted, lowest metric first.
func (v view) routesTo(f subnet.Family, want func(dst netip.Prefix) bool) []kernel.HostRoute {
	var list []kernel.HostRoute
	for _, r := range v.host.Routes {
		if subnet.FamilyOf(r.Dst.Addr()) == f && want(r.Dst) {
			list = append(list, r)
		}
	}
	slices.SortStableFunc(list, func(a, b kernel.HostRoute) int { return cmp.Compare(a.Metric, b.Metric) })
	return list
}

// follow takes a route to the first of its hops that can carry a tunnel. An on-link hop leads straight to the target.
func (v view) follow(r kernel.HostRoute, target netip.Addr) (choice, error) {
	if r.Type != unicast && r.Type != "" {
		return choice{}, fmt.Errorf("the route to %s is a %s", r.Dst, r.Type)
	}
	err := fmt.Errorf("the route to %s has no interface", r.Dst)
	for _, hop := range r.Hops {
		l, ok := v.link(hop.Index)
		if !ok {
			continue
		}
		refused := v.barred(l)
		if refused == nil {
			refused = v.unlikely(l)
		}
		if refused != nil {
			err = refused
			continue
		}
		found := choice{link: l, way: &way{r.Src, []netip.Addr{target}}}
		found.why = fmt.Sprintf("the route to %s leaves through it", r.Dst)
		if hop.Via.IsValid() {
			found.way.gateways[0] = hop.Via
			found.why = fmt.Sprintf("the route to %s via %s leaves through it", r.Dst, hop.Via)
		}
		return found, nil
	}
	return choice{}, err
}

// defaultWay gives the preferred source and the gateways of the default routes through a device.
func (v view) defaultWay(index int) *way {
	w := &way{}
	for _, r := range v.routesTo(v.opt.Family, func(dst netip.Prefix) bool { return dst.Bits() == 0 }) {
		for _, hop := range r.Hops {
			if hop.Index != index {
				continue
			}
			w.gateways = append(w.gateways, hop.Via)
			if !w.source.IsValid() {
				w.source = r.Src
			}
		}
	}
	return w
}
