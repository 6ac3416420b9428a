package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// dumpTries is how often a dump is read that the kernel marks as interrupted: the table changed meanwhile, so entries
// may be missing or double.
const dumpTries = 5

// Dump reads what the kernel holds of ours: the devices by their names, and what is on those of them that are VXLAN
// devices.
func (c *Conn) Dump(ctx context.Context) (State, error) {
	s := New()
	links, err := consistent(ctx, "links", c.handle.LinkList)
	if errors.Is(err, ErrInterrupted) { // a device of another kind under our name is seen when it is calm again
		links, err = consistent(ctx, "VXLAN devices", c.vxlans)
	}
	if err != nil {
		return State{}, err
	}
	names := map[int]string{}
	index := map[string]int{}
	for _, link := range links {
		a := link.Attrs()
		if !IsDeviceName(a.Name) {
			continue
		}
		value := linkValue(link)
		if link.Type() == "vxlan" {
			value.SoftChecksum = c.softChecksum(a.Index)
			names[a.Index], index[a.Name] = a.Name, a.Index
		}
		s.Links[a.Name] = value
	}
	c.learn(index)
	err = errors.Join(
		c.dumpAddrs(ctx, s, names),
		c.dumpNeighs(ctx, s, names),
		c.dumpRoutes(ctx, s, names),
	)
	if err != nil {
		return State{}, err
	}
	return s, nil
}

// consistent reads one table until the dump was not interrupted.
func consistent[T any](ctx context.Context, what string, read func() ([]T, error)) ([]T, error) {
	var all []T
	var err error = netlink.ErrDumpInterrupted
	for try := 0; try < dumpTries && errors.Is(err, netlink.ErrDumpInterrupted); try++ {
		if ctx.Err() != nil {
			return nil, ctx.Err()
		}
		all, err = read()
	}
	if errors.Is(err, netlink.ErrDumpInterrupted) {
		err = ErrInterrupted // the library's words say less
	}
	if err != nil {
		return nil, fmt.Errorf("list %s of the kernel: %w", what, err)
	}
	return all, nil
}

// vxlans lists the VXLAN devices alone. These are few, so that the kernel tells them in one piece, which nothing interrupts:
// while thousands of other links come and go, a list of all of them has no end.
func (c *Conn) vxlans() ([]netlink.Link, error) {
	req := c.request(unix.RTM_GETLINK, unix.NLM_F_DUMP)
	req.AddData(nl.NewIfInfomsg(unix.AF_UNSPEC))
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	req.AddData(info)
	msgs, err := req.Execute(unix.NETLINK_ROUTE, unix.RTM_NEWLINK)
	if err != nil {
		return nil, err
	}
	var links []netlink.Link
	for _, m := range msgs {
		link, err := netlink.LinkDeserialize(nil, m)
		if err != nil {
			return nil, fmt.Errorf("read a link: %w", err)
		}
		if link.Type() == "vxlan" { // a kernel that knows no such filter tells all
			links = append(links, link)
		}
	}
	return links, nil
}

// byFamily reads a table of both families, one after the other: asked for all at once, the kernel adds those of
// multicast routing and MPLS. A family that the kernel lacks (ipv6.disable=1) has no entries.
func byFamily[T any](ctx context.Context, what string, read func(family int) ([]T, error)) ([]T, error) {
	var all []T
	for _, family := range []int{unix.AF_INET, unix.AF_INET6} {
		some, err := consistent(ctx, what, func() ([]T, error) { return read(family) })
		if err != nil && !errors.Is(err, unix.EAFNOSUPPORT) && !errors.Is(err, unix.EOPNOTSUPP) {
			return nil, err
		}
		all = append(all, some...)
	}
	return all, nil
}

func linkValue(link netlink.Link) Link {
	a := link.Attrs()
	l := Link{Index: a.Index, Kind: link.Type(), MTU: a.MTU, MAC: macOf(a.HardwareAddr), Up: a.Flags&net.FlagUp != 0}
	v, ok := link.(*netlink.Vxlan)
	if !ok {
		return l
	}
	l.VNI, l.Port, l.Parent = uint32(v.VxlanId), uint16(v.Port), v.VtepDevIndex
	l.Local = addrOf(v.SrcAddr)
	l.Learning, l.GBP, l.Extra = v.Learning, v.GBP, extra(v)
	return l
}

// extra words the properties that our devices never have, and that change where packets go.
func extra(v *netlink.Vxlan) string {
	var words []string
	add := func(is bool, word string) {
		if is {
			words = append(words, word)
		}
	}
	add(v.FlowBased, "external")
	add(v.Proxy, "proxy")
	add(v.RSC, "rsc")
	add(v.L2miss, "l2miss")
	add(v.L3miss, "l3miss")
	add(v.Group != nil && !v.Group.IsUnspecified(), "group "+v.Group.String())
	return strings.Join(words, " ")
}

