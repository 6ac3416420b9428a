package kernel

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// fakeHost is the host that a Fake starts with.
func fakeHost() Host {
	v4, v6 := netip.MustParsePrefix("192.168.50.1/24"), netip.MustParsePrefix("fd00:50::1/64")
	return Host{
		Links: []HostLink{
			{Index: 1, Name: "lo", Kind: "device", MTU: 65536, Up: true, Carrier: true, Loopback: true},
			{Index: 2, Name: "eth0", Kind: "device", MTU: 1500, Up: true, Carrier: true, MAC: subnet.MAC{2, 0, 0, 0, 0, 1}},
		},
		Addrs: []HostAddr{{Index: 2, Prefix: v4, Permanent: true}, {Index: 2, Prefix: v6, Permanent: true}},
		Routes: []HostRoute{
			{Dst: v4.Masked(), Src: v4.Addr(), Type: "unicast", Hops: []Hop{{Index: 2}}},
			{Dst: v6.Masked(), Metric: 256, Type: "unicast", Hops: []Hop{{Index: 2}}},
		},
	}
}

// Host returns the host's configuration, with our devices and their addresses and routes in it.
func (f *Fake) Host(ctx context.Context) (Host, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	h := Host{
		Links: slices.Clone(f.host.Links), Addrs: slices.Clone(f.host.Addrs), Routes: slices.Clone(f.host.Routes),
		Rules: f.host.Rules,
	}
	for _, name := range slices.Sorted(maps.Keys(f.state.Links)) {
		l := f.state.Links[name]
		h.Links = append(h.Links, HostLink{
			Index: l.Index, Name: name, Kind: l.Kind, MTU: l.MTU, Up: l.Up, Carrier: l.Up, MAC: l.MAC, VNI: l.VNI, Port: l.Port,
		})
	}
	for a := range f.state.Addrs {
		h.Addrs = append(h.Addrs, HostAddr{Index: f.state.Links[a.Link].Index, Prefix: a.Prefix, Permanent: true})
	}
	for k, r := range f.state.Routes {
		hops := []Hop{{Index: f.state.Links[r.Link].Index, Via: r.Via}}
		h.Routes = append(h.Routes, HostRoute{Dst: k.Dst, Metric: k.Metric, Type: r.Type, Hops: hops})
	}
	return h, ctx.Err()
}

// EditHost changes the rest of the host at will. Devices of ours whose underlay device is gone afterwards are gone
// too.
func (f *Fake) EditHost(change func(h *Host)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.host)
	for name, l := range f.state.Links {
		if _, ok := f.parent(l.Parent); !ok && l.Parent != 0 {
			f.delLink(name)
		}
	}
	f.poke(changeOurs)
	f.poke(changeHost)
}

func (f *Fake) parent(index int) (HostLink, bool) {
	i := slices.IndexFunc(f.host.Links, func(l HostLink) bool { return l.Index == index })
	if i < 0 {
		return HostLink{}, false
	}
	return f.host.Links[i], true
}

// maxMTU is what fits into the underlay with a header of the outer family around it; 0 without an underlay device.
func (f *Fake) maxMTU(l Link) int {
	parent, ok := f.parent(l.Parent)
	switch {
	case !ok:
		return 0
	case l.Local.Is6():
		return parent.MTU - 70
	}
	return parent.MTU - 50
}

func (f *Fake) addLink(op Op) error {
	if _, ok := f.state.Links[op.Name]; ok {
		return unix.EEXIST
	}
	l := op.Link
	if _, ok := f.parent(l.Parent); !ok && l.Parent != 0 {
		return fmt.Errorf("the underlay device with index %d is gone: %w", l.Parent, unix.ENODEV)
	}
	if err := f.portFree(op.Name, l); err != nil {
		return err
	}
	if m := f.maxMTU(l); m != 0 {
		l.MTU = min(l.MTU, m)
	}
	f.index++
	l.Index = f.index
	f.state.Links[op.Name] = l
	return nil
}

