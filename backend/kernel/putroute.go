package kernel

import (
	"errors"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// putRoute sends a route. IPv6 takes a gateway only if the way to it leads to the device that the route names. While a route
// moves between devices of ours it does not: the gateway lies within the route's own old form, or, for a tunnel, on the
// underlay. A second route that is there for the moment shows the kernel the way that we mean, so that the one that counts is
// replaced in place and no packet finds none.
func (c *Conn) putRoute(op Op, route *netlink.Route, send func(*netlink.Route) error) error {
	err := send(route)
	if !isRefusedGateway(err) {
		return err
	}
	if blame := c.explainRoute(op, err); blame != nil {
		return blame
	}
	helper, ok := c.helper(op, route)
	if !ok || c.handle.RouteReplace(helper) != nil {
		return err
	}
	err = send(route)
	return errors.Join(err, gone(true, c.handle.RouteDel(helper)))
}

// isRefusedGateway reports whether the kernel does not see how a gateway is reached.
func isRefusedGateway(err error) bool {
	return errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.ENETUNREACH)
}

// helper is the route that shows the way to an IPv6 gateway. One to the gateway alone does for a gateway in the pod network:
// its own packets are to take the new device anyway. The way to a peer on the underlay must not be touched, so that the helper
// for it is a default route that every other wins over; the kernel then looks for a way over the device alone, unless the
// route is onlink.
func (c *Conn) helper(op Op, route *netlink.Route) (*netlink.Route, bool) {
	via := op.Route.Via
	if !via.Is6() || !IsDeviceName(op.Route.Link) {
		return nil, false
	}
	h := &netlink.Route{
		Family: unix.AF_INET6, LinkIndex: route.LinkIndex, Protocol: Protocol, Table: unix.RT_TABLE_MAIN,
		Dst: ipNet(netip.PrefixFrom(via, via.BitLen())), Priority: helperMetric,
	}
	if !op.Key.Dst.Contains(via) {
		h.Dst, h.Priority = ipNet(netip.PrefixFrom(netip.IPv6Unspecified(), 0)), lastMetric
	}
	return h, true
}

// The metrics of helpers: before all others, since it is for the moment only, and behind all others.
const (
	helperMetric = 1
	lastMetric   = 1<<32 - 2
)
