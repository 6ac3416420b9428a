package kernel_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/tests/nstest"
)

func TestV06ThePathMTUIsWhatARouteOrARouterSays(t *testing.T) {
	ns := nstest.New(t)
	nstest.Veth(t, ns, "eth0", nstest.New(t), "far")
	ns.IP("addr add 192.168.50.1/24 dev eth0")
	ns.IP("route add 192.0.2.0/24 via 192.168.50.254 mtu 1400")
	ns.IP("route add 198.51.100.0/24 via 192.168.50.254")
	ns.IP("route add blackhole 203.0.113.0/24")
	conn, err := kernel.OpenAt(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	addr := netip.MustParseAddr
	got, err := conn.PathMTU(t.Context(), []netip.Addr{
		addr("192.0.2.7"), addr("198.51.100.7"), addr("192.168.50.7"), addr("203.0.113.7"), addr("8.8.8.8"), addr("fd00::7"),
	})
	if err != nil {
		t.Fatal(err)
	}
	want := map[netip.Addr]int{addr("192.0.2.7"): 1400}
	if diff := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
		t.Error(diff)
	}
}