func (c *Conn) dumpAddrs(ctx context.Context, s State, names map[int]string) error {
	addrs, err := byFamily(ctx, "addresses", func(family int) ([]netlink.Addr, error) { return c.handle.AddrList(nil, family) })
	for _, a := range addrs {
		p := prefixOf(a.IPNet)
		if name, ok := names[a.LinkIndex]; ok && p.IsValid() && !p.Addr().IsLinkLocalUnicast() {
			s.Addrs[Addr{Link: name, Prefix: p}] = struct{}{}
		}
	}
	return err
}

func (c *Conn) dumpNeighs(ctx context.Context, s State, names map[int]string) error {
	for _, family := range []uint8{unix.AF_INET, unix.AF_INET6, unix.AF_BRIDGE} {
		entries, err := consistent(ctx, "neighbours", func() ([]neighMsg, error) { return c.listNeighs(family, names) })
		if err != nil {
			return err
		}
		for _, e := range entries {
			e.addTo(s, names[e.index])
		}
	}
	return nil
}

// addTo files an entry. Ours are permanent; a forwarding entry of another kind is noted all the same, since on a
// device that does not learn nobody else has anything to write there.
func (e neighMsg) addTo(s State, link string) {
	permanent := e.state&unix.NUD_PERMANENT != 0
	if e.family != unix.AF_BRIDGE {
		if permanent {
			s.Neighs[Neigh{Link: link, IP: e.dst}] = e.mac
		}
		return
	}
	k := FDBKey{Link: link, MAC: e.mac}
	if first, ok := s.FDB[k]; ok {
		first.More++
		s.FDB[k] = first
		return
	}
	s.FDB[k] = FDBDest{Dst: e.dst, Port: e.port, Learned: !permanent}
}

// found is a route of the main table as a dump lists it.
type found struct {
	key   RouteKey
	value Route
	ours  bool
}

// dumpRoutes files the routes of the main table that are ours by protocol or by device. Where several routes have one
// key, the first is the one that the kernel uses.
func (c *Conn) dumpRoutes(ctx context.Context, s State, names map[int]string) error {
	routes, err := byFamily(ctx, "routes", func(family int) (all []found, err error) {
		err = c.handle.RouteListFilteredIter(family, &netlink.Route{}, 0, func(r netlink.Route) bool {
			key, value, ours := routeValue(r, names)
			all = append(all, found{key, value, ours})
			return true
		})
		return all, err
	})
	others := map[RouteKey]int{}
	for _, r := range routes {
		first, taken := s.Routes[r.key]
		switch {
		case !r.ours:
			others[r.key]++
		case taken:
			first.More++
			s.Routes[r.key] = first
		default:
			s.Routes[r.key] = r.value
		}
	}
	for key, n := range others {
		if r, ok := s.Routes[key]; ok {
			r.More += n
			s.Routes[key] = r
		}
	}
	return err
}

// routeValue reads a route, and reports whether it is ours: by its protocol, or because it leads to a device of ours
// and not the kernel itself put it there.
func routeValue(r netlink.Route, names map[int]string) (RouteKey, Route, bool) {
	key := RouteKey{Dst: prefixOf(r.Dst), Metric: r.Priority}
	if r.Tos != 0 || !key.Dst.IsValid() {
		return RouteKey{}, Route{}, false
	}
	index, value := r.LinkIndex, Route{Ours: r.Protocol == Protocol, Type: routeType(r.Type)}
	value.Via, value.Onlink = addrOf(r.Gw), r.Flags&unix.RTNH_F_ONLINK != 0
	if len(r.MultiPath) > 0 {
		first := r.MultiPath[0]
		index, value.More = first.LinkIndex, len(r.MultiPath)-1
		value.Via, value.Onlink = addrOf(first.Gw), first.Flags&unix.RTNH_F_ONLINK != 0
	}
	name, onOurs := names[index]
	value.Link = name
	if !onOurs && value.Type == "unicast" {
		value.Link = fmt.Sprintf("if%d", index)
	}
	return key, value, value.Ours || onOurs && r.Protocol != unix.RTPROT_KERNEL && r.Protocol != unix.RTPROT_RA
}

func routeType(t int) string {
	names := [...]string{
		unix.RTN_UNICAST: "unicast", unix.RTN_LOCAL: "local", unix.RTN_BROADCAST: "broadcast", unix.RTN_ANYCAST: "anycast",
		unix.RTN_MULTICAST: "multicast", unix.RTN_BLACKHOLE: "blackhole", unix.RTN_UNREACHABLE: "unreachable",
		unix.RTN_PROHIBIT: "prohibit", unix.RTN_THROW: "throw",
	}
	if t > 0 && t < len(names) {
		return names[t]
	}
	return fmt.Sprintf("type-%d", t)
}

func macOf(hw net.HardwareAddr) subnet.MAC {
	var m subnet.MAC
	if len(hw) == len(m) {
		copy(m[:], hw)
	}
	return m
}

// addrOf reads an address of the library; an IPv4 address in either of its forms is IPv4.
func addrOf(ip net.IP) netip.Addr {
	a, _ := netip.AddrFromSlice(ip)
	return a.Unmap()
}

func prefixOf(n *net.IPNet) netip.Prefix {
	if n == nil {
		return netip.Prefix{}
	}
	bits, _ := n.Mask.Size()
	return netip.PrefixFrom(addrOf(n.IP), bits)
}
