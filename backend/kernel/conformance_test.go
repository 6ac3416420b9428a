package kernel_test

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// step is an Op and what the kernel has to answer; nil is success.
type step struct {
	op   kernel.Op
	want error
}

func ok(ops ...kernel.Op) []step {
	var steps []step
	for _, op := range ops {
		steps = append(steps, step{op: op})
	}
	return steps
}

// conformance is what Fake and Conn have to agree on: each script starts on an empty host whose eth0 has the index
// parent, and ends in a state.
func conformance(parent int) []conformanceRow {
	return slices.Concat(vxlanManners(parent), wireGuardManners(parent), tunnelManners(parent))
}

// conformanceRow is one script. kinds are the kinds of device that a kernel has to know for it, besides VXLAN.
type conformanceRow struct {
	name  string
	steps []step
	want  string
	kinds []string
}

func vxlanManners(parent int) []conformanceRow {
	l, l6 := link(parent), link6(parent)
	first := ok(linkAdd(dev, l), addr(kernel.AddrSet, dev, "10.244.1.0/32"))
	peer := ok(
		fdb(kernel.FDBSet, dev, mac(2), "192.168.50.2", 0), neigh(kernel.NeighSet, dev, "10.244.2.0", mac(2)),
		route(kernel.RouteSet, dev, "10.244.2.0/24", "10.244.2.0"),
	)
	both := append(first[:len(first):len(first)], peer...)
	const (
		linkText  = "link flannel.1 mtu 1450 state UP address 0a:00:00:00:00:01 vxlan id 1 dev if2 local 192.168.50.1 dstport 8472 nolearning\n"
		addrText  = "addr 10.244.1.0/32 dev flannel.1\n"
		neighText = "neigh 10.244.2.0 dev flannel.1 lladdr 0a:00:00:00:00:02 PERMANENT\n"
		fdbText   = "fdb 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.2 self permanent\n"
		routeText = "route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink\n"
	)
	down := linkSet(dev, with(l, func(l *kernel.Link) { l.Up = false }))
	rows := []struct {
		name  string
		steps []step
		want  string
	}{
		{"one peer", both, linkText + addrText + neighText + fdbText + routeText},
		{"all set twice", then(both, both[1:]...), linkText + addrText + neighText + fdbText + routeText},
		{"a device cannot be made twice", then(first, step{linkAdd(dev, l), unix.EEXIST}), linkText + addrText},
		{"removing what is not there is success", ok(
			linkDel(dev), addr(kernel.AddrDel, dev, "10.244.1.0/32"), neigh(kernel.NeighDel, dev, "10.244.2.0", mac(2)),
			fdb(kernel.FDBDel, dev, mac(2), "192.168.50.2", 0), route(kernel.RouteDel, dev, "10.244.2.0/24", "10.244.2.0"),
		), ""},
		{"removing what is not there from a device is success", then(first, ok(
			addr(kernel.AddrDel, dev, "10.244.7.0/32"), neigh(kernel.NeighDel, dev, "10.244.2.0", mac(2)),
			fdb(kernel.FDBDel, dev, mac(2), "192.168.50.2", 0), route(kernel.RouteDel, dev, "10.244.2.0/24", "10.244.2.0"))...,
		), linkText + addrText},
		{"nothing can be set without its device", []step{
			{addr(kernel.AddrSet, dev, "10.244.1.0/32"), unix.ENODEV}, {neigh(kernel.NeighSet, dev, "10.244.2.0", mac(2)), unix.ENODEV},
			{fdb(kernel.FDBSet, dev, mac(2), "192.168.50.2", 0), unix.ENODEV}, {linkSet(dev, l), unix.ENODEV},
			{route(kernel.RouteSet, dev, "10.244.2.0/24", "10.244.2.0"), unix.ENODEV},
		}, ""},
		{"all goes with the device", then(both, ok(linkDel(dev))...), ""},
		{"routes and neighbours vanish when the link goes down, forwarding entries stay", then(both, step{op: down}),
			strings.Replace(linkText, "UP", "DOWN", 1) + addrText + fdbText},
		{"no route over a device that is down", then(first, step{op: down}, step{peer[2].op, unix.ENETDOWN}),
			strings.Replace(linkText, "UP", "DOWN", 1) + addrText},
		{"a new MAC flushes the neighbours", then(both, ok(linkSet(dev, with(l, func(l *kernel.Link) { l.MAC = mac(9) })))...),
			strings.Replace(linkText, ":01 ", ":09 ", 1) + addrText + fdbText + routeText},
		{"MTU and learning change on the living device", then(both, ok(linkSet(dev, with(l, func(l *kernel.Link) { l.MTU, l.Learning = 1400, true })))...),
			strings.NewReplacer("1450", "1400", "nolearning", "learning").Replace(linkText) + addrText + neighText + fdbText + routeText},
		{"an MTU beyond the underlay is refused, and cut when the device is made", then(
			ok(linkAdd(dev, with(l, func(l *kernel.Link) { l.MTU = 9000 }))),
			step{linkSet(dev, with(l, func(l *kernel.Link) { l.MTU = 1451 })), unix.EINVAL}), linkText},
		{"routes and neighbours go with the last address", then(both, ok(addr(kernel.AddrDel, dev, "10.244.1.0/32"))...), linkText + fdbText},
		{"routes stay while there is another address", then(both, ok(
			addr(kernel.AddrSet, dev, "10.244.9.0/32"), addr(kernel.AddrDel, dev, "10.244.1.0/32"))...),
			linkText + strings.Replace(addrText, "1.0", "9.0", 1) + neighText + fdbText + routeText},
		{"a gateway cannot be an own address", then(first,
			step{op: addr(kernel.AddrSet, dev, "10.244.2.0/32")}, step{peer[2].op, unix.EINVAL}),
			linkText + addrText + strings.Replace(addrText, "1.0", "2.0", 1)},
		{"replacing moves destination and MAC", then(both, ok(
			fdb(kernel.FDBSet, dev, mac(2), "192.168.50.3", 4789), neigh(kernel.NeighSet, dev, "10.244.2.0", mac(3)))...),
			linkText + addrText + strings.Replace(neighText, ":02 ", ":03 ", 1) + strings.Replace(fdbText, "50.2", "50.3 port 4789", 1) + routeText},
		{"the device's own port is no port", then(first, ok(fdb(kernel.FDBSet, dev, mac(2), "192.168.50.2", 8472))...), linkText + addrText + fdbText},
		{"another device has the VNI", then(first, step{linkAdd("flannel.2", l), kernel.ErrPortTaken}), linkText + addrText},
		{"another device has the port in another mode", then(first, step{
			linkAdd("flannel.2", with(l, func(l *kernel.Link) { l.VNI, l.GBP = 2, true })), kernel.ErrPortTaken}), linkText + addrText},
		{"two VNIs share a port, two families share all", then(first, ok(
			linkAdd("flannel.2", with(l, func(l *kernel.Link) { l.VNI = 2 })), linkAdd(dev6, l6))...),
			"link flannel-v6.1 mtu 1430 state UP address 0a:00:00:00:00:61 vxlan id 1 dev if2 local fd00:50::1 dstport 8472 nolearning\n" +
				linkText + strings.NewReplacer("flannel.1", "flannel.2", "id 1", "id 2").Replace(linkText) + addrText},
		{"an underlay device that is gone", []step{{linkAdd(dev, with(l, func(l *kernel.Link) { l.Parent = 4711 })), unix.ENODEV}}, ""},
		{"the underlay's own route is somebody else's", then(first,
			step{route(kernel.RouteSet, dev, "192.168.50.0/24", "192.168.50.7"), kernel.ErrForeignRoute}), linkText + addrText},
		{"IPv6", ok(linkAdd(dev6, l6), addr(kernel.AddrSet, dev6, "fd00:244:1::/128"), fdb(kernel.FDBSet, dev6, mac(2), "fd00:50::2", 0),
			neigh(kernel.NeighSet, dev6, "fd00:244:2::", mac(2)), route(kernel.RouteSet, dev6, "fd00:244:2::/64", "fd00:244:2::"),
			route(kernel.RouteSet, dev6, "fd00:244:3::/64", "fd00:244:3::"), route(kernel.RouteDel, dev6, "fd00:244:3::/64", "fd00:244:3::")),
			"link flannel-v6.1 mtu 1430 state UP address 0a:00:00:00:00:61 vxlan id 1 dev if2 local fd00:50::1 dstport 8472 nolearning\n" +
				"addr fd00:244:1::/128 dev flannel-v6.1\nneigh fd00:244:2:: dev flannel-v6.1 lladdr 0a:00:00:00:00:02 PERMANENT\n" +
				"fdb 0a:00:00:00:00:02 dev flannel-v6.1 dst fd00:50::2 self permanent\n" +
				"route fd00:244:2::/64 via fd00:244:2:: dev flannel-v6.1 proto 87 metric 1024 onlink\n"},
		{"an IPv6 route moves from device to device in place, though its gateway lies within it", ok(
			linkAdd(dev6, l6), linkAdd("flannel-v6.2", with(l6, func(l *kernel.Link) { l.VNI = 2 })),
			route(kernel.RouteSet, dev6, "fd00:244:2::/64", "fd00:244:2::"), replaced(route(kernel.RouteSet, "flannel-v6.2", "fd00:244:2::/64", "fd00:244:2::"))),
			"link flannel-v6.1 mtu 1430 state UP address 0a:00:00:00:00:61 vxlan id 1 dev if2 local fd00:50::1 dstport 8472 nolearning\n" +
				"link flannel-v6.2 mtu 1430 state UP address 0a:00:00:00:00:61 vxlan id 2 dev if2 local fd00:50::1 dstport 8472 nolearning\n" +
				"route fd00:244:2::/64 via fd00:244:2:: dev flannel-v6.2 proto 87 metric 1024 onlink\n"},
		{"IPv6 addresses, routes and neighbours vanish with the link", ok(linkAdd(dev6, l6), addr(kernel.AddrSet, dev6, "fd00:244:1::/128"),
			neigh(kernel.NeighSet, dev6, "fd00:244:2::", mac(2)), route(kernel.RouteSet, dev6, "fd00:244:2::/64", "fd00:244:2::"),
			linkSet(dev6, with(l6, func(l *kernel.Link) { l.Up = false }))),
			"link flannel-v6.1 mtu 1430 state DOWN address 0a:00:00:00:00:61 vxlan id 1 dev if2 local fd00:50::1 dstport 8472 nolearning\n"},
		{"V-08: checksums are computed in software, from the start or later", then(
			ok(linkAdd(dev, with(l, func(l *kernel.Link) { l.SoftChecksum = true })), linkAdd(dev6, l6)),
			ok(linkSet(dev, l), linkSet(dev6, with(l6, func(l *kernel.Link) { l.SoftChecksum = true })))...),
			"link flannel-v6.1 mtu 1430 state UP address 0a:00:00:00:00:61 vxlan id 1 dev if2 local fd00:50::1 dstport 8472 nolearning " +
				"tx-checksum-ip-generic off\n" + strings.TrimSpace(linkText) + " tx-checksum-ip-generic off\n"},
		{"V-10: another name changes nothing else, and leaves room for another port", then(both, ok(
			kernel.Op{Kind: kernel.LinkMove, Name: dev, To: "flannel-old"}, linkAdd(dev, with(l, func(l *kernel.Link) { l.Port = 4789 })),
			addr(kernel.AddrSet, dev, "10.244.1.0/32"), linkDel("flannel-old"), linkAdd("flannel-old", with(l, func(l *kernel.Link) { l.Port = 4790 })))...),
			"link flannel-old" + strings.Replace(strings.TrimPrefix(linkText, "link flannel.1"), "8472", "4790", 1) + strings.Replace(linkText, "8472", "4789", 1) + addrText},
		{"a device moves with all that is on it", then(both, ok(kernel.Op{Kind: kernel.LinkMove, Name: dev, To: "flannel-old"})...),
			strings.ReplaceAll(linkText+addrText+neighText+fdbText+routeText, dev, "flannel-old")},
		{"a name that is taken or not there", then(first, ok(linkAdd("flannel-old", with(l, func(l *kernel.Link) { l.Port = 4789 })))[0],
			step{kernel.Op{Kind: kernel.LinkMove, Name: dev, To: "flannel-old"}, unix.EEXIST},
			step{kernel.Op{Kind: kernel.LinkMove, Name: "flannel.9", To: "flannel.8"}, unix.ENODEV}),
			"link flannel-old" + strings.Replace(strings.TrimPrefix(linkText, "link flannel.1"), "8472", "4789", 1) + linkText + addrText},
		{"a blackhole needs no device", ok(kernel.Op{
			Kind: kernel.RouteSet, Key: kernel.RouteKey{Dst: netip.MustParsePrefix("10.244.1.0/24"), Metric: 1<<32 - 1},
			Route: kernel.Route{Ours: true, Type: "blackhole"}}), "route blackhole 10.244.1.0/24 proto 87 metric 4294967295\n"},
	}
	var all []conformanceRow
	for _, r := range rows {
		all = append(all, conformanceRow{name: r.name, steps: r.steps, want: r.want})
	}
	return all
}

