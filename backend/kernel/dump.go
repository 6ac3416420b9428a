package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// dumpTries is how often a dump is read that the kernel marks as interrupted: the table changed meanwhile, so entries
// may be missing or double.
const dumpTries = 5

// Dump reads what the kernel holds of ours: the devices by their names, what is on those of them that are of the kind that
// goes with the name, and our routes past them.
func (c *Conn) Dump(ctx context.Context) (State, error) {
	c.settle()
	s := New()
	s.Read = time.Now()
	links, err := consistent(ctx, "links", c.handle.LinkList)
	if errors.Is(err, ErrInterrupted) { // a device of another kind under our name is seen when it is calm again
		links, err = consistent(ctx, "our devices", c.ourLinks)
	}
	if err != nil {
		return State{}, err
	}
	names := devices{ours: map[int]string{}, others: map[int]string{}}
	index := map[string]int{}
	for _, link := range links {
		a := link.Attrs()
		if !IsDeviceName(a.Name) {
			names.others[a.Index] = a.Name
			continue
		}
		value := linkValue(link)
		if value.Kind == kindOf(a.Name) {
			value.SoftChecksum = value.Kind == KindVXLAN && c.softChecksum(a.Index)
			if a.MasterIndex != 0 && value.Kind != KindWireGuard { // what it hears goes to a bridge, which keeps entries of its own beside ours
				value.Extra = strings.TrimSpace(value.Extra + " master")
			}
			names.ours[a.Index], index[a.Name] = a.Name, a.Index
		}
		s.Links[a.Name] = value
	}
	c.learn(index)
	err = errors.Join(
		c.dumpWireGuard(ctx, s),
		c.dumpAddrs(ctx, s, names.ours),
		c.dumpNeighs(ctx, s, names.ours),
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
	switch v := link.(type) {
	case *netlink.Vxlan:
		l.VNI, l.Port, l.Parent = uint32(v.VxlanId), uint16(v.Port), v.VtepDevIndex
		l.Local = addrOf(v.SrcAddr)
		l.Learning, l.GBP, l.Extra = v.Learning, v.GBP, extra(v)
	case *netlink.Iptun:
		l.Local, l.Parent, l.Extra = someAddr(v.Local), a.ParentIndex, tunnelExtra(someAddr(v.Remote), v.FlowBased)
	case *netlink.Ip6tnl:
		l.Local, l.Parent, l.Extra = someAddr(v.Local), a.ParentIndex, tunnelExtra(someAddr(v.Remote), v.FlowBased)
		if v.Flags&ignoreEncapLimit == 0 {
			l.Extra = strings.TrimSpace(fmt.Sprintf("%s encaplimit %d", l.Extra, v.EncapLimit))
		}
	}
	return l
}

// someAddr reads an address that may be "any", which we have no word for.
func someAddr(ip net.IP) netip.Addr {
	if a := addrOf(ip); a.IsValid() && !a.IsUnspecified() {
		return a
	}
	return netip.Addr{}
}

// tunnelExtra is extra for the devices that pack IP into IP.
func tunnelExtra(remote netip.Addr, external bool) string {
	switch {
	case external:
		return "external"
	case remote.IsValid():
		return "remote " + remote.String()
	}
	return ""
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
