package kernel

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// PruneBridge removes from a bridge the addresses that are none of keep and in whose range no pod lives. Such an
// address is left behind when the node was given another range, and the bridge plugin then refuses every pod. No
// bridge is fine.
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
	var out []netip.Prefix
	for _, a := range addrs {
		ip, ok := netip.AddrFromSlice(a.IP)
		ones, _ := a.Mask.Size()
		p := netip.PrefixFrom(ip.Unmap(), ones)
		if !ok || p.Addr().IsLinkLocalUnicast() || slices.Contains(keep, p) || pods.livesIn(p) {
			continue
		}
		if err := c.handle.AddrDel(link, &a); err != nil && !errors.Is(err, unix.EADDRNOTAVAIL) {
			return out, fmt.Errorf("remove %s from %s: %w", p, name, err)
		}
		out = append(out, p)
	}
	return out, nil
}

func (p Pods) livesIn(prefix netip.Prefix) bool {
	for _, s := range p.Spaces {
		if slices.ContainsFunc(s.Addrs, prefix.Contains) {
			return true
		}
	}
	return len(p.Blind) > 0
}
