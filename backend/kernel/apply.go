package kernel

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// Apply carries out one Op. It does not matter whether the kernel is there already: setting what is set and removing
// what is gone succeed. The error says what was tried, in the words of the ip command, and in plain words what to do
// about it where we know.
func (c *Conn) Apply(ctx context.Context, op Op) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	if op.Kind != RouteSet {
		c.settle() // before a device goes, or the way back
	}
	err := c.apply(op)
	if errors.Is(err, unix.EPERM) {
		err = fmt.Errorf("the agent lacks CAP_NET_ADMIN: %w", err)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	return nil
}

func (c *Conn) apply(op Op) error {
	switch op.Kind {
	case LinkAdd:
		return c.addLink(op)
	case LinkSet:
		return c.setLink(op)
	case LinkDel:
		return c.delLink(op.Name)
	case LinkMove:
		return c.moveLink(op)
	case AddrSet, AddrDel:
		return c.applyAddr(op)
	case NeighSet, NeighDel:
		return c.applyNeigh(op)
	case FDBSet:
		return c.setFDB(op)
	case FDBDel:
		return c.delFDB(op.FDBKey)
	case PeerSet:
		return c.setPeer(op)
	case RangeDel:
		return c.delRange(op)
	case PeerDel:
		return c.delPeer(op.PeerKey)
	case RouteSet:
		return c.setRoute(op)
	case RouteDel:
		return c.delRoute(op)
	}
	return errors.New("no such kind of change")
}

func (c *Conn) applyAddr(op Op) error {
	index, err := c.lookup(op.Addr.Link)
	if err != nil {
		return gone(op.Kind == AddrDel, err)
	}
	link := &netlink.Device{LinkAttrs: netlink.LinkAttrs{Index: index}}
	addr := &netlink.Addr{IPNet: ipNet(op.Addr.Prefix)}
	if op.Kind == AddrDel {
		return gone(true, c.handle.AddrDel(link, addr))
	}
	if op.Addr.Prefix.Addr().Is6() {
		addr.Flags = unix.IFA_F_NODAD // nobody else on this link can have it, and a tentative address is of no use
	}
	return c.handle.AddrReplace(link, addr)
}

func (c *Conn) applyNeigh(op Op) error {
	index, err := c.lookup(op.Neigh.Link)
	if err != nil {
		return gone(op.Kind == NeighDel, err)
	}
	e := neighMsg{family: family(op.Neigh.IP), index: index, dst: op.Neigh.IP}
	if op.Kind == NeighDel {
		return gone(true, c.sendNeigh(unix.RTM_DELNEIGH, 0, e))
	}
	e.mac, e.state = op.MAC, unix.NUD_PERMANENT
	return c.sendNeigh(unix.RTM_NEWNEIGH, unix.NLM_F_CREATE|unix.NLM_F_REPLACE, e)
}

// gone turns "it is not there" into success for a removal.
func gone(removal bool, err error) error {
	missing := []error{unix.ENOENT, unix.ESRCH, unix.ENODEV, unix.ENXIO, unix.EADDRNOTAVAIL}
	for _, errno := range missing {
		if removal && errors.Is(err, errno) {
			return nil
		}
	}
	return err
}

func family(a netip.Addr) uint8 {
	if a.Is4() {
		return unix.AF_INET
	}
	return unix.AF_INET6
}

func ipNet(p netip.Prefix) *net.IPNet {
	return &net.IPNet{IP: p.Addr().AsSlice(), Mask: net.CIDRMask(p.Bits(), p.Addr().BitLen())}
}

func hardware(m subnet.MAC) net.HardwareAddr { return net.HardwareAddr(m[:]) }
