package kernel

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// macTries is how often a MAC is set back that something else overwrites.
const macTries = 3

// addLink makes a device. The kernel makes it with its MAC and up at once, and takes it away again when it cannot come
// up, so that nothing half-made remains.
func (c *Conn) addLink(op Op) error {
	message, err := linkMessage(op)
	if err != nil {
		return err
	}
	err = c.handle.LinkAdd(message)
	if errors.Is(err, unix.EEXIST) {
		if found, rerr := c.renameBack(op); found {
			return rerr
		}
	}
	if err != nil {
		return c.explainLink(op, err)
	}
	switch op.Link.Kind {
	case KindVXLAN:
		return c.keepMAC(op)
	case KindWireGuard:
		return c.startWireGuard(op)
	}
	return nil
}

// linkMessage is a device as the library takes it. What packs IP into IP copies TTL and DF from the inner packet, as flannel's
// do, and adds no header that says how often a packet may be packed: it would take 8 more bytes.
func linkMessage(op Op) (netlink.Link, error) {
	l := op.Link
	attrs := netlink.NewLinkAttrs()
	attrs.Name, attrs.MTU = op.Name, l.MTU
	if l.Up && l.Kind != KindWireGuard {
		attrs.Flags = net.FlagUp
	}
	switch l.Kind {
	case KindVXLAN:
		attrs.HardwareAddr = hardware(l.MAC)
		return &netlink.Vxlan{
			LinkAttrs: attrs, VxlanId: int(l.VNI), VtepDevIndex: l.Parent, SrcAddr: l.Local.AsSlice(),
			Port: int(l.Port), Learning: l.Learning, GBP: l.GBP, UDPCSum: true,
		}, nil
	case KindWireGuard:
		return &netlink.Wireguard{LinkAttrs: attrs}, nil
	case KindIPIP:
		return &netlink.Iptun{LinkAttrs: attrs, Link: uint32(l.Parent), Local: l.Local.AsSlice(), Proto: unix.IPPROTO_IPIP}, nil
	case KindIP6Tnl:
		return &netlink.Ip6tnl{
			LinkAttrs: attrs, Link: uint32(l.Parent), Local: l.Local.AsSlice(), Remote: net.IPv6unspecified,
			Flags: ignoreEncapLimit, Proto: unix.IPPROTO_IPV6,
		}, nil
	}
	return nil, fmt.Errorf("make a device of kind %q: there is none of ours", l.Kind)
}

// ignoreEncapLimit is IP6_TNL_F_IGN_ENCAP_LIMIT of linux/ip6_tunnel.h.
const ignoreEncapLimit = 1

// keepMAC reads the MAC back: udev and NetworkManager have rules that overwrite it, and peers must not be told an address that
// the device does not have.
func (c *Conn) keepMAC(op Op) error {
	for range macTries {
		link, err := c.handle.LinkByName(op.Name)
		if err != nil {
			return fmt.Errorf("read it back: %w", notFound(err))
		}
		c.note(op.Name, link.Attrs().Index)
		if macOf(link.Attrs().HardwareAddr) == op.Link.MAC {
			return c.makeSoftChecksum(link.Attrs().Index, op.Link)
		}
		if err := c.handle.LinkSetHardwareAddr(link, hardware(op.Link.MAC)); err != nil {
			return fmt.Errorf("set its address back: %w", err)
		}
	}
	return fmt.Errorf("%w: tell udev (MACAddressPolicy=none in a .link file for flannel*) and NetworkManager "+
		"(unmanaged-devices) to leave it alone", ErrMACOverwritten)
}

// startWireGuard gives a new device its key and port before it comes up, or takes it away again.
func (c *Conn) startWireGuard(op Op) error {
	link, err := c.handle.LinkByName(op.Name)
	if err != nil {
		return fmt.Errorf("read it back: %w", notFound(err))
	}
	err = c.setWireGuard(op.Name, op.Link, Link{})
	if err == nil && op.Link.Up {
		err = c.handle.LinkSetUp(link)
	}
	if err != nil {
		return errors.Join(c.explainLink(op, err), c.handle.LinkDel(link))
	}
	c.note(op.Name, link.Attrs().Index)
	return nil
}