// then makes a longer script of one.
func then(before []step, more ...step) []step {
	return append(before[:len(before):len(before)], more...)
}

// conform runs the table on a kernel; start gives an empty host and the index of its eth0.
func conform(t *testing.T, start func(t *testing.T, kinds ...string) (kernel.Kernel, int)) {
	for i, row := range conformance(2) {
		t.Run(strings.ReplaceAll(row.name, " ", "_"), func(t *testing.T) {
			k, parent := start(t, row.kinds...)
			for n, s := range conformance(parent)[i].steps {
				err := k.Apply(t.Context(), s.op)
				if s.want == nil && err != nil || s.want != nil && !errors.Is(err, s.want) {
					t.Errorf("step %d, %s: want %v, got %v", n, s.op, s.want, err)
				}
			}
			if d := cmp.Diff(row.want, text(dump(t, k), parent)); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
		})
	}
}

// text is a state with the underlay device as if2, whatever its index.
func text(s kernel.State, parent int) string {
	return strings.ReplaceAll(s.String(), fmt.Sprintf("dev if%d ", parent), "dev if2 ")
}

func TestTheFakeHasTheKernelsManners(t *testing.T) {
	conform(t, func(*testing.T, ...string) (kernel.Kernel, int) { return kernel.NewFake(), 2 })
}

