package kernel_test

import (
	"context"
	"errors"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

func TestHostReadsWhatTheUnderlayNeedsToKnow(t *testing.T) {
	host, conn, parent := realHost(t)
	for _, command := range []string{
		"link add cni0 type bridge", "link set cni0 up", "link add v0 type veth peer name v1", "link set v0 master cni0",
		"addr add 192.168.50.100/24 dev eth0", "addr add 10.9.9.9/32 dev eth0", "route add default via 192.168.50.254 metric 100",
		"route add 10.8.0.0/16 nexthop via 192.168.50.7 nexthop via 192.168.50.8", "route add unreachable 10.7.0.0/16",
		"route add 10.6.0.0/16 via 192.168.50.7 mtu 1400 proto static", "rule add from 10.1.0.0/16 lookup 100", "link add x type vxlan id 9 dstport 4789 dev eth0",
	} {
		host.IP(command)
	}
	h, err := conn.Host(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	links := map[string]kernel.HostLink{}
	for _, l := range h.Links {
		links[l.Name] = l
	}
	if eth := links["eth0"]; eth.Index != parent || !eth.Up || !eth.Carrier || eth.MTU != 1500 || eth.Kind != "veth" || eth.MAC.IsZero() || eth.Loopback {
		t.Errorf("eth0: %+v", eth)
	}
	if !links["lo"].Loopback || links["v0"].Master != links["cni0"].Index || links["v0"].Up || links["x"].VNI != 9 || links["x"].Port != 4789 {
		t.Errorf("links: %+v", links)
	}
	var addrs []string
	for _, a := range h.Addrs {
		if a.Index == parent && a.Prefix.Addr().Is4() {
			addrs = append(addrs, a.Prefix.String()+map[bool]string{true: " secondary"}[a.Secondary]+map[bool]string{true: " permanent"}[a.Permanent])
		}
	}
	if d := cmp.Diff([]string{"192.168.50.1/24 permanent", "10.9.9.9/32 permanent", "192.168.50.100/24 secondary permanent"}, addrs); d != "" {
		t.Errorf("addresses (-want +got):\n%s", d)
	}
	find := func(dst string) kernel.HostRoute {
		i := slices.IndexFunc(h.Routes, func(r kernel.HostRoute) bool { return r.Dst == netip.MustParsePrefix(dst) })
		if i < 0 {
			t.Fatalf("no route to %s in %+v", dst, h.Routes)
		}
		return h.Routes[i]
	}
	if r := find("0.0.0.0/0"); r.Metric != 100 || len(r.Hops) != 1 || r.Hops[0].Index != parent || r.Hops[0].Via.String() != "192.168.50.254" {
		t.Errorf("default: %+v", r)
	}
	if r := find("10.8.0.0/16"); len(r.Hops) != 2 || r.Hops[1].Via.String() != "192.168.50.8" {
		t.Errorf("two ways: %+v", r)
	}
	if r := find("10.7.0.0/16"); r.Type != "unreachable" || len(r.Hops) > 1 {
		t.Errorf("unreachable: %+v", r)
	}
	if r := find("10.6.0.0/16"); r.MTU != 1400 || !r.ByHand || find("192.168.50.0/24").ByHand || find("0.0.0.0/0").MTU != 0 {
		t.Errorf("with an MTU: %+v", r)
	}
	if h.Release == "" || strings.Contains(h.Release, "\x00") {
		t.Errorf("release %q", h.Release)
	}
	if r := find("192.168.50.0/24"); r.Src.String() != "192.168.50.1" || r.Hops[0].Via.IsValid() {
		t.Errorf("connected: %+v", r)
	}
	if h.Rules != 1 {
		t.Errorf("%d extra rules", h.Rules)
	}
}

func TestAWatchTellsOfOursAndOfTheHostAndEndsWithoutALeak(t *testing.T) {
	host, conn, parent := realHost(t)
	goroutines := runtime.NumGoroutine()
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	changes, err := conn.Watch(ctx)
	if err != nil {
		t.Fatal(err)
	}
	// told waits for one channel, after both were emptied
	told := func(what string, ch <-chan struct{}, meddle func()) {
		t.Helper()
		for drained := false; !drained; {
			select {
			case <-changes.Ours:
			case <-changes.Host:
			case <-time.After(20 * time.Millisecond):
				drained = true
			}
		}
		meddle()
		select {
		case <-ch:
		case <-time.After(20 * time.Second):
			t.Errorf("%s is not told", what)
		}
	}
	told("a new device of ours", changes.Ours, func() { apply(t, conn, []kernel.Op{linkAdd(dev, link(parent))}) })
	dump(t, conn)
	told("an address of ours", changes.Ours, func() { host.IP("addr add 10.244.1.0/32 dev flannel.1") })
	told("a route of ours", changes.Ours, func() { host.IP("route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink") })
	told("a neighbour of ours", changes.Ours, func() { host.IP("neigh add 10.244.2.0 lladdr 0a:00:00:00:00:02 dev flannel.1 nud permanent") })
	told("a forwarding entry of ours", changes.Ours, func() { host.Bridge("fdb add 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.2 self permanent") })
	told("a deleted device of ours", changes.Ours, func() { host.IP("link del flannel.1") })
	told("an address of the host", changes.Host, func() { host.IP("addr add 192.168.50.9/24 dev eth0") })
	told("an MTU of the host", changes.Host, func() { host.IP("link set eth0 mtu 1400") })
	told("a route of the host", changes.Host, func() { host.IP("route add 10.9.0.0/16 via 192.168.50.2") })
	told("a policy rule", changes.Host, func() { host.IP("rule add from 10.1.0.0/16 lookup 100") })
	cancel()
	nstest.Eventually(t, 20*time.Second, func() error {
		if n := runtime.NumGoroutine(); n > goroutines {
			return errors.New("goroutines of the watch live on")
		}
		return nil
	})
}

func TestPodsThatComeAndGoWakeNobody(t *testing.T) {
	host, conn, _ := realHost(t)
	host.Pod(0, netip.MustParsePrefix("10.244.1.5/24")) // makes the bridge
	changes, err := conn.Watch(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	quiet := func() bool {
		select {
		case <-changes.Ours:
			return false
		case <-time.After(50 * time.Millisecond):
			return true
		}
	}
	nstest.Eventually(t, 20*time.Second, func() error {
		if !quiet() {
			return errors.New("not quiet")
		}
		return nil
	})
	pod := host.Pod(0, netip.MustParsePrefix("10.244.1.6/24"))
	if err := pod.CanPing(netip.MustParseAddr("10.244.1.1")); err != nil {
		t.Error(err)
	}
	if !quiet() {
		t.Error("a pod woke the data plane")
	}
}

func TestManyNamespacesAreWatchedAndWrittenFromOneProcess(t *testing.T) {
	type one struct {
		host *nstest.NS
		conn *kernel.Conn
	}
	var all []one
	for range 4 {
		host, conn, parent := realHost(t)
		all = append(all, one{host, conn})
		want := node()
		want.Links[dev] = link(parent)
		apply(t, conn, kernel.Diff(dump(t, conn), want))
	}
	for i, o := range all {
		addPeerTo := node(i + 2)
		addPeerTo.Links[dev] = link(index(t, o.host, "eth0"))
		apply(t, o.conn, kernel.Diff(dump(t, o.conn), addPeerTo))
	}
	for i, o := range all {
		if got := o.host.IP("-4 route show dev flannel.1"); !strings.HasPrefix(got, "10.244."+string('2'+rune(i))+".0/24") || strings.Count(got, "\n") != 1 {
			t.Errorf("namespace %d:\n%s", i, got)
		}
	}
}

func TestOpenConnectsToTheThreadsNamespace(t *testing.T) {
	host, conn, parent := realHost(t)
	apply(t, conn, []kernel.Op{linkAdd(dev, link(parent))})
	var here *kernel.Conn
	err := host.Do(func() (err error) {
		here, err = kernel.Open()
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	defer here.Close()
	if got := dump(t, here); len(got.Links) != 1 {
		t.Errorf("got\n%s", got)
	}
	if _, err := kernel.OpenAt(-1); err == nil {
		t.Error("a closed descriptor is a namespace")
	}
}

func TestProbeFindsVXLANWithoutMakingAnything(t *testing.T) {
	host, conn, parent := realHost(t)
	events := host.Monitor()
	for _, f := range conn.Probe(t.Context()) {
		if f.Support != kernel.Supported {
			t.Errorf("%s: %s, %v", f.Name, f.Support, f.Err)
		}
	}
	for _, e := range events.Events() {
		if e.Index != parent && strings.Contains(e.String(), "link") { // eth0 is still settling down
			t.Errorf("a probe left a trace: %s", e)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if f := conn.Probe(ctx); f[0].Support != kernel.CannotTell {
		t.Errorf("after the end: %+v", f)
	}
}

func TestRoutesOfOursThatShareAKeyBecomeTheWantedOne(t *testing.T) {
	for name, commands := range map[string][]string{
		"behind ours":           {"route append 10.244.2.0/24 via 10.244.2.9 dev flannel.1 onlink", "route append 10.244.2.0/24 via 10.244.2.8 dev flannel.1 onlink"},
		"before ours":           {"route prepend 10.244.2.0/24 via 10.244.2.9 dev flannel.1 onlink"},
		"before and behind":     {"route prepend 10.244.2.0/24 via 10.244.2.9 dev flannel.1 onlink", "route append 10.244.2.0/24 via 10.244.2.7 dev flannel.1 onlink"},
		"on two ways":           {"route replace 10.244.2.0/24 nexthop via 10.244.2.9 dev flannel.1 onlink nexthop via 10.244.2.8 dev flannel.1 onlink"},
		"instead of ours, many": {"route replace 10.244.2.0/24 via 10.244.2.9 dev flannel.1 onlink", "route append 10.244.2.0/24 via 10.244.2.8 dev flannel.1 onlink"},
	} {
		t.Run(strings.ReplaceAll(name, " ", "_"), func(t *testing.T) {
			host, conn, parent := realHost(t)
			want := node(2, 3)
			want.Links[dev] = link(parent)
			apply(t, conn, kernel.Diff(dump(t, conn), want))
			for _, command := range commands {
				host.IP(command)
			}
			apply(t, conn, kernel.Diff(dump(t, conn), want))
			lines := "10.244.2.0/24 via 10.244.2.0 proto 87 onlink \n10.244.3.0/24 via 10.244.3.0 proto 87 onlink \n"
			if d := cmp.Diff(lines, host.IP("-4 route show dev flannel.1")); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			if ops := kernel.Diff(dump(t, conn), want); len(ops) > 0 {
				t.Errorf("still to do: %v", ops)
			}
		})
	}
}

func TestARouteOfSomebodyElseSurvives(t *testing.T) {
	host, conn, _ := realHost(t)
	for _, r := range []struct{ command, dst, owner string }{
		{"route add 10.244.2.0/24 via 192.168.50.2", "10.244.2.0/24", "interface eth0"},
		{"route add blackhole 10.244.3.0/24", "10.244.3.0/24", "interface with index 0"},
		{"-6 route add fd00:244:2::/64 via fd00:50::2", "fd00:244:2::/64", "interface eth0"},
	} {
		host.IP(r.command)
		if r.dst == "10.244.2.0/24" {
			apply(t, conn, []kernel.Op{linkAdd(dev, link(index(t, host, "eth0"))), linkAdd(dev6, link6(index(t, host, "eth0")))})
		}
		device := dev
		if strings.Contains(r.dst, ":") {
			device = dev6
		}
		err := conn.Apply(t.Context(), route(kernel.RouteSet, device, r.dst, netip.MustParsePrefix(r.dst).Addr().String()))
		if !errors.Is(err, kernel.ErrForeignRoute) || !strings.Contains(err.Error(), r.owner) {
			t.Errorf("%s: %v", r.dst, err)
		}
		if out := host.IP("-d route show " + r.dst); strings.Contains(out, "flannel") {
			t.Errorf("%s was replaced: %s", r.dst, out)
		}
	}
}

func TestARouteThatWasReplacedByHandIsTakenBack(t *testing.T) {
	host, conn, parent := realHost(t)
	want := node(2, 3)
	want.Links[dev], want.Links[dev6] = link(parent), link6(parent)
	six := route(kernel.RouteSet, dev6, "fd00:244:2::/64", "fd00:244:2::")
	want.Routes[six.Key] = six.Route
	apply(t, conn, kernel.Diff(dump(t, conn), want))
	foreign := func(ops []kernel.Op) (refused bool) {
		for _, op := range ops {
			refused = refused || errors.Is(conn.Apply(t.Context(), op), kernel.ErrForeignRoute)
		}
		return refused
	}
	for _, place := range []struct{ dst, router string }{{"10.244.2.0/24", "192.168.50.77"}, {"fd00:244:2::/64", "fd00:50::77"}} {
		via := place.dst + " via " + place.router
		for _, command := range []string{"route replace " + via, "route replace blackhole " + place.dst, "route replace " + via + " proto static"} {
			host.IP(command)
			if !foreign(kernel.Diff(dump(t, conn), want)) {
				t.Errorf("after %q: it was replaced although nobody said that it was ours", command)
			}
			apply(t, conn, kernel.Regaining(kernel.Diff(dump(t, conn), want), want))
			if ops := kernel.Diff(dump(t, conn), want); len(ops) > 0 {
				t.Errorf("after %q still to do: %v", command, ops)
			}
		}
		host.IP("route replace " + via + " proto bird")
		if !foreign(kernel.Regaining(kernel.Diff(dump(t, conn), want), want)) {
			t.Error("a routing daemon's route was replaced: it would make it again, and we ours")
		}
		host.IP("route del " + place.dst)
	}
}

func TestADeviceThatWasRenamedGetsItsNameBack(t *testing.T) {
	host, conn, parent := realHost(t)
	want := node(2, 3)
	want.Links[dev] = link(parent)
	apply(t, conn, kernel.Diff(dump(t, conn), want))
	was := index(t, host, dev)
	for _, up := range []string{"up", "down"} {
		host.IP("link set flannel.1 down")
		host.IP("link set flannel.1 name tunnel0")
		host.IP("link set tunnel0 " + up)
		apply(t, conn, kernel.Diff(dump(t, conn), want))
		if ops := kernel.Diff(dump(t, conn), want); len(ops) > 0 {
			t.Errorf("%s, still to do: %v", up, ops)
		}
		if now := index(t, host, dev); now != was {
			t.Errorf("%s, it is another device: %d, was %d", up, now, was)
		}
	}
}

func TestAnAddressOfTheHostThatIsAPeersGatewayIsNamed(t *testing.T) {
	host, conn, parent := realHost(t)
	apply(t, conn, []kernel.Op{linkAdd(dev, link(parent))})
	host.IP("addr add 10.244.2.0/32 dev lo")
	err := conn.Apply(t.Context(), route(kernel.RouteSet, dev, "10.244.2.0/24", "10.244.2.0"))
	if !errors.Is(err, kernel.ErrForeignRoute) || !strings.Contains(err.Error(), "interface lo has the address 10.244.2.0") {
		t.Error(err)
	}
}

func TestADeviceIndexThatIsGoneGivesENODEVAndIsFoundAgain(t *testing.T) {
	host, conn, parent := realHost(t)
	apply(t, conn, []kernel.Op{linkAdd(dev, link(parent))})
	host.IP("link del flannel.1")
	op := neigh(kernel.NeighSet, dev, "10.244.2.0", mac(2))
	if err := conn.Apply(t.Context(), op); !errors.Is(err, unix.ENODEV) {
		t.Errorf("with an old index: %v", err)
	}
	apply(t, conn, []kernel.Op{
		neigh(kernel.NeighDel, dev, "10.244.2.0", mac(2)), route(kernel.RouteDel, dev, "10.244.2.0/24", "10.244.2.0"),
		fdb(kernel.FDBDel, dev, mac(2), "192.168.50.2", 0), addr(kernel.AddrDel, dev, "10.244.1.0/32"),
	})
	if len(dump(t, conn).Links) != 0 {
		t.Error("a device is there")
	}
	apply(t, conn, []kernel.Op{linkAdd(dev, link(parent)), op})
	if got := dump(t, conn); got.Neighs[op.Neigh] != (subnet.MAC{0x0a, 5: 2}) {
		t.Errorf("got\n%s", got)
	}
}

func TestApplyEndsWithItsContextAndRefusesWhatItDoesNotKnow(t *testing.T) {
	_, conn, parent := realHost(t)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := conn.Apply(ctx, linkAdd(dev, link(parent))); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := conn.Dump(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if _, err := conn.Host(ctx); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	if err := conn.Apply(t.Context(), kernel.Op{Kind: 99}); err == nil {
		t.Error("an unknown kind is accepted")
	}
}

func TestV01AMACThatIsOverwrittenAtBirthIsSetBackOrNamed(t *testing.T) {
	host, conn, parent := realHost(t)
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() { // a udev that never sleeps
		defer close(stopped)
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = host.Try("ip", "link", "set", dev, "address", "0a:00:00:00:99:99")
			}
		}
	}()
	for range 30 {
		err := conn.Apply(t.Context(), linkAdd(dev, link(parent)))
		if err != nil && (!errors.Is(err, kernel.ErrMACOverwritten) || !strings.Contains(err.Error(), "MACAddressPolicy=none")) {
			t.Error(err)
		}
		apply(t, conn, []kernel.Op{linkDel(dev)})
	}
	close(stop)
	<-stopped
	want := kernel.New()
	want.Links[dev] = link(parent)
	apply(t, conn, kernel.Diff(dump(t, conn), want))
	host.IP("link set flannel.1 address 0a:00:00:00:99:99")
	apply(t, conn, kernel.Diff(dump(t, conn), want))
	if got := dump(t, conn).Links[dev].MAC; got != mac(1) {
		t.Errorf("MAC %s", got)
	}
}