// portFree finds the VXLAN device that keeps another from coming up.
func (f *Fake) portFree(name string, l Link) error {
	taken := func(other string, o Link, errno error) error {
		return fmt.Errorf("%w: %s (%w)", ErrPortTaken, portOwnerText(other, o, l), errno)
	}
	for other, o := range f.state.Links {
		switch {
		case other == name || o.Port != l.Port || o.Local.Is6() != l.Local.Is6():
		case o.VNI == l.VNI:
			return taken(other, o, unix.EEXIST)
		case o.Up && l.Up && (o.GBP != l.GBP || o.Extra != l.Extra): // a device that is down has no socket
			return taken(other, o, unix.EADDRINUSE)
		}
	}
	for _, o := range f.host.Links {
		if o.Kind == "vxlan" && o.Port == l.Port && o.VNI == l.VNI {
			return taken(o.Name, Link{VNI: o.VNI, Port: o.Port}, unix.EEXIST)
		}
	}
	return nil
}

func (f *Fake) setLink(op Op) error {
	have, ok := f.state.Links[op.Name]
	if !ok {
		return unix.ENODEV
	}
	if m := f.maxMTU(have); m != 0 && op.Link.MTU > m {
		return fmt.Errorf("set MTU: %w", unix.EINVAL)
	}
	if have.MAC != op.Link.MAC {
		f.flush(op.Name, false)
	}
	wasUp := have.Up
	have.MTU, have.MAC, have.Learning = op.Link.MTU, op.Link.MAC, op.Link.Learning
	have.SoftChecksum = have.SoftChecksum || op.Link.SoftChecksum
	f.state.Links[op.Name] = have
	have.Up = op.Link.Up
	if err := f.portFree(op.Name, have); have.Up && !wasUp && err != nil {
		return err // the rest is changed by then
	}
	if wasUp && !have.Up {
		f.flush(op.Name, true)
	}
	f.state.Links[op.Name] = have
	return nil
}

// flush takes a device's neighbours away, and when it goes down also its routes, its IPv6 addresses and what it
// learned. Permanent forwarding entries stay.
func (f *Fake) flush(link string, down bool) {
	maps.DeleteFunc(f.state.Neighs, func(n Neigh, _ subnet.MAC) bool { return n.Link == link })
	if !down {
		return
	}
	maps.DeleteFunc(f.state.Routes, func(_ RouteKey, r Route) bool { return r.Link == link })
	maps.DeleteFunc(f.state.Addrs, func(a Addr, _ struct{}) bool { return a.Link == link && a.Prefix.Addr().Is6() })
	maps.DeleteFunc(f.state.FDB, func(k FDBKey, d FDBDest) bool { return k.Link == link && d.Learned })
}

func (f *Fake) delLink(name string) {
	d := differ{have: f.state}
	d.drop(name)
	f.state = d.have
}

func (f *Fake) moveLink(op Op) error {
	_, there := f.state.Links[op.Name]
	_, taken := f.state.Links[op.To]
	switch {
	case !there:
		return unix.ENODEV
	case taken:
		return unix.EEXIST
	}
	d := differ{have: f.state}
	d.rename(op.Name, op.To)
	f.state = d.have
	return nil
}

// lastAddrGone takes the routes and neighbours of a device away when its last IPv4 address went.
func (f *Fake) lastAddrGone(gone Addr) {
	if gone.Prefix.Addr().Is6() {
		return
	}
	for a := range f.state.Addrs {
		if a.Link == gone.Link && a.Prefix.Addr().Is4() {
			return
		}
	}
	maps.DeleteFunc(f.state.Routes, func(k RouteKey, r Route) bool { return r.Link == gone.Link && k.Dst.Addr().Is4() })
	maps.DeleteFunc(f.state.Neighs, func(n Neigh, _ subnet.MAC) bool { return n.Link == gone.Link && n.IP.Is4() })
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

// isElsewhere reports whether a route to another device covers an IPv6 gateway.
func (f *Fake) isElsewhere(op Op) bool {
	for k, r := range f.state.Routes {
		if k.Dst.Addr().Is6() && k.Dst.Contains(op.Route.Via) && r.Link != op.Route.Link && r.Type == "unicast" {
			return true
		}
	}
	return false
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

// dropDirect removes flannel's direct route to a peer, which gives way to ours.
func (f *Fake) dropDirect(op Op) {
	f.host.Routes = slices.DeleteFunc(f.host.Routes, func(r HostRoute) bool {
		return r.Dst == op.Key.Dst && r.Metric == op.Key.Metric && len(r.Hops) == 1 && op.Direct.IsValid() && r.Hops[0].Via == op.Direct
	})
}