// randomOp draws an Op of a small world, so that collisions are frequent.
func randomOp(r *rand.Rand, parent int) kernel.Op {
	pick := func(s ...string) string { return s[r.IntN(len(s))] }
	name := pick(dev, dev, "flannel.2", dev6, "flannel-v6.2")
	l := with(link(parent), func(l *kernel.Link) {
		l.MAC, l.MTU, l.Learning = mac(byte(1+r.IntN(3))), 1400+r.IntN(3)*25, r.IntN(3) == 0
	})
	i, m := r.IntN(4), mac(byte(10+r.IntN(4)))
	f := subnet.IPv4
	switch name {
	case "flannel.2":
		l.VNI, l.GBP = 2, r.IntN(4) == 0
	case dev6, "flannel-v6.2":
		l, f = link6(parent), subnet.IPv6
		l.VNI = map[string]uint32{dev6: 1, "flannel-v6.2": 2}[name]
	}
	cidr := podCIDR(f, i)
	own := netip.PrefixFrom(cidr.Addr(), cidr.Addr().BitLen()).String()
	switch kind := kernel.OpKind(r.IntN(int(kernel.RouteDel) + 1)); kind {
	case kernel.LinkDel:
		if r.IntN(3) > 0 {
			return linkAdd(name, l) // a world without devices is boring
		}
		return linkDel(name)
	case kernel.LinkSet:
		l.Up = r.IntN(4) > 0
		return linkSet(name, l)
	case kernel.AddrSet, kernel.AddrDel:
		return addr(kind, name, own)
	case kernel.FDBSet, kernel.FDBDel:
		return fdb(kind, name, m, underlay(f, 2+i).String(), []uint16{0, 4789}[r.IntN(2)])
	case kernel.NeighSet, kernel.NeighDel:
		return neigh(kind, name, cidr.Addr().String(), m)
	case kernel.RouteSet:
		return route(kind, name, cidr.String(), cidr.Addr().String())
	case kernel.RouteDel:
		return route(kind, name, cidr.String(), cidr.Addr().String())
	default:
		return linkAdd(name, l)
	}
}

