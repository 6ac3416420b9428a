package underlay

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAPeerIsOnLinkWhenTheBestRouteToItHasNoGateway(t *testing.T) {
	const base = `
		link eth0
		addr eth0 192.168.50.1/24
		addr eth0 2001:db8:50::1/64
		route default via 192.168.50.254 dev eth0
		route default6 via fe80::1 dev eth0
		route 192.168.50.0/24 dev eth0
		route 2001:db8:50::/64 dev eth0
		link eth1 mtu 9000
		link old down
		link flannel.1 kind vxlan mtu 1450
		link cni0 kind bridge
		link vpn kind tun mtu 1400
		link tap0 kind tun mac 0a:00:00:00:00:01
		link wg0 kind wireguard mtu 1420
`
	for _, c := range []struct {
		name, routes, addr string
		want               Path
	}{
		{"a neighbour", "", "192.168.50.2", Path{Link: "eth0", OnLink: true, MTU: 1500}},
		{"a neighbour by IPv6", "", "2001:db8:50::2", Path{Link: "eth0", OnLink: true, MTU: 1500}},
		{"behind the router", "", "192.168.60.2", Path{Link: "eth0", Via: ip("192.168.50.254"), MTU: 1500}},
		{"behind the router by IPv6", "", "2001:db8:60::2", Path{Link: "eth0", Via: ip("fe80::1"), MTU: 1500}},
		{"the host itself", "", "192.168.50.1", Path{}},
		{"a longer route by a gateway", "route 192.168.50.2/32 via 192.168.50.9 dev eth0", "192.168.50.2", Path{Link: "eth0", Via: ip("192.168.50.9"), MTU: 1500}},
		{"a longer route without one", "route 192.168.60.0/24 dev eth1", "192.168.60.2", Path{Link: "eth1", OnLink: true, MTU: 9000}},
		{"two devices in one subnet", "route 192.168.50.0/24 dev eth1 metric 600", "192.168.50.2", Path{Link: "eth0", OnLink: true, MTU: 1500}},
		{"the lower metric comes second", "route 10.0.0.0/24 via 192.168.50.9 dev eth0 metric 200\nroute 10.0.0.0/24 dev eth1 metric 100", "10.0.0.2", Path{Link: "eth1", OnLink: true, MTU: 9000}},
		{"two hops", "route 10.0.0.0/24 dev eth1 dev eth0", "10.0.0.2", Path{Link: "eth1", MTU: 1500}},
		{"a device that is down", "route 10.0.0.0/24 dev old", "10.0.0.2", Path{Link: "old", MTU: 1500}},
		{"a route with an MTU", "route 10.0.0.0/24 dev eth1 mtu 1400", "10.0.0.2", Path{Link: "eth1", OnLink: true, MTU: 1400}},
		{"a route with a larger MTU than the device", "route 10.0.0.0/24 dev eth0 mtu 9000", "10.0.0.2", Path{Link: "eth0", OnLink: true, MTU: 1500}},
		{"a black hole", "route 10.0.0.0/24 dev eth0 type blackhole", "10.0.0.2", Path{}},
		{"through the overlay itself", "route 10.244.2.0/24 dev flannel.1", "10.244.2.7", Path{Link: "flannel.1", MTU: 1450}},
		{"among the pods", "route 10.244.1.0/24 dev cni0", "10.244.1.7", Path{Link: "cni0", MTU: 1500}},
		{"through a VPN that looks at the packet", "route 10.0.0.0/24 dev vpn", "10.0.0.2", Path{Link: "vpn", MTU: 1400}},
		{"through somebody's WireGuard", "route 10.0.0.0/24 dev wg0", "10.0.0.2", Path{Link: "wg0", MTU: 1420}},
		{"through a tap", "route 10.0.0.0/24 dev tap0", "10.0.0.2", Path{Link: "tap0", OnLink: true, MTU: 1500}},
		{"no address", "", "", Path{}},
	} {
		h := host(t, base+c.routes)
		if diff := cmp.Diff(c.want, NewPaths(h).To(ip(c.addr)), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); diff != "" {
			t.Errorf("%s (-want +got):\n%s", c.name, diff)
		}
		via, link, ok := OnLink(h, ip(c.addr))
		if got := WayMTU(h, ip(c.addr)); via != c.want.Via || link != c.want.Link || ok != c.want.OnLink || got != c.want.MTU {
			t.Errorf("%s: OnLink %s %s %t, WayMTU %d", c.name, via, link, ok, got)
		}
	}
}

func TestWithoutARouteThereIsNoPath(t *testing.T) {
	h := host(t, "link eth0\naddr eth0 192.168.50.1/24\nroute 192.168.50.0/24 dev eth0")
	for _, addr := range []string{"192.168.60.2", "2001:db8::2"} {
		if got := NewPaths(h).To(ip(addr)); got != (Path{}) {
			t.Errorf("%s: %+v", addr, got)
		}
	}
}
