package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PruneBridge removes from the pods' bridge its gateway address in a range that the node no longer has: the first of a
// range as long as one of keep, which is what the bridge plugin makes, but none of keep, with no pod living in the range.
// While it is there the plugin refuses every new pod. A cluster of before may have cut its ranges otherwise: as long as the
// bridge has no address of ours, which is when the plugin refuses, the first address of an IPv4 range of any length goes.
// Other addresses are somebody else's. No bridge is fine.
func (c *Conn) PruneBridge(name string, keep []netip.Prefix, pods Pods) ([]netip.Prefix, error) {
	link, err := c.handle.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("look up %s: %w", name, err)
	}
	addrs, err := c.handle.AddrList(link, netlink.FAMILY_ALL)
	if err != nil {
		return nil, fmt.Errorf("list the addresses of %s: %w", name, err)
	}
	settled := slices.ContainsFunc(addrs, func(a netlink.Addr) bool {
		p := prefixOf(a.IPNet)
		return p.Addr().Is4() && slices.Contains(keep, p)
	})
	var out []netip.Prefix
	for _, a := range addrs {
		p := prefixOf(a.IPNet)
		if !isOldGateway(p, keep, settled) || pods.livesIn(p) {
			continue
		}
		if err := c.handle.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return out, fmt.Errorf("remove %s from %s: %w", p, name, err)
		}
		out = append(out, p)
	}
	return out, nil
}

func isOldGateway(p netip.Prefix, keep []netip.Prefix, settled bool) bool {
	alike := func(k netip.Prefix) bool {
		return k.Addr().Is4() == p.Addr().Is4() && (k.Bits() == p.Bits() || p.Addr().Is4() && !settled)
	}
	return p.IsValid() && p.Addr() == p.Masked().Addr().Next() && !slices.Contains(keep, p) && slices.ContainsFunc(keep, alike)
}

func (p Pods) livesIn(prefix netip.Prefix) bool {
	for _, s := range p.Spaces {
		if slices.ContainsFunc(s.Addrs, prefix.Contains) {
			return true
		}
	}
	return len(p.Blind) > 0
}

// DropBridge removes the pods' bridge when no pod is attached to it any more, and reports whether it did.
func (c *Conn) DropBridge(name string) (bool, error) {
	link, err := c.handle.LinkByName(name)
	if errors.As(err, &netlink.LinkNotFoundError{}) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("look up %s: %w", name, err)
	}
	links, err := c.handle.LinkList()
	if err != nil {
		return false, fmt.Errorf("list the ports of %s: %w", name, err)
	}
	attached := slices.ContainsFunc(links, func(l netlink.Link) bool { return l.Attrs().MasterIndex == link.Attrs().Index })
	if link.Type() != "bridge" || attached {
		return false, nil
	}
	if err := c.handle.LinkDel(link); err != nil {
		return false, fmt.Errorf("remove %s: %w", name, err)
	}
	return true, nil
}