func TestTheFakeFailsOnDemandAndListsWhatWasDone(t *testing.T) {
	f := kernel.NewFake()
	f.FailApply(2, unix.ENOBUFS)
	f.FailDump(unix.EINTR)
	if _, err := f.Dump(t.Context()); !errors.Is(err, unix.EINTR) {
		t.Errorf("dump: %v", err)
	}
	ops := kernel.Diff(dump(t, f), node(2))
	for i, op := range ops {
		if err := f.Apply(t.Context(), op); errors.Is(err, unix.ENOBUFS) != (i == 1) {
			t.Errorf("%s: %v", op, err)
		}
	}
	done := f.Ops()
	if len(done) != len(ops)-1 || len(f.Ops()) != 0 {
		t.Errorf("done:\n%s", commands(done))
	}
	if got := commands(kernel.Diff(dump(t, f), node(2))); got != "ip addr replace 10.244.1.0/32 dev flannel.1\n" {
		t.Errorf("what failed remains to be done, and only that:\n%s", got)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	_, err := f.Dump(ctx)
	if aerr := f.Apply(ctx, ops[0]); !errors.Is(err, context.Canceled) || !errors.Is(aerr, context.Canceled) {
		t.Errorf("after the end: %v, %v", err, aerr)
	}
	if err := f.Apply(t.Context(), kernel.Op{Kind: 99}); err == nil {
		t.Error("an unknown kind is accepted")
	}
}

func TestTheFakeTellsWhenSomethingChanges(t *testing.T) {
	f := kernel.NewFake()
	ctx, cancel := context.WithCancel(t.Context())
	changes, err := f.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	empty := func(ch <-chan struct{}) bool {
		select {
		case <-ch:
			return false
		default:
			return true
		}
	}
	if !empty(changes.Ours) || !empty(changes.Host) {
		t.Error("a change is told before there is one")
	}
	if err := f.Meddle(linkAdd(dev, link(2))); err != nil {
		t.Fatal(err)
	}
	if empty(changes.Ours) || !empty(changes.Host) {
		t.Error("a new device of ours has to be told, as ours")
	}
	f.EditHost(func(h *kernel.Host) { h.Links = h.Links[:1] })
	if empty(changes.Ours) || empty(changes.Host) {
		t.Error("an underlay device that went has to be told to both")
	}
	if got := dump(t, f).String(); got != "" {
		t.Errorf("a device outlives its underlay device:\n%s", got)
	}
	cancel()
	f.Edit(func(s *kernel.State) { s.Links[dev] = link(2) })
	if !empty(changes.Ours) && ctx.Err() == nil {
		t.Error("a change is told after the end")
	}
}

func TestFlannelsDirectRouteGivesWayOnTheFake(t *testing.T) {
	f := kernel.NewFake()
	f.EditHost(func(h *kernel.Host) {
		for _, i := range []string{"2", "3"} {
			hop := kernel.Hop{Index: 2, Via: netip.MustParseAddr("192.168.50." + i)}
			h.Routes = append(h.Routes, kernel.HostRoute{Dst: netip.MustParsePrefix("10.244." + i + ".0/24"), Type: "unicast", Hops: []kernel.Hop{hop}})
		}
	})
	want := node(2)
	addPeer(want, 3, mac(3), "192.168.50.33")
	for _, op := range kernel.Diff(dump(t, f), want) {
		err := f.Apply(t.Context(), op)
		if foreign := op.Key.Dst == netip.MustParsePrefix("10.244.3.0/24"); errors.Is(err, kernel.ErrForeignRoute) != foreign {
			t.Errorf("%s: %v", op, err)
		}
	}
}

func TestTheFakesHostShowsOursAmongTheRest(t *testing.T) {
	f := kernel.NewFake()
	apply(t, f, kernel.Diff(kernel.New(), node(2)))
	h, err := f.Host(t.Context())
	if err != nil || len(h.Links) != 3 || len(h.Addrs) != 3 || len(h.Routes) != 3 {
		t.Errorf("%+v, %v", h, err)
	}
	f.EditHost(func(h *kernel.Host) {
		h.Links = append(h.Links, kernel.HostLink{Index: 9, Name: "cilium_vxlan", Kind: "vxlan", VNI: 3, Port: 8472})
	})
	err = f.Apply(t.Context(), linkAdd("flannel.3", with(link(2), func(l *kernel.Link) { l.VNI = 3 })))
	if !errors.Is(err, kernel.ErrPortTaken) || !strings.Contains(err.Error(), "device cilium_vxlan (VNI 3, UDP port 8472)") {
		t.Error(err)
	}
}
