package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// setRoute puts a route in place. A plain add tells whether the key is free; replacing blindly would take a route of
// somebody else away, such as the connected route of a bridge whose range overlaps the pod network.
func (c *Conn) setRoute(op Op) error {
	route, err := c.route(op.Key, op.Route)
	if err != nil {
		return err
	}
	if op.Replace {
		return c.replaceRoute(op, route)
	}
	err = c.putRoute(op, route, c.handle.RouteAdd)
	if errors.Is(err, unix.EEXIST) {
		return c.takeRoute(op, route)
	}
	return err
}

// replaceRoute puts a route in the place of another one, in IPv6 before it (isStepped). A command's keeps its metric, so that the
// command finds it again, and so does one that has no better metric left.
func (c *Conn) replaceRoute(op Op, route *netlink.Route) error {
	if !op.Key.isStepped() || !op.RouteWas.Ours && !op.adopts() || route.Priority <= bestMetric {
		return c.putRoute(op, route, c.handle.RouteReplace)
	}
	better := *route
	better.Priority--
	err := c.putRoute(op, &better, c.handle.RouteAdd)
	if errors.Is(err, unix.EEXIST) { // somebody else's
		return c.putRoute(op, route, c.handle.RouteReplace)
	}
	if err == nil {
		c.stepped(op.Key, better.Priority)
	}
	return err
}

// adopts reports whether the way stays what it is, and only its owner changes: a route of flannel's becomes ours.
func (o Op) adopts() bool {
	was := o.RouteWas
	was.Ours = o.Route.Ours
	return was == o.Route
}

// takeRoute clears a key that is in use: routes of ours give way, one of somebody else is named in the error and
// left alone, unless it has just taken our place, or stands where only we know the way. The first on a key is the one that
// the kernel uses, and replacing it leaves no gap.
func (c *Conn) takeRoute(op Op, route *netlink.Route) error {
	holders, err := c.routesAt(op.Key, op.Direct)
	if err != nil {
		return err
	}
	isWanted := func(h found) bool { return h.value == op.Route }
	for i, h := range holders {
		switch {
		case !h.ours && !op.mayTake(h.route):
			return c.inTheWay(op, "route to "+op.Key.Dst.String(), h.route.LinkIndex, nil)
		case isWanted(h):
		case i == 0 && !slices.ContainsFunc(holders, isWanted):
			route.Priority = h.metric
			err = c.putRoute(op, route, c.handle.RouteReplace)
		default:
			err = gone(true, c.handle.RouteDel(&h.route))
		}
		if err != nil {
			return err
		}
	}
	return nil
}

// mayTake reports whether a route of somebody else on the same key gives way: it has just taken our place, or stands where only
// we know the way.
func (o Op) mayTake(r netlink.Route) bool {
	return prefixOf(r.Dst) == o.Key.Dst && r.Priority == o.Key.Metric && isByHand(r) && (o.Regain || o.Foreign.Type != "")
}

// routesAt lists the routes of the main table on a key, in the order in which the kernel looks at them. One that leads
// straight to the peer is flannel's, and counts as ours.
func (c *Conn) routesAt(key RouteKey, direct netip.Addr) ([]found, error) {
	names := c.deviceNames()
	routes, err := c.handle.RouteListFiltered(int(family(key.Dst.Addr())), &netlink.Route{Dst: ipNet(key.Dst)}, netlink.RT_FILTER_DST)
	if err != nil {
		return nil, fmt.Errorf("look at the routes to %s: %w", key.Dst, err)
	}
	var holders []found
	for _, r := range routes {
		if h := c.named(readRoute(r, names), nil); h.key == key {
			h.route = r
			h.ours = h.ours || isDirect(r, direct)
			holders = append(holders, h)
		}
	}
	return holders, nil
}

// isDirect reports whether a route is what flannel writes with DirectRouting, or as host-gw.
func isDirect(r netlink.Route, peer netip.Addr) bool {
	return peer.IsValid() && r.Protocol == unix.RTPROT_BOOT && len(r.MultiPath) == 0 && addrOf(r.Gw) == peer
}

func (c *Conn) delRoute(op Op) error {
	route, err := c.route(op.Key, op.Route)
	if err != nil {
		return gone(true, err)
	}
	if !op.Route.Ours {
		route.Protocol = 0 // any
	}
	route.Scope = netlink.SCOPE_NOWHERE // any: what others put on the device may be a route without gateway
	return gone(true, c.handle.RouteDel(route))
}

// route writes a route of ours as the library takes it.
func (c *Conn) route(k RouteKey, r Route) (*netlink.Route, error) {
	route := &netlink.Route{
		Family: int(family(k.Dst.Addr())), Dst: ipNet(k.Dst), Priority: c.metric(k), Protocol: Protocol, Table: unix.RT_TABLE_MAIN,
	}
	if r.Type == "blackhole" {
		route.Type = unix.RTN_BLACKHOLE
		return route, nil
	}
	index, err := c.routeDevice(r.Link)
	if err != nil {
		return nil, err
	}
	route.LinkIndex = index
	if r.Via.IsValid() {
		route.Gw = r.Via.AsSlice()
	} else {
		route.Scope = netlink.SCOPE_LINK // there is no router behind it
	}
	if r.Onlink {
		route.Flags = int(netlink.FLAG_ONLINK)
	}
	return route, nil
}

// routeDevice finds the device of a route, ours or the underlay's.
func (c *Conn) routeDevice(name string) (int, error) {
	if IsDeviceName(name) {
		return c.lookup(name)
	}
	link, err := c.handle.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("find device %s: %w", name, notFound(err))
	}
	return link.Attrs().Index, nil
}

func (c *Conn) deviceNames() map[int]string {
	c.mu.Lock()
	defer c.mu.Unlock()
	names := map[int]string{}
	for name, index := range c.index {
		names[index] = name
	}
	return names
}
