package underlay

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// rank is how good an address is as the tunnel's own, best first. Addresses that float between nodes (a VIP on a
// fail-over, mostly a /32 or a secondary address) are at the end: two nodes that announce one address cut each other
// off, so nothing but the operator's word makes us take one while there is another.
type rank int

const (
	isInternalIP rank = iota
	isAnnounced
	isPreferredSource
	isInGatewaySubnet
	isRegular
	isFloating
)

func (r rank) String() string {
	return [...]string{
		"the address is the Node's InternalIP",
		"the address is announced already",
		"the address is the route's preferred source",
		"the address is in the gateway's subnet",
		"the first address of the interface",
		"the only kind of address there is on the interface",
	}[r]
}

// way is what the route that leads through a device says about the address to use on it.
type way struct {
	source   netip.Addr   // preferred source, may be invalid
	gateways []netip.Addr // next hops
}

// bestAddr chooses an address of a device.
func (v view) bestAddr(l kernel.HostLink, w way) (netip.Addr, string, error) {
	usable := v.usable(l)
	if len(usable) == 0 {
		return netip.Addr{}, "", v.noAddr(l)
	}
	best := slices.MinFunc(usable, func(a, b kernel.HostAddr) int { // the first of equal ones: the kernel's order
		return cmp.Or(
			cmp.Compare(weight(a.LinkLocal), weight(b.LinkLocal)),
			cmp.Compare(v.rank(a, w), v.rank(b, w)),
			cmp.Compare(weight(!a.Permanent), weight(!b.Permanent)),
			cmp.Compare(weight(a.Temporary), weight(b.Temporary)),
		)
	})
	return best.Prefix.Addr(), v.rank(best, w).String(), nil
}

// weight orders by a property that nobody wants: what has it comes last.
func weight(unwanted bool) int {
	if unwanted {
		return 1
	}
	return 0
}

func (v view) rank(a kernel.HostAddr, w way) rank {
	addr := a.Prefix.Addr()
	regular := !a.Secondary && !a.Temporary && !a.Prefix.IsSingleIP()
	switch {
	case addr == v.opt.InternalIP:
		return isInternalIP
	case addr == v.opt.Announced && addr != v.opt.Overwrite && regular:
		return isAnnounced
	case addr == w.source:
		return isPreferredSource
	case !regular:
		return isFloating
	case slices.ContainsFunc(w.gateways, a.Prefix.Contains):
		return isInGatewaySubnet
	}
	return isRegular
}

// usable lists the addresses of a device that can be a tunnel's own, in the kernel's order. A link-local IPv6 address means
// nothing without the device that a packet leaves by, so it cannot be told to other nodes.
func (v view) usable(l kernel.HostLink) []kernel.HostAddr {
	var list []kernel.HostAddr
	for _, a := range v.host.Addrs {
		addr := a.Prefix.Addr()
		unicast := addr.IsGlobalUnicast() || addr.IsLinkLocalUnicast() && addr.Is4()
		_, pod := v.podNetwork(addr)
		if a.Index == l.Index && subnet.FamilyOf(addr) == v.opt.Family && unicast && !a.Deprecated && !a.Duplicate && !pod {
			list = append(list, a)
		}
	}
	return list
}

// noAddr says why a device has no usable address.
func (v view) noAddr(l kernel.HostLink) error {
	for _, a := range v.host.Addrs {
		n, pod := v.podNetwork(a.Prefix.Addr())
		if a.Index == l.Index && subnet.FamilyOf(a.Prefix.Addr()) == v.opt.Family && pod {
			return fmt.Errorf("address %s of %s lies in the pod network %s", a.Prefix.Addr(), l.Name, n)
		}
	}
	for _, a := range v.host.Addrs {
		if a.Index == l.Index && a.Duplicate && subnet.FamilyOf(a.Prefix.Addr()) == v.opt.Family {
			return fmt.Errorf("%s has %s, and so has another machine on the link: duplicate address detection failed, see dmesg", l.Name, a.Prefix.Addr())
		}
	}
	for _, a := range v.host.Addrs {
		if addr := a.Prefix.Addr(); a.Index == l.Index && a.LinkLocal && subnet.FamilyOf(addr) == v.opt.Family {
			return fmt.Errorf("%s has no %s address but the link-local %s, which means nothing to other nodes: give it a global or a unique local one",
				l.Name, v.opt.Family, addr)
		}
	}
	return fmt.Errorf("%s has no usable %s address", l.Name, v.opt.Family)
}

func (v view) podNetwork(addr netip.Addr) (netip.Prefix, bool) {
	i := slices.IndexFunc(v.opt.PodNetworks, func(n netip.Prefix) bool { return n.Contains(addr) })
	if i < 0 {
		return netip.Prefix{}, false
	}
	return v.opt.PodNetworks[i], true
}