// renameBack finds our device under a name that somebody gave it, and reports whether there is one. Nobody else has a device
// with our VNI, port and MAC; the kernel has room for one only. One under a name of ours is where Diff has seen it.
func (c *Conn) renameBack(op Op) (bool, error) {
	links, err := c.handle.LinkList()
	if err != nil {
		return false, err
	}
	for _, link := range links {
		have := linkValue(link)
		if IsDeviceName(link.Attrs().Name) || have.Kind != KindVXLAN || op.Link.Kind != KindVXLAN || have.VNI != op.Link.VNI || have.Port != op.Link.Port || have.MAC != op.Link.MAC {
			continue
		}
		err := c.moveLink(Op{Name: link.Attrs().Name, To: op.Name})
		if err == nil {
			err = c.setLink(op)
		}
		return true, err
	}
	return false, nil
}

// setLink changes what can be changed on a live device, and only that which differs.
func (c *Conn) setLink(op Op) error {
	link, err := c.handle.LinkByName(op.Name)
	if err != nil {
		return fmt.Errorf("find it: %w", notFound(err))
	}
	c.note(op.Name, link.Attrs().Index)
	have := linkValue(link)
	if have.Kind == KindWireGuard {
		if err := c.changeWireGuard(op); err != nil {
			return err
		}
	}
	if have.Learning != op.Link.Learning {
		if err := c.setLearning(have.Index, op.Link.Learning); err != nil {
			return fmt.Errorf("set learning: %w", err)
		}
	}
	if have.MTU != op.Link.MTU {
		if err := c.handle.LinkSetMTU(link, op.Link.MTU); err != nil {
			return fmt.Errorf("set MTU: %w", err)
		}
	}
	if have.MAC != op.Link.MAC {
		if err := c.handle.LinkSetHardwareAddr(link, hardware(op.Link.MAC)); err != nil {
			return fmt.Errorf("set address: %w", err)
		}
	}
	if err := c.makeSoftChecksum(have.Index, op.Link); err != nil {
		return err
	}
	switch {
	case op.Link.Up && !have.Up:
		if err := c.handle.LinkSetUp(link); err != nil {
			return c.explainLink(op, err)
		}
	case have.Up && !op.Link.Up:
		return c.handle.LinkSetDown(link)
	}
	return nil
}

// makeSoftChecksum switches the checksum offload off where that is wanted.
func (c *Conn) makeSoftChecksum(index int, want Link) error {
	if !want.SoftChecksum || c.softChecksum(index) {
		return nil
	}
	if err := c.setSoftChecksum(index, true); err != nil {
		return fmt.Errorf("switch %s off: %w", checksumFeature, err)
	}
	return nil
}

// setLearning sends the one attribute alone: the kernel refuses a change request that repeats most of the others.
func (c *Conn) setLearning(index int, on bool) error {
	req := c.request(unix.RTM_NEWLINK, unix.NLM_F_ACK)
	msg := nl.NewIfInfomsg(unix.AF_UNSPEC)
	msg.Index = int32(index)
	req.AddData(msg)
	value := uint8(0)
	if on {
		value = 1
	}
	info := nl.NewRtAttr(unix.IFLA_LINKINFO, nil)
	info.AddRtAttr(nl.IFLA_INFO_KIND, nl.NonZeroTerminated("vxlan"))
	info.AddRtAttr(nl.IFLA_INFO_DATA, nil).AddRtAttr(nl.IFLA_VXLAN_LEARNING, nl.Uint8Attr(value))
	req.AddData(info)
	_, err := req.Execute(unix.NETLINK_ROUTE, 0)
	return err
}

func (c *Conn) delLink(name string) error {
	link, err := c.handle.LinkByName(name)
	if err != nil {
		return gone(true, notFound(err))
	}
	c.note(name, 0)
	return gone(true, c.handle.LinkDel(link))
}

// moveLink renames a device that is up, which Linux allows from 6.2 on.
func (c *Conn) moveLink(op Op) error {
	link, err := c.handle.LinkByName(op.Name)
	if err != nil {
		return fmt.Errorf("find it: %w", notFound(err))
	}
	err = c.handle.LinkSetName(link, op.To)
	if errors.Is(err, unix.EBUSY) {
		return c.moveWhileDown(link, op)
	}
	if err != nil {
		return err
	}
	c.note(op.Name, 0)
	c.note(op.To, link.Attrs().Index)
	return nil
}
