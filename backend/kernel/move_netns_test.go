package kernel_test

import (
	"fmt"
	"net/netip"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

func TestARouteThatMovesFromDeviceToDeviceIsNeverAway(t *testing.T) {
	host, conn, parent := realHost(t)
	apply(t, conn, []kernel.Op{
		linkAdd(dev, link(parent)), linkAdd("flannel.2", with(link(parent), func(l *kernel.Link) { l.VNI = 2 })),
		linkAdd(dev6, link6(parent)), linkAdd("flannel-v6.2", with(link6(parent), func(l *kernel.Link) { l.VNI = 2 })),
	})
	for _, f := range subnet.Families() {
		cidr := podCIDR(f, 2)
		ways := []kernel.Op{
			route(kernel.RouteSet, kernel.DeviceName(f, 1), cidr.String(), cidr.Addr().String()),
			route(kernel.RouteSet, kernel.DeviceName(f, 2), cidr.String(), cidr.Addr().String()),
			hop(kernel.RouteSet, "eth0", cidr.String(), underlay(f, 2).String(), false),
		}
		if hasKinds(t, conn, kernel.KindWireGuard, kernel.TunnelKind(f)) {
			apply(t, conn, []kernel.Op{linkAdd(kernel.WireGuardName(f), with(wgLink(), func(l *kernel.Link) { l.Port += uint16(f) })), linkAdd(kernel.TunnelName(f), tunLink(f))})
			ways = append(ways, hop(kernel.RouteSet, kernel.WireGuardName(f), cidr.String(), "", false),
				hop(kernel.RouteSet, kernel.TunnelName(f), cidr.String(), underlay(f, 2).String(), f == subnet.IPv4))
		}
		apply(t, conn, ways[:1])
		watch := watchRoute(t, host, cidr.Addr().Next().Next())
		for from := range ways {
			for to := range ways {
				for range 10 {
					apply(t, conn, []kernel.Op{replaced(ways[from]), replaced(ways[to])})
				}
				dump(t, conn) // which removes what the routes have left behind
			}
		}
		watch.stop(t)
	}
}

// Linux tells a packet that has just found the IPv6 route which is replaced that there is none. So the new one stands before the
// old one until no packet can have that in hand, also where the agent dies in between.
func TestAnIPv6RouteThatMovesIsNeverTheLastThatAPacketFinds(t *testing.T) {
	host, conn, parent := realHost(t)
	apply(t, conn, []kernel.Op{linkAdd(dev6, link6(parent)), linkAdd("flannel-v6.2", with(link6(parent), func(l *kernel.Link) { l.VNI = 2 }))})
	cidr := podCIDR(subnet.IPv6, 2)
	ways := []kernel.Op{
		route(kernel.RouteSet, dev6, cidr.String(), cidr.Addr().String()), route(kernel.RouteSet, "flannel-v6.2", cidr.String(), cidr.Addr().String()),
	}
	metrics := func() (out []string) {
		for line := range strings.Lines(host.IP("-6 route show " + cidr.String())) {
			w := strings.Fields(line)
			out = append(out, w[4]+" "+w[8])
		}
		return out
	}
	apply(t, conn, []kernel.Op{ways[0], replaced(ways[1])})
	if d := cmp.Diff([]string{"flannel-v6.2 1023", dev6 + " 1024"}, metrics()); d != "" {
		t.Errorf("after the move (-want +got):\n%s", d)
	}
	other, err := kernel.OpenAt(host.FD()) // an agent that starts now
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	have, want := dump(t, other), put(kernel.New(), ways[1])
	have.Links, have.Addrs = want.Links, want.Addrs
	apply(t, other, kernel.Diff(have, want))
	if d := cmp.Diff([]string{"flannel-v6.2 1023"}, metrics()); d != "" {
		t.Errorf("after the next start (-want +got):\n%s", d)
	}
	if d := cmp.Diff(fmt.Sprint(want.Routes), fmt.Sprint(dump(t, conn).Routes)); d != "" {
		t.Errorf("the move's end (-want +got):\n%s", d)
	}
	for i := range 1030 { // more than there are metrics
		apply(t, other, []kernel.Op{replaced(ways[i%2])})
	}
	if d := cmp.Diff(fmt.Sprint(want.Routes), fmt.Sprint(dump(t, other).Routes)); d != "" {
		t.Errorf("after many moves (-want +got):\n%s", d)
	}
	if got := metrics(); len(got) != 1 {
		t.Errorf("left behind: %v", got)
	}
	if err := other.UsualMetrics(t.Context()); err != nil {
		t.Error(err)
	}
	if d := cmp.Diff([]string{"flannel-v6.2 1024"}, metrics()); d != "" {
		t.Errorf("given back to flannel (-want +got):\n%s", d)
	}
	apply(t, other, []kernel.Op{{Kind: kernel.RouteDel, Key: ways[1].Key, Route: ways[1].Route}})
	if got := metrics(); len(got) != 0 {
		t.Errorf("not removed: %v", got)
	}
}

func TestAnIPv6RouteOfFlannelsStaysUntilOursHasTakenItsPlace(t *testing.T) {
	host, conn, parent := realHost(t)
	apply(t, conn, []kernel.Op{linkAdd(dev6, link6(parent))})
	cidr := podCIDR(subnet.IPv6, 2)
	host.IP("-6 route add " + cidr.String() + " via " + cidr.Addr().String() + " dev " + dev6 + " onlink")
	watch := watchRoute(t, host, cidr.Addr().Next())
	have := dump(t, conn)
	want := put(kernel.New(), route(kernel.RouteSet, dev6, cidr.String(), cidr.Addr().String()))
	want.Links, want.Addrs = have.Links, have.Addrs
	apply(t, conn, kernel.Diff(have, want))
	if list := host.IP("-6 route show " + cidr.String()); strings.Count(list, "metric 102") != 2 {
		t.Errorf("it is replaced in place:\n%s", list)
	}
	if d := cmp.Diff(fmt.Sprint(want.Routes), fmt.Sprint(dump(t, conn).Routes)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if list := host.IP("-6 route show " + cidr.String()); strings.Count(list, "metric 102") != 1 || !strings.Contains(list, "proto 87") {
		t.Errorf("flannel's is left behind:\n%s", list)
	}
	watch.stop(t)
}

// routeWatch asks for the route to an address all the time.
type routeWatch struct {
	asked, missing atomic.Int64
	last           atomic.Value // error
	end, ended     chan struct{}
}

func watchRoute(t *testing.T, host *nstest.NS, to netip.Addr) *routeWatch {
	t.Helper()
	handle, err := netlink.NewHandleAt(netns.NsHandle(host.FD()))
	if err != nil {
		t.Fatal(err)
	}
	w := &routeWatch{end: make(chan struct{}), ended: make(chan struct{})}
	go func() {
		defer close(w.ended)
		defer handle.Close()
		for {
			select {
			case <-w.end:
				return
			default:
			}
			_, err := handle.RouteGet(to.AsSlice())
			if err != nil {
				w.missing.Add(1)
				w.last.Store(fmt.Errorf("route to %s: %w", to, err))
			}
			w.asked.Add(1)
		}
	}()
	nstest.Eventually(t, 10*time.Second, func() error {
		if w.asked.Load() == 0 {
			return fmt.Errorf("nothing was asked yet")
		}
		return nil
	})
	return w
}

func (w *routeWatch) stop(t *testing.T) {
	t.Helper()
	close(w.end)
	<-w.ended
	t.Logf("asked %d times, missing %d times", w.asked.Load(), w.missing.Load())
	if n := w.missing.Load(); n > 0 {
		t.Errorf("away %d of %d times, at last: %v", n, w.asked.Load(), w.last.Load())
	}
}

// hasKinds reports whether the kernel has kinds of device.
func hasKinds(t *testing.T, conn *kernel.Conn, kinds ...string) bool {
	t.Helper()
	for _, feature := range conn.Probe(t.Context(), kinds...) {
		if feature.Support != kernel.Supported {
			return false
		}
	}
	return true
}

func TestARouteThatIPv6LikesBetterThanOursGivesWayToo(t *testing.T) {
	host, conn, _ := realHost(t)
	want := put(kernel.New(), hop(kernel.RouteSet, "eth0", "fd00:244:2::/64", "fd00:50::2", false))
	for _, command := range []string{"metric 100", "metric 1 proto static", "metric 200 proto bird"} {
		host.IP("-6 route add fd00:244:2::/64 via fd00:50::9 " + command)
	}
	told := 0
	for range 2 { // the second time there is nothing to do
		for _, op := range kernel.Diff(dump(t, conn), want) {
			if err := conn.Apply(t.Context(), op); err != nil {
				t.Errorf("%s: %v", op, err)
			}
			if op.Displaces() {
				told++
			}
		}
	}
	if left := host.IP("-6 route show fd00:244:2::/64"); told != 2 || len(strings.Split(strings.TrimSpace(left), "\n")) != 2 || !strings.Contains(left, "proto bird") {
		t.Errorf("told of %d, left: %q", told, left)
	}
}

func TestOnlyWhatACommandHasMadeGivesWayPastOurDevices(t *testing.T) {
	host, conn, _ := realHost(t)
	for _, command := range []string{
		"link add cni9 type bridge", "link set cni9 up", "addr add 10.244.4.1/24 dev cni9",
		"route add 10.244.2.0/24 via 192.168.50.9", "route add 10.244.3.0/24 via 192.168.50.9 proto bird",
		"-6 route add fd00:244:2::/64 via fd00:50::9",
	} {
		host.IP(command)
	}
	want := put(kernel.New(),
		hop(kernel.RouteSet, "eth0", "10.244.2.0/24", "192.168.50.2", false), hop(kernel.RouteSet, "eth0", "10.244.3.0/24", "192.168.50.3", false),
		hop(kernel.RouteSet, "eth0", "10.244.4.0/24", "192.168.50.4", false), hop(kernel.RouteSet, "eth0", "fd00:244:2::/64", "fd00:50::2", false))
	var refused []string
	for _, op := range kernel.Diff(dump(t, conn), want) {
		if err := conn.Apply(t.Context(), op); err != nil {
			refused = append(refused, op.Key.Dst.String())
		} else if !op.Displaces() || !strings.Contains(op.String(), "in place of") {
			t.Errorf("%s: the route that was there is not told of", op)
		}
	}
	if len(refused) != 2 || refused[0] != "10.244.3.0/24" || refused[1] != "10.244.4.0/24" {
		t.Errorf("refused: %v", refused)
	}
	have := dump(t, conn)
	for _, dst := range []string{"10.244.2.0/24", "fd00:244:2::/64"} {
		key := route(kernel.RouteSet, "eth0", dst, "::").Key
		if have.Routes[key] != want.Routes[key] {
			t.Errorf("%s is %+v", dst, have.Routes[key])
		}
	}
}
