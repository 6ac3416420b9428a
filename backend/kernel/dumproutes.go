package kernel

import (
	"context"
	"fmt"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// found is a route of the main table as the kernel lists it.
type found struct {
	route  netlink.Route
	key    RouteKey
	value  Route
	index  int // of the device
	metric int // that the kernel has
	ours   bool
	byHand bool // made by a command or a script, and not ours
}

// devices are the names of a host's devices by index.
type devices struct{ ours, others map[int]string }

// dumpRoutes files the routes of the main table that are ours by protocol or by device. Where several routes have one
// key, the first is the one that the kernel uses.
func (c *Conn) dumpRoutes(ctx context.Context, s State, names devices) error {
	since := c.steps()
	routes, err := byFamily(ctx, "routes", func(family int) (all []found, err error) {
		err = c.handle.RouteListFilteredIter(family, &netlink.Route{}, 0, func(r netlink.Route) bool {
			one := readRoute(r, names.ours)
			one.route = netlink.Route{} // large, and there may be many
			all = append(all, one)
			return true
		})
		return all, err
	})
	others, metrics := map[RouteKey]int{}, map[netip.Prefix]int{}
	for _, r := range routes {
		if !r.ours {
			others[r.key]++
			if _, taken := s.Foreign[r.key]; r.byHand && !taken {
				s.Foreign[r.key] = c.named(r, names.others).value
			}
			continue
		}
		first, taken := s.Routes[r.key]
		if taken {
			first.More++
			s.Routes[r.key] = first
			continue
		}
		s.Routes[r.key] = c.named(r, names.others).value
		if r.metric != r.key.Metric {
			metrics[r.key.Dst] = r.metric
		}
	}
	c.learnMetrics(metrics, since)
	for key, n := range others {
		if r, ok := s.Routes[key]; ok {
			r.More += n
			s.Routes[key] = r
		}
	}
	return err
}

// named gives a route that leads to a device of somebody else that device's name, by a list or else by asking. A device that
// has gone since then is called by its index.
func (c *Conn) named(r found, names map[int]string) found {
	if r.value.Link != "" || r.index == 0 {
		return r
	}
	name, ok := names[r.index]
	if !ok {
		name = c.nameOf(r.index)
	}
	r.value.Link = name
	return r
}

// nameOf asks for the name of a device.
func (c *Conn) nameOf(index int) string {
	if link, err := c.handle.LinkByIndex(index); err == nil {
		return link.Attrs().Name
	}
	return fmt.Sprintf("if%d", index)
}

// readRoute reads a route. It is ours by its protocol, or because it leads to a device of ours and not the kernel itself put
// it there. Its device has a name only when it is one of ours.
func readRoute(r netlink.Route, ours map[int]string) found {
	one := found{route: r, key: RouteKey{Dst: prefixOf(r.Dst), Metric: wantedMetric(r)}, metric: r.Priority}
	if r.Tos != 0 || !one.key.Dst.IsValid() {
		return found{}
	}
	value := Route{Ours: r.Protocol == Protocol, Type: routeType(r.Type)}
	index := r.LinkIndex
	value.Via, value.Onlink = addrOf(r.Gw), r.Flags&unix.RTNH_F_ONLINK != 0
	if len(r.MultiPath) > 0 {
		first := r.MultiPath[0]
		index, value.More = first.LinkIndex, len(r.MultiPath)-1
		value.Via, value.Onlink = addrOf(first.Gw), first.Flags&unix.RTNH_F_ONLINK != 0
	}
	name, onOurs := ours[index]
	if value.Link = name; onOurs || value.Type == "unicast" {
		one.index = index
	}
	one.value = value
	one.ours = value.Ours || onOurs && r.Protocol != unix.RTPROT_KERNEL && r.Protocol != unix.RTPROT_RA
	one.byHand = !one.ours && value.Type == "unicast" && isByHand(r)
	return one
}

// isByHand reports whether a route was made by a command, and not by the kernel or a routing daemon, which would make it again.
func isByHand(r netlink.Route) bool {
	return r.Protocol == unix.RTPROT_BOOT || r.Protocol == unix.RTPROT_STATIC
}
