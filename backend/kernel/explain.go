package kernel

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// What an Apply can run into that somebody has to cure outside of weft. All of them may pass by themselves, so the
// loop goes on trying.
var (
	// ErrNoVXLAN means that the kernel was built without VXLAN, or its module is not there.
	ErrNoVXLAN = errors.New("kernel has no vxlan support: run `modprobe vxlan`; where there is no such module, install " +
		"the distribution's extra modules (linux-modules-extra-$(uname -r) or linux-modules-extra-raspi on Ubuntu)")
	// ErrPortTaken means that something else on the host has the UDP port or the VNI.
	ErrPortTaken = errors.New("the UDP port or VNI is taken")
	// ErrForeignRoute means that a route which is not ours leads to a peer's pods.
	ErrForeignRoute = errors.New("a route of somebody else is in the way")
	// ErrInterrupted means that a table changed faster than it could be read.
	ErrInterrupted = errors.New("the table changes while it is read")
	// ErrMACOverwritten means that the device does not keep the MAC it was made with.
	ErrMACOverwritten = errors.New("something else on the host keeps changing the device's MAC")
)

// explainLink says in plain words why a VXLAN device cannot be made.
func (c *Conn) explainLink(op Op, err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w (%w)", ErrNoVXLAN, err)
	case errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: %s (%w)", ErrPortTaken, c.portOwner(op), err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("the underlay device with index %d is gone: %w", op.Link.Parent, err)
	}
	return err
}

// portOwner names the device that keeps ours from coming up.
func (c *Conn) portOwner(op Op) string {
	links, _ := c.handle.LinkList() // half a list is good enough for a message
	for _, link := range links {
		v, ok := link.(*netlink.Vxlan)
		if ok && v.Name != op.Name && v.Port == int(op.Link.Port) {
			return portOwnerText(v.Name, linkValue(v), op.Link)
		}
	}
	return noPortOwnerText(op.Link.Port)
}

// portOwnerText names another VXLAN device and what about it is in our way.
func portOwnerText(name string, other, ours Link) string {
	why := "in another mode"
	if other.VNI == ours.VNI {
		why = "with our VNI"
	}
	if other.Extra != "" {
		why = "with " + other.Extra
	}
	return fmt.Sprintf("device %s (VNI %d, UDP port %d) uses the port %s; remove it, or set another Port or VNI for the cluster",
		name, other.VNI, other.Port, why)
}

func noPortOwnerText(port uint16) string {
	return fmt.Sprintf("no VXLAN device is to blame; `ss -ulpn 'sport = :%d'` shows who has the UDP port", port)
}

// explainRoute says why a gateway is refused. The kernel takes none that is an address of this host; and none of IPv6
// that a route to another device covers, unless that is the default route.
func (c *Conn) explainRoute(op Op, err error) error {
	if !errors.Is(err, unix.EINVAL) {
		return err
	}
	addrs, _ := c.handle.AddrList(nil, int(family(op.Route.Via)))
	for _, a := range addrs {
		if addrOf(a.IP) == op.Route.Via {
			return c.inTheWay(op, "address "+op.Route.Via.String(), a.LinkIndex, err)
		}
	}
	routes, _ := c.handle.RouteList(nil, int(family(op.Route.Via)))
	for _, r := range routes {
		dst := prefixOf(r.Dst)
		if dst.Bits() > 0 && dst.Contains(op.Route.Via) && !c.isOurIndex(r.LinkIndex) {
			return c.inTheWay(op, "route to "+dst.String(), r.LinkIndex, err)
		}
	}
	return err
}

// inTheWay names something of this host that overlaps the pod network.
func (c *Conn) inTheWay(op Op, what string, index int, err error) error {
	text := fmt.Sprintf("interface %s has the %s, where %s are the pods of a peer: the pod network must not overlap a network "+
		"of this host", c.linkName(index), what, op.Key.Dst)
	if err == nil {
		return fmt.Errorf("%w: %s", ErrForeignRoute, text)
	}
	return fmt.Errorf("%w: %s (%w)", ErrForeignRoute, text, err)
}

// linkName names a device for a message.
func (c *Conn) linkName(index int) string {
	link, err := c.handle.LinkByIndex(index)
	if err != nil {
		return fmt.Sprintf("with index %d", index)
	}
	return link.Attrs().Name
}
