package kernel

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"
)

// What an Apply can run into that somebody has to cure outside of weft. All of them may pass by themselves, so the
// loop goes on trying.
var (
	// ErrNoVXLAN means that the kernel was built without VXLAN, or its module is not there.
	ErrNoVXLAN = errors.New("kernel has no vxlan support: run `modprobe vxlan`; where there is no such module, install " + extraModules)
	// ErrNoWireGuard is the same for WireGuard, which Linux has since 5.6.
	ErrNoWireGuard = errors.New("kernel has no wireguard support: run `modprobe wireguard`; where there is no such module, install " + extraModules)
	// ErrNoTunnel is the same for IP in IP, which has a module for each family.
	ErrNoTunnel = errors.New("kernel has no support for IP in IP: run `modprobe ipip` for IPv4 and `modprobe ip6_tunnel` for IPv6; " +
		"where there is no such module, install " + extraModules)
	// ErrPortTaken means that something else on the host has the UDP port or the VNI.
	ErrPortTaken = errors.New("the UDP port or VNI is taken")
	// ErrForeignRoute means that a route which is not ours leads to a peer's pods.
	ErrForeignRoute = errors.New("a route of somebody else is in the way")
	// ErrNotOnLink means that a peer which is to be reached without a tunnel is behind a router.
	ErrNotOnLink = errors.New("the peer is not on the same link")
	// ErrInterrupted means that a table changed faster than it could be read.
	ErrInterrupted = errors.New("the table changes while it is read")
	// ErrMACOverwritten means that the device does not keep the MAC it was made with.
	ErrMACOverwritten = errors.New("something else on the host keeps changing the device's MAC")
)

// extraModules names the packages that hold what distributions leave out of their small kernels.
const extraModules = "the distribution's extra modules (linux-modules-extra-$(uname -r) or linux-modules-extra-raspi on Ubuntu, " +
	"kernel-modules-extra on Fedora and RHEL)"

// explainLink says in plain words why a device cannot be made.
func (c *Conn) explainLink(op Op, err error) error {
	switch {
	case errors.Is(err, unix.EOPNOTSUPP):
		return fmt.Errorf("%w (%w)", missingKind(op.Link.Kind), err)
	case errors.Is(err, unix.EADDRINUSE), errors.Is(err, unix.EEXIST):
		return fmt.Errorf("%w: %s (%w)", ErrPortTaken, c.portOwner(op), err)
	case errors.Is(err, unix.ENODEV):
		return fmt.Errorf("the underlay device with index %d is gone: %w", op.Link.Parent, err)
	}
	return err
}

func missingKind(kind string) error {
	switch kind {
	case KindWireGuard:
		return ErrNoWireGuard
	case KindIPIP, KindIP6Tnl:
		return ErrNoTunnel
	}
	return ErrNoVXLAN
}

// portOwner names the device that keeps ours from coming up.
func (c *Conn) portOwner(op Op) string {
	links, _ := c.handle.LinkList() // half a list is good enough for a message
	for _, link := range links {
		name, value := link.Attrs().Name, linkValue(link)
		if name == op.Name {
			continue
		}
		if value.Kind == KindWireGuard {
			if d, err := c.wgDevice(name); err == nil {
				value.Port = d.port
			}
		}
		switch {
		case isTunnel(op.Link) && value.Kind == op.Link.Kind && value.Local == op.Link.Local:
			return fmt.Sprintf("device %s has the same ends (local %s, remote any); remove it", name, value.Local)
		case value.Kind == KindVXLAN && value.Port == op.Link.Port:
			return portOwnerText(name, value, op.Link)
		case value.Kind == KindWireGuard && value.Port == op.Link.Port:
			return fmt.Sprintf("WireGuard device %s has UDP port %d; remove it, or set another ListenPort for the cluster", name, value.Port)
		}
	}
	return noPortOwnerText(op.Link.Port)
}

func isTunnel(l Link) bool { return l.Kind == KindIPIP || l.Kind == KindIP6Tnl }

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

// explainRoute says why a gateway is refused, or nil when nothing that is not ours is to blame. The kernel takes none that is an
// address of this host, none beyond another router, and none of IPv6 that a route to another device covers; a wider one than
// ours is nobody's fault, since ours wins over it once it is there.
func (c *Conn) explainRoute(op Op, err error) error {
	via := op.Route.Via
	addrs, _ := c.handle.AddrList(nil, int(family(via)))
	for _, a := range addrs {
		if addrOf(a.IP) == via {
			return c.inTheWay(op, "address "+via.String(), a.LinkIndex, err)
		}
	}
	if !op.Key.Dst.Contains(via) { // the gateway is on the underlay
		if IsDeviceName(op.Route.Link) {
			return nil
		}
		return fmt.Errorf("%w: %s by %s (%w)", ErrNotOnLink, via, op.Route.Link, err)
	}
	routes, _ := c.handle.RouteList(nil, int(family(via)))
	for _, r := range routes {
		dst := prefixOf(r.Dst)
		ours := r.Protocol == Protocol || c.isOurIndex(r.LinkIndex) || isDirect(r, op.Direct)
		if dst.Bits() >= op.Key.Dst.Bits() && dst.Contains(via) && !ours && !op.mayTake(r) {
			return c.inTheWay(op, "route to "+dst.String(), r.LinkIndex, err)
		}
	}
	return nil
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
