package underlay_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/underlay"
)

func TestRoutesThatTakePodsPacketsAnotherWayAreNamed(t *testing.T) {
	pfx, ip := netip.MustParsePrefix, netip.MustParseAddr
	want := kernel.New()
	want.Routes[kernel.RouteKey{Dst: pfx("10.244.2.0/24")}] = kernel.Route{Link: "flannel.1", Via: ip("10.244.2.0"), Onlink: true, Ours: true, Type: "unicast"}
	want.Routes[kernel.RouteKey{Dst: pfx("fd00:10:244:2::/64"), Metric: 1024}] = kernel.Route{Link: "eth0", Via: ip("fd00:50::2"), Ours: true, Type: "unicast"}
	want.Routes[kernel.RouteKey{Dst: pfx("10.244.0.0/16"), Metric: kernel.LastMetric}] = kernel.Route{Ours: true, Type: "blackhole"}
	for _, tc := range []struct {
		name, dst, via string
		index, metric  int
		kind           string
		told           string
		ours           bool
	}{
		{name: "ours", dst: "10.244.2.0/24", via: "10.244.2.0", index: 5},
		{name: "ours, stepped", dst: "fd00:10:244:2::/64", via: "fd00:50::2", index: 2, metric: 1022},
		{name: "ours, of a moment ago", dst: "10.244.2.0/24", via: "192.168.50.2", index: 2},
		{name: "ours, of before, stepped", dst: "fd00:10:244:2::/64", via: "fd00:50::9", index: 2, metric: 1023, ours: true},
		{name: "on our own device, where it goes by itself", dst: "10.244.2.128/25", via: "10.244.2.128", index: 5},
		{name: "a part of a range", dst: "10.244.2.128/25", via: "192.168.50.9", index: 2, told: "10.244.2.128/25 via 192.168.50.9 dev eth0 for 10.244.2.0/24"},
		{name: "a part that leads to nobody", dst: "10.244.2.7/32", kind: "blackhole", told: "blackhole 10.244.2.7/32 for 10.244.2.0/24"},
		{name: "a part, the same way", dst: "fd00:10:244:2:8000::/65", via: "fd00:50::2", index: 2, metric: 1024},
		{name: "one that is liked better", dst: "fd00:10:244:2::/64", via: "fd00:50::9", index: 2, metric: 100, told: "fd00:10:244:2::/64 via fd00:50::9 dev eth0 for fd00:10:244:2::/64"},
		{name: "one that is liked less", dst: "fd00:10:244:2::/64", via: "fd00:50::9", index: 2, metric: 2048},
		{name: "one that is liked less, IPv4", dst: "10.244.2.0/24", via: "192.168.50.9", index: 2, metric: 50},
		{name: "a wider one", dst: "10.244.0.0/16", via: "192.168.50.9", index: 2},
		{name: "a range of nobody", dst: "10.244.3.0/25", via: "192.168.50.9", index: 2},
		{name: "the pods of this node", dst: "10.244.1.0/24", index: 6},
		{name: "a local network, which Overlaps tells of", dst: "10.244.2.64/26", index: 7, metric: 0},
	} {
		host := kernel.Host{
			Links: []kernel.HostLink{{Index: 2, Name: "eth0", Up: true}, {Index: 5, Name: "flannel.1", Kind: "vxlan", Up: true}, {Index: 6, Name: "cni0", Kind: "bridge", Up: true}, {Index: 7, Name: "lab0", Up: true}},
			Addrs: []kernel.HostAddr{{Index: 6, Prefix: pfx("10.244.1.1/24")}, {Index: 7, Prefix: pfx("10.244.2.65/26")}},
		}
		r := kernel.HostRoute{Dst: pfx(tc.dst), Metric: tc.metric, Type: "unicast", Ours: tc.ours}
		if tc.kind != "" {
			r.Type = tc.kind
		}
		if tc.index != 0 {
			r.Hops = []kernel.Hop{{Index: tc.index}}
			if tc.via != "" {
				r.Hops[0].Via = ip(tc.via)
			}
		}
		host.Routes = []kernel.HostRoute{r}
		if got := underlay.Shadows(want, host); (got != "") != (tc.told != "") || !strings.Contains(got, tc.told) {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.told)
		}
	}
}

// A node that was Calico's has block routes to nowhere left, and one that got the range of another flannel node of host-gw has that
// one's route.
func TestRoutesThatTakeTheOwnPodsPacketsAwayAreNamed(t *testing.T) {
	pfx := netip.MustParsePrefix
	own := []netip.Prefix{pfx("10.244.1.0/24"), pfx("fd00:10:244:1::/64")}
	for _, tc := range []struct {
		name, dst string
		index     int
		metric    int
		ours      bool
		told      string
	}{
		{name: "the bridge's own", dst: "10.244.1.0/24", index: 6},
		{name: "the bridge's own, IPv6", dst: "fd00:10:244:1::/64", index: 6, metric: 256},
		{name: "a pod on a device of its own", dst: "10.244.1.7/32", index: 8},
		{name: "the last resort", dst: "10.244.1.0/24", metric: 1000, ours: true},
		{name: "a block of Calico's", dst: "10.244.1.64/26", told: "blackhole 10.244.1.64/26 for 10.244.1.0/24"},
		{name: "a part, elsewhere", dst: "fd00:10:244:1:8000::/65", index: 2, metric: 1024, told: "fd00:10:244:1:8000::/65 dev eth0 for fd00:10:244:1::/64"},
		{name: "to the node of before", dst: "10.244.1.0/24", index: 2, told: "10.244.1.0/24 dev eth0 for 10.244.1.0/24"},
		{name: "to the node of before, liked less", dst: "10.244.1.0/24", index: 2, metric: 100},
		{name: "to the node of before, liked less, IPv6", dst: "fd00:10:244:1::/64", index: 2, metric: 1024},
		{name: "a local network, which Overlaps tells of", dst: "10.244.1.128/25", index: 7},
		{name: "another node's", dst: "10.244.2.64/26"},
		{name: "a wider one", dst: "10.244.0.0/16", index: 2},
	} {
		host := kernel.Host{
			Links: []kernel.HostLink{{Index: 2, Name: "eth0", Up: true}, {Index: 6, Name: "cni0", Kind: "bridge", Up: true}, {Index: 7, Name: "lab0", Up: true}, {Index: 8, Name: "veth1", Kind: "veth", Up: true}},
			Addrs: []kernel.HostAddr{{Index: 2, Prefix: pfx("192.168.50.1/24")}, {Index: 6, Prefix: pfx("10.244.1.1/24")}, {Index: 7, Prefix: pfx("10.244.1.129/25")}},
		}
		r := kernel.HostRoute{Dst: pfx(tc.dst), Metric: tc.metric, Type: "blackhole", Ours: tc.ours}
		if tc.index != 0 {
			r.Type, r.Hops = "unicast", []kernel.Hop{{Index: tc.index}}
		}
		host.Routes = []kernel.HostRoute{r}
		if got := underlay.ShadowsOwn(own, host); (got != "") != (tc.told != "") || !strings.Contains(got, tc.told) || got != "" && !strings.Contains(got, "this node's own pods") {
			t.Errorf("%s: %q, want %q", tc.name, got, tc.told)
		}
	}
}
