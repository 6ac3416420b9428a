package kernel

import (
	"context"
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
		Rules: f.host.Rules, Release: f.host.Release,
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
		hops := []Hop{{Index: f.indexOf(r.Link), Via: r.Via}}
		h.Routes = append(h.Routes, HostRoute{Dst: k.Dst, Metric: k.Metric, Type: r.Type, Ours: r.Ours, Hops: hops})
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
	f.settle()
	f.poke(changeOurs)
	f.poke(changeHost)
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
