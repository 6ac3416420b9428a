package kernel

import (
	"fmt"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"
)

func (f *Fake) setRoute(op Op) error {
	if op.Route.Type == "unicast" {
		if err := f.checkHop(op); err != nil {
			return err
		}
	}
	f.dropForeign(op)
	if owner, ok := f.foreignRoute(op.Key); ok {
		return fmt.Errorf("%w: interface %s has the route to %s: %w", ErrForeignRoute, owner, op.Key.Dst, unix.EEXIST)
	}
	f.state.Routes[op.Key] = op.Route
	return nil
}

// checkHop checks the device and the gateway of a route.
func (f *Fake) checkHop(op Op) error {
	up, ok := f.isUp(op.Route.Link)
	via := op.Route.Via
	switch {
	case !ok:
		return unix.ENODEV
	case !up:
		return unix.ENETDOWN
	case !via.IsValid():
		return nil
	case f.isLocal(via), op.Key.Dst.Contains(via) && f.isElsewhere(op):
		return fmt.Errorf("nexthop has invalid gateway: %w", unix.EINVAL)
	case !IsDeviceName(op.Route.Link) && !op.Route.Onlink && !f.isOnLink(op.Route.Link, via):
		return fmt.Errorf("%w: %s by %s: %w", ErrNotOnLink, via, op.Route.Link, unix.ENETUNREACH)
	}
	return nil
}

// isUp looks for a device, ours or the host's.
func (f *Fake) isUp(name string) (up, ok bool) {
	if l, ok := f.state.Links[name]; ok {
		return l.Up, true
	}
	if l, ok := f.hostLink(name); ok {
		return l.Up, true
	}
	return false, false
}

func (f *Fake) hostLink(name string) (HostLink, bool) {
	i := slices.IndexFunc(f.host.Links, func(l HostLink) bool { return l.Name == name })
	if i < 0 {
		return HostLink{}, false
	}
	return f.host.Links[i], true
}

// indexOf is the index of a device, ours or the host's.
func (f *Fake) indexOf(name string) int {
	if l, ok := f.state.Links[name]; ok {
		return l.Index
	}
	l, _ := f.hostLink(name)
	return l.Index
}

// isOnLink reports whether the host has a route without gateway to an address by a device.
func (f *Fake) isOnLink(name string, a netip.Addr) bool {
	index := f.indexOf(name)
	return slices.ContainsFunc(f.host.Routes, func(r HostRoute) bool {
		return r.Dst.Contains(a) && slices.ContainsFunc(r.Hops, func(h Hop) bool { return h.Index == index && !h.Via.IsValid() })
	})
}

// isLocal reports whether an address is one of the host's own.
func (f *Fake) isLocal(a netip.Addr) bool {
	for own := range f.state.Addrs {
		if own.Prefix.Addr() == a {
			return true
		}
	}
	return slices.ContainsFunc(f.host.Addrs, func(h HostAddr) bool { return h.Prefix.Addr() == a })
}

// isElsewhere reports whether a route of the host, as narrow as the wanted one, covers an IPv6 gateway that shall be reached by
// a device of ours.
func (f *Fake) isElsewhere(op Op) bool {
	via := op.Route.Via
	return via.Is6() && slices.ContainsFunc(f.host.Routes, func(r HostRoute) bool {
		return r.Dst.Bits() >= op.Key.Dst.Bits() && r.Dst.Contains(via)
	})
}

// foreignRoute finds the interface of a route on the same key that is not ours.
func (f *Fake) foreignRoute(key RouteKey) (string, bool) {
	for _, r := range f.host.Routes {
		if r.Dst != key.Dst || r.Metric != key.Metric {
			continue
		}
		for _, hop := range r.Hops {
			link, _ := f.parent(hop.Index)
			return link.Name, true
		}
		return "", true
	}
	return "", false
}

// dropForeign removes what gives way to a route of ours: flannel's direct route to a peer, and what the Op names.
func (f *Fake) dropForeign(op Op) {
	f.host.Routes = slices.DeleteFunc(f.host.Routes, func(r HostRoute) bool {
		isDirect := len(r.Hops) == 1 && op.Direct.IsValid() && r.Hops[0].Via == op.Direct
		return r.Dst == op.Key.Dst && r.Metric == op.Key.Metric && (isDirect || r.ByHand && (op.Regain || op.Foreign.Type != ""))
	})
}

// settle takes away what cannot be, after the host has changed: our routes by devices that are gone, down, or without an
// address of the family.
func (f *Fake) settle() {
	for k, r := range f.state.Routes {
		if r.Link == "" || IsDeviceName(r.Link) {
			continue
		}
		up, _ := f.isUp(r.Link)
		index := f.indexOf(r.Link)
		hasAddr := k.Dst.Addr().Is6() || slices.ContainsFunc(f.host.Addrs, func(a HostAddr) bool { return a.Index == index && a.Prefix.Addr().Is4() })
		if !up || !hasAddr {
			delete(f.state.Routes, k)
		}
	}
}
