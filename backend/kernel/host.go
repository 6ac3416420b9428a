package kernel

import (
	"context"
	"errors"
	"net"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Host reads the host's links, addresses and routes, and counts its policy rules. It changes nothing.
func (c *Conn) Host(ctx context.Context) (Host, error) {
	links, lerr := consistent(ctx, "links", c.handle.LinkList)
	addrs, aerr := byFamily(ctx, "addresses", func(family int) ([]netlink.Addr, error) { return c.handle.AddrList(nil, family) })
	routes, rerr := byFamily(ctx, "routes", func(family int) ([]netlink.Route, error) { return c.handle.RouteList(nil, family) })
	rules, perr := byFamily(ctx, "policy rules", c.handle.RuleList)
	if err := errors.Join(lerr, aerr, rerr, perr); err != nil {
		return Host{}, err
	}
	h := Host{Rules: extraRules(rules), Release: release()}
	for _, l := range links {
		link := hostLink(l)
		if link.Kind == "device" && !link.Loopback {
			link.Driver = c.driver(link)
		}
		h.Links = append(h.Links, link)
	}
	for _, a := range addrs {
		h.Addrs = append(h.Addrs, hostAddr(a))
	}
	for _, r := range routes {
		h.Routes = append(h.Routes, hostRoute(r))
	}
	return h, nil
}

func hostLink(l netlink.Link) HostLink {
	a := l.Attrs()
	h := HostLink{
		Index: a.Index, Name: a.Name, Kind: l.Type(), MTU: a.MTU, Master: a.MasterIndex, MAC: macOf(a.HardwareAddr),
		Up:       a.Flags&net.FlagUp != 0,
		Carrier:  a.RawFlags&unix.IFF_LOWER_UP != 0,
		Loopback: a.Flags&net.FlagLoopback != 0,
	}
	if v, ok := l.(*netlink.Vxlan); ok {
		h.VNI, h.Port = uint32(v.VxlanId), uint16(v.Port)
	}
	return h
}

// driver asks for the driver of a device, as ethtool does: any socket will do for that. Only devices without a kind of their own
// are worth asking for, which are few.
func (c *Conn) driver(l HostLink) string {
	info, err := unix.IoctlGetEthtoolDrvinfo(c.socket.Socket.GetFd(), l.Name)
	if err != nil {
		return "" // a device has no driver, or does not tell
	}
	return unix.ByteSliceToString(info.Driver[:])
}

// release is the kernel's version.
func release() string {
	var name unix.Utsname
	if err := unix.Uname(&name); err != nil {
		return ""
	}
	return unix.ByteSliceToString(name.Release[:])
}

func hostAddr(a netlink.Addr) HostAddr {
	p := prefixOf(a.IPNet)
	h := HostAddr{
		Index: a.LinkIndex, Prefix: p, LinkLocal: p.Addr().IsLinkLocalUnicast(),
		Permanent:  a.Flags&unix.IFA_F_PERMANENT != 0,
		Deprecated: a.Flags&unix.IFA_F_DEPRECATED != 0,
		Duplicate:  a.Flags&unix.IFA_F_DADFAILED != 0,
	}
	// one bit has two names: "secondary" for IPv4, "temporary" for IPv6
	second := a.Flags&unix.IFA_F_SECONDARY != 0
	h.Secondary, h.Temporary = second && p.Addr().Is4(), second && p.Addr().Is6()
	return h
}

func hostRoute(r netlink.Route) HostRoute {
	h := HostRoute{
		Dst: prefixOf(r.Dst), Src: addrOf(r.Src), Metric: r.Priority, MTU: r.MTU, Type: routeType(r.Type),
		Ours: r.Protocol == Protocol, RA: r.Protocol == unix.RTPROT_RA, ByHand: isByHand(r),
	}
	for _, hop := range r.MultiPath {
		h.Hops = append(h.Hops, Hop{Index: hop.LinkIndex, Via: addrOf(hop.Gw)})
	}
	if len(r.MultiPath) == 0 && r.LinkIndex != 0 {
		h.Hops = []Hop{{Index: r.LinkIndex, Via: addrOf(r.Gw)}}
	}
	return h
}

// extraRules counts the rules beyond those of every namespace: "from all lookup" local at 0, main at 32766 and
// default at 32767, the last one for IPv4 only.
func extraRules(rules []netlink.Rule) int {
	standard := map[int]int{0: unix.RT_TABLE_LOCAL, 32766: unix.RT_TABLE_MAIN, 32767: unix.RT_TABLE_DEFAULT}
	extra := 0
	for _, r := range rules {
		table, ok := standard[max(r.Priority, 0)] // the kernel leaves a priority of 0 out, which the library reads as -1
		if !ok || r.Table != table || r.Src != nil || r.Dst != nil {
			extra++
		}
	}
	return extra
}
