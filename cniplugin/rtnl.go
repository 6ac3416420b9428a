package main

import (
	"encoding/binary"
	"errors"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/nl"
)

// rtnl is the kernel's links and addresses (rtnetlink(7)), in the namespace of the thread that opened it.
type rtnl struct{ *nl.Conn }

func openRtnl() (rtnl, error) {
	c, err := nl.Dial(unix.NETLINK_ROUTE)
	if err != nil {
		return rtnl{}, err
	}
	if err := c.Strict(); err != nil { // a dump costs more with every pod, unless the kernel looks at what it is asked for
		c.Close()
		return rtnl{}, err
	}
	return rtnl{c}, nil
}

// address is one of an interface.
type address struct {
	prefix netip.Prefix
	flags  uint32 // IFA_F_...
}

// unsettled tells that nothing can be sent from an address yet, or ever: it waits for the detection of duplicates, or was
// found to be one.
func (a address) unsettled() bool { return a.flags&(unix.IFA_F_TENTATIVE|unix.IFA_F_DADFAILED) != 0 }

func afOf(f subnet.Family) uint8 { return [2]uint8{unix.AF_INET, unix.AF_INET6}[f] }

// addrs lists the addresses that an interface has in a family, in the kernel's order.
func (c rtnl) addrs(index int, f subnet.Family) (out []address, err error) {
	err = c.Dump(nl.Request{Kind: unix.RTM_GETADDR, Body: ifaddrmsg(index, netip.Prefix{}, f)}, func(b []byte) {
		// A kernel without IPv6 answers with all it has when it is asked for that.
		if len(b) < unix.SizeofIfAddrmsg || b[0] != afOf(f) || int(binary.NativeEndian.Uint32(b[4:])) != index {
			return
		}
		attrs := nl.Attrs(b[unix.SizeofIfAddrmsg:])
		a := address{flags: uint32(b[2])}
		if flags := attrs[unix.IFA_FLAGS]; len(flags) == 4 {
			a.flags = binary.NativeEndian.Uint32(flags)
		}
		local := attrs[unix.IFA_LOCAL]
		if local == nil {
			local = attrs[unix.IFA_ADDRESS]
		}
		if addr, ok := netip.AddrFromSlice(local); ok {
			a.prefix = netip.PrefixFrom(addr, int(b[1]))
			out = append(out, a)
		}
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) { // a kernel without the family
		return nil, nil
	}
	return out, err
}

// addAddr gives an interface an address, which it can send from at once: the kernel looks for no duplicate. One that is
// there is fine.
func (c rtnl) addAddr(index int, p netip.Prefix) error {
	f := subnet.FamilyOf(p.Addr())
	body := append(ifaddrmsg(index, p, f), nl.Attr(unix.IFA_LOCAL, p.Addr().AsSlice())...)
	body = append(body, nl.Attr(unix.IFA_ADDRESS, p.Addr().AsSlice())...)
	switch {
	case f == subnet.IPv6:
		body = append(body, nl.Number(unix.IFA_FLAGS, unix.IFA_F_NODAD)...)
	case p.Bits() < 31:
		body = append(body, nl.Attr(unix.IFA_BROADCAST, lastOf(p).AsSlice())...)
	}
	err := c.Do(nl.Request{Kind: unix.RTM_NEWADDR, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: body})
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// delAddr takes an address away; one that is not there is fine.
func (c rtnl) delAddr(index int, p netip.Prefix) error {
	body := append(ifaddrmsg(index, p, subnet.FamilyOf(p.Addr())), nl.Attr(unix.IFA_LOCAL, p.Addr().AsSlice())...)
	err := c.Do(nl.Request{Kind: unix.RTM_DELADDR, Body: body})
	if errors.Is(err, unix.EADDRNOTAVAIL) {
		return nil
	}
	return err
}

// ifaddrmsg is struct ifaddrmsg.
func ifaddrmsg(index int, p netip.Prefix, f subnet.Family) []byte {
	return binary.NativeEndian.AppendUint32([]byte{afOf(f), uint8(max(p.Bits(), 0)), 0, 0}, uint32(index))
}

// lastOf is the last address of an IPv4 prefix.
func lastOf(p netip.Prefix) netip.Addr {
	a := p.Masked().Addr().As4()
	n := binary.BigEndian.Uint32(a[:]) | 1<<(32-p.Bits()) - 1
	binary.BigEndian.PutUint32(a[:], n)
	return netip.AddrFrom4(a)
}

// neighbours reads the entries of an interface in a family that have a MAC which the kernel learned. One that somebody set
// by hand says nothing of who lives.
func (c rtnl) neighbours(index int, f subnet.Family, into map[netip.Addr][6]byte) error {
	const header = unix.SizeofNdMsg
	body := append(make([]byte, header), nl.Number(unix.NDA_IFINDEX, uint32(index))...)
	body[0] = afOf(f)
	err := c.Dump(nl.Request{Kind: unix.RTM_GETNEIGH, Body: body}, func(b []byte) {
		if len(b) < header || b[0] != afOf(f) || int(binary.NativeEndian.Uint32(b[4:])) != index {
			return
		}
		if state := binary.NativeEndian.Uint16(b[8:]); state&(unix.NUD_PERMANENT|unix.NUD_NOARP) != 0 {
			return
		}
		attrs := nl.Attrs(b[header:])
		addr, ok := netip.AddrFromSlice(attrs[unix.NDA_DST])
		if mac := attrs[unix.NDA_LLADDR]; ok && len(mac) == 6 {
			into[addr] = [6]byte(mac)
		}
	})
	if errors.Is(err, unix.EOPNOTSUPP) || errors.Is(err, unix.EAFNOSUPPORT) {
		return nil
	}
	return err
}

// delNeighbour takes an entry away, and drops what waits in it; one that is not there is fine.
func (c rtnl) delNeighbour(index int, a netip.Addr) error {
	body := make([]byte, unix.SizeofNdMsg)
	body[0] = afOf(subnet.FamilyOf(a))
	binary.NativeEndian.PutUint32(body[4:], uint32(index))
	err := c.Do(nl.Request{Kind: unix.RTM_DELNEIGH, Body: append(body, nl.Attr(unix.NDA_DST, a.AsSlice())...)})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// link tells what an interface is, "bridge" for instance, and its MAC.
func (c rtnl) link(index int) (kind string, mac [6]byte, err error) {
	out, seq := c.Frame(nl.Request{Kind: unix.RTM_GETLINK, Flags: unix.NLM_F_ACK, Body: ifinfomsg(index, 0)})
	err = c.Exchange(out, seq, seq, func(b []byte) {
		if len(b) < unix.SizeofIfInfomsg {
			return
		}
		attrs := nl.Attrs(b[unix.SizeofIfInfomsg:])
		kind = unix.ByteSliceToString(nl.Attrs(attrs[unix.IFLA_LINKINFO])[unix.IFLA_INFO_KIND])
		copy(mac[:], attrs[unix.IFLA_ADDRESS])
	})
	return kind, mac, err
}

// addBridge makes a bridge with a MAC of its own, which the ports that come and go do not change. One that is there is fine.
func (c rtnl) addBridge(name string, mtu int, mac [6]byte) error {
	body := append(ifinfomsg(0, 0), nl.Text(unix.IFLA_IFNAME, name)...)
	if mtu > 0 {
		body = append(body, nl.Number(unix.IFLA_MTU, uint32(mtu))...)
	}
	body = append(body, nl.Attr(unix.IFLA_ADDRESS, mac[:])...)
	body = append(body, nl.Attr(unix.IFLA_LINKINFO, nl.Text(unix.IFLA_INFO_KIND, "bridge"))...)
	err := c.Do(nl.Request{Kind: unix.RTM_NEWLINK, Flags: unix.NLM_F_CREATE | unix.NLM_F_EXCL, Body: body})
	if errors.Is(err, unix.EEXIST) {
		return nil
	}
	return err
}

// setMAC gives an interface a MAC, which counts as chosen from then on.
func (c rtnl) setMAC(index int, mac [6]byte) error {
	return c.Do(nl.Request{Kind: unix.RTM_SETLINK, Body: append(ifinfomsg(index, 0), nl.Attr(unix.IFLA_ADDRESS, mac[:])...)})
}

func (c rtnl) setUp(index int) error {
	return c.Do(nl.Request{Kind: unix.RTM_SETLINK, Body: ifinfomsg(index, unix.IFF_UP)})
}

// ifinfomsg is struct ifinfomsg; the flags given are to be set.
func ifinfomsg(index int, flags uint32) []byte {
	b := make([]byte, 4, unix.SizeofIfInfomsg)
	b = binary.NativeEndian.AppendUint32(b, uint32(index))
	b = binary.NativeEndian.AppendUint32(b, flags)
	return binary.NativeEndian.AppendUint32(b, flags)
}
