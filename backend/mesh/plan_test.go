package mesh_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
)

func plan(t *testing.T, in mesh.Input) mesh.Result {
	t.Helper()
	r, err := mesh.Plan(in)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// ways tells by what each peer is reached, and what is announced besides.
func ways(r mesh.Result) string {
	var out []string
	for name, way := range r.Ways {
		for _, f := range subnet.Families() {
			if way[f].Kind != "" {
				out = append(out, fmt.Sprintf("%s %v %s", name, f, way[f].Kind))
			}
		}
	}
	slices.Sort(out)
	return strings.Join(out, ", ") + "; also " + r.Also.String()
}

func reasons(r mesh.Result) string {
	var out []string
	for _, p := range r.Problems {
		out = append(out, p.Node+" "+p.Reason)
	}
	return strings.Join(out, ", ")
}

func TestEveryBackendIsOnePlan(t *testing.T) {
	direct := config(1, subnet.VXLAN)
	direct.DirectRouting = true
	for _, test := range []struct {
		name string
		c    mesh.Config
		want string
	}{
		{"host-gw", config(1, subnet.HostGW), `
route 10.244.2.0/24 via 192.168.50.2 dev eth0 proto 87
route fd00:10:244:2::/64 via fd00:50::2 dev eth0 proto 87 metric 1024
`},
		{"vxlan with DirectRouting", direct, `
link flannel-v6.1 mtu 1430 state UP address 0e:00:00:00:00:01 vxlan id 1 dev if2 local fd00:50::1 dstport 4789 nolearning
link flannel.1 mtu 1450 state UP address 0a:00:00:00:00:01 vxlan id 1 dev if2 local 192.168.50.1 dstport 4789 nolearning
addr fd00:10:244:1::/128 dev flannel-v6.1
addr 10.244.1.0/32 dev flannel.1
route 10.244.2.0/24 via 192.168.50.2 dev eth0 proto 87
route fd00:10:244:2::/64 via fd00:50::2 dev eth0 proto 87 metric 1024
`},
		{"alloc", config(1, subnet.Alloc), ""},
	} {
		p := peer(2, test.c.Kind)
		if test.c.DirectRouting {
			p.Also = subnet.KindsOf(subnet.HostGW)
		}
		got := plan(t, input(test.c, p)).Want.String()
		if d := cmp.Diff(strings.TrimPrefix(test.want, "\n"), got); d != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, d)
		}
	}
}

func TestWireGuardHasADeviceAFamilyOrOneForBoth(t *testing.T) {
	c := config(1, subnet.WireGuard)
	got := plan(t, input(c, peer(2, subnet.WireGuard))).Want
	blackhole := kernel.Route{Ours: true, Type: "blackhole"}
	for _, f := range subnet.Families() {
		name := kernel.WireGuardName(f)
		link := kernel.Link{Kind: kernel.KindWireGuard, Port: 51820 + uint16(f), Key: secret(1), MTU: 1420, Up: true}
		if d := cmp.Diff(link.String(), got.Links[name].String()); got.Links[name] != link {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
		entry := got.Peers[kernel.WGKey{Link: name, Key: peer(2, "").Key}]
		if want := netip.AddrPortFrom(public(f, 2), 51820+uint16(f)); entry.Endpoint != want || entry.Allowed[f] != prefix(f, 2) || entry.Allowed[1-f].IsValid() {
			t.Errorf("%s: %+v", name, entry)
		}
		route := got.Routes[kernel.RouteKey{Dst: prefix(f, 2), Metric: kernel.RouteMetric(f)}]
		if route != (kernel.Route{Link: name, Ours: true, Type: "unicast"}) {
			t.Errorf("%s: %+v", name, route)
		}
		if got.Routes[kernel.RouteKey{Dst: networks()[f], Metric: kernel.LastMetric}] != blackhole {
			t.Errorf("%v: no blackhole behind the network:\n%s", f, got)
		}
	}
	for mode, want := range map[string]string{subnet.ModeAuto: "192.168.50.2:51820", subnet.ModeIPv4: "192.168.50.2:51820", subnet.ModeIPv6: "[fd00:50::2]:51820"} {
		c.WireGuard.Conf.Mode = mode
		p := peer(2, subnet.WireGuard)
		p.WGPorts = [2]uint16{51820, 51820}
		got := plan(t, input(c, p)).Want
		entry := got.Peers[kernel.WGKey{Link: "flannel-wg", Key: p.Key}]
		if len(got.Links) != 1 || len(got.Peers) != 1 || len(got.Addrs) != 2 || entry.Endpoint.String() != want || entry.Allowed != [2]netip.Prefix{prefix(0, 2), prefix(1, 2)} {
			t.Errorf("mode %s: %+v in\n%s", mode, entry, got)
		}
	}
}

func TestWireGuardInOneFamilyNeverTouchesTheOthersRoutes(t *testing.T) { // contract 12.15
	for _, mode := range []string{subnet.ModeSeparate, subnet.ModeAuto, subnet.ModeIPv4, subnet.ModeIPv6} {
		for _, f := range subnet.Families() {
			c := only(f, config(1, subnet.WireGuard))
			c.Networks[1-f] = netip.Prefix{}
			c.WireGuard.Conf.Mode = mode
			r := plan(t, input(c, peer(2, subnet.WireGuard)))
			for k := range r.Want.Routes {
				if subnet.FamilyOf(k.Dst.Addr()) != f || k.Dst.Bits() == 0 {
					t.Errorf("mode %s, %v alone: route to %s", mode, f, k.Dst)
				}
			}
			if len(r.Want.Peers) != 1 || len(r.Problems) > 0 {
				t.Errorf("mode %s, %v alone: %s, %v", mode, f, r.Want, r.Problems)
			}
		}
	}
}

func TestModeAutoPrefersAddressesThatAreReachedFromAnywhere(t *testing.T) { // contract 6.6
	four, six := func(s string) func(e *subnet.Endpoint) {
		return func(e *subnet.Endpoint) { e.PublicIP = netip.MustParseAddr(s) }
	}, "[2001:db8::2]:51820" // that of the peer's one device
	for _, test := range []struct {
		name, own, v4, v6, want string
	}{
		{"both private", "2001:db8::1", "192.168.50.2", "fd00:50::2", "192.168.50.2:51820"},
		{"a public IPv4 address", "2001:db8::1", "203.0.113.2", "2001:db8::2", "203.0.113.2:51820"},
		{"a global IPv6 address, and ours too", "2001:db8::1", "192.168.50.2", "2001:db8::2", six},
		{"a global IPv6 address, ours is not", "fd00:50::1", "192.168.50.2", "2001:db8::2", "192.168.50.2:51820"},
	} {
		c := config(1, subnet.WireGuard)
		c.WireGuard.Conf.Mode = subnet.ModeAuto
		c.Ends[subnet.IPv6].Local = netip.MustParseAddr(test.own)
		p := changed(changed(peer(2, subnet.WireGuard), subnet.IPv4, four(test.v4)), subnet.IPv6, four(test.v6))
		got := plan(t, input(c, p)).Want.Peers[kernel.WGKey{Link: "flannel-wg", Key: p.Key}].Endpoint.String()
		if got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

func TestIPIPHasADeviceAFamily(t *testing.T) {
	got := plan(t, input(config(1, subnet.IPIP), peer(2, subnet.IPIP))).Want
	for f, link := range map[subnet.Family]kernel.Link{
		subnet.IPv4: {Kind: kernel.KindIPIP, Local: public(subnet.IPv4, 1), MTU: 1480, Up: true},
		subnet.IPv6: {Kind: kernel.KindIP6Tnl, Local: public(subnet.IPv6, 1), MTU: 1460, Up: true},
	} {
		name := kernel.TunnelName(f)
		route := kernel.Route{Link: name, Via: public(f, 2), Onlink: f == subnet.IPv4, Ours: true, Type: "unicast"}
		if got.Links[name] != link || got.Routes[kernel.RouteKey{Dst: prefix(f, 2), Metric: kernel.RouteMetric(f)}] != route {
			t.Errorf("%v:\n%s", f, got)
		}
	}
}

func TestABlackholeForTheOwnRangeIsTheSameForEveryBackend(t *testing.T) {
	for _, kind := range subnet.BackendKinds() {
		c := only(subnet.IPv4, config(1, kind))
		c.Blackhole = true
		if got := plan(t, input(c)).Want; got.Routes[kernel.RouteKey{Dst: prefix(subnet.IPv4, 1), Metric: kernel.LastMetric}].Type != "blackhole" {
			t.Errorf("%s:\n%s", kind, got)
		}
	}
}

func TestANetworkThatHoldsTheNodeItselfGetsNoBlackhole(t *testing.T) {
	c := only(subnet.IPv4, config(1, subnet.WireGuard))
	c.Networks[subnet.IPv4] = netip.MustParsePrefix("0.0.0.0/0")
	if got := plan(t, input(c)).Want; len(got.Routes) > 0 {
		t.Errorf("got\n%s", got)
	}
}

func TestTheBetterOfWhatBothSpeakCarriesThePackets(t *testing.T) {
	also := func(c mesh.Config, kinds ...string) mesh.Config { c.Former = subnet.KindsOf(kinds...); return c }
	for _, test := range []struct {
		name string
		c    mesh.Config
		peer subnet.Peer
		want string
	}{
		{"the same", config(1, subnet.VXLAN), peer(2, subnet.VXLAN), "n2 IPv4 vxlan; also "},
		{"the peer is not that far", also(config(1, subnet.HostGW), subnet.VXLAN), peer(2, subnet.VXLAN), "n2 IPv4 vxlan; also vxlan"},
		{"we are not that far", config(1, subnet.VXLAN), peer(2, subnet.HostGW, subnet.VXLAN), "n2 IPv4 vxlan; also "},
		{"encryption before speed", also(config(1, subnet.IPIP), subnet.WireGuard, subnet.VXLAN), peer(2, subnet.VXLAN, subnet.WireGuard),
			"n2 IPv4 vxlan; also vxlan"}, // there is no session yet
		{"two that meet at a third", also(config(1, subnet.IPIP), subnet.VXLAN), peer(2, subnet.HostGW, subnet.VXLAN), "n2 IPv4 vxlan; also vxlan"},
		{"nothing in common", config(1, subnet.IPIP), peer(2, subnet.VXLAN), "; also "},
		{"alloc", config(1, subnet.Alloc), peer(2, subnet.Alloc), "; also "},
		{"alloc and vxlan", config(1, subnet.Alloc), peer(2, subnet.VXLAN), "; also "},
		{"alloc on the way", also(config(1, subnet.Alloc), subnet.VXLAN), peer(2, subnet.VXLAN), "n2 IPv4 vxlan; also vxlan"},
	} {
		if got := ways(plan(t, input(only(subnet.IPv4, test.c), test.peer))); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

func TestAPeerThatIsNotReachedAsItShouldBeIsToldOf(t *testing.T) {
	gatewayed := func(h kernel.Host) kernel.Host {
		h.Routes = append(h.Routes, kernel.HostRoute{Dst: netip.MustParsePrefix("192.168.50.2/32"), Type: "unicast",
			Hops: []kernel.Hop{{Index: 2, Via: netip.MustParseAddr("192.168.50.254")}}})
		return h
	}
	cut := func(h kernel.Host) kernel.Host { h.Routes = nil; return h }
	none := func(h kernel.Host) kernel.Host { return h }
	former := func(kind string, f ...string) mesh.Config {
		c := config(1, kind)
		c.Former = subnet.KindsOf(f...)
		return c
	}
	keyless := peer(2, subnet.WireGuard, subnet.VXLAN)
	keyless.Key = subnet.Key{}
	ours := peer(2, subnet.WireGuard)
	ours.Key = peer(1, "").Key
	end := func(change func(e *subnet.Endpoint)) subnet.Peer {
		return changed(peer(2, subnet.HostGW), subnet.IPv4, change)
	}
	cidr := func(s string) subnet.Peer {
		return end(func(e *subnet.Endpoint) { e.PodCIDR = netip.MustParsePrefix(s) })
	}
	for _, test := range []struct {
		name   string
		c      mesh.Config
		peer   subnet.Peer
		host   func(kernel.Host) kernel.Host
		reason string
		text   string // part of it
		routes int    // to the peer
	}{
		{"a good peer", config(1, subnet.HostGW), peer(2, subnet.HostGW), none, "", "", 1},
		{"host-gw behind a router", config(1, subnet.HostGW), peer(2, subnet.HostGW), gatewayed, "NotOnLink",
			`192.168.50.2 is behind the gateway 192.168.50.254 on eth0: its pods cannot be reached; host-gw needs all nodes on one link; use "Type": "vxlan"`, 0},
		{"host-gw without a route", config(1, subnet.HostGW), peer(2, subnet.HostGW), cut, "NotOnLink", "there is no route to its address", 0},
		{"host-gw behind a router, and vxlan before", former(subnet.HostGW, subnet.VXLAN), peer(2, subnet.HostGW, subnet.VXLAN), gatewayed,
			"NotOnLink", "it is reached by vxlan, as before", 1},
		{"P-12: another backend", config(1, subnet.VXLAN), peer(2, subnet.IPIP), none, "OtherBackend", `its backend is "ipip", ours is vxlan: its pods cannot be reached`, 0},
		{"another backend, on the way", former(subnet.HostGW, subnet.VXLAN), peer(2, subnet.VXLAN), none, "OtherBackend", "it is reached by vxlan until both are the same", 1},
		{"in the clear, on the way", former(subnet.WireGuard, subnet.VXLAN), peer(2, subnet.VXLAN), none, "NotEncrypted", "packets for it go by vxlan, in the clear", 1},
		{"no key", former(subnet.WireGuard, subnet.VXLAN), keyless, none, "BadKey", "nothing is sent to it, neither encrypted nor in the clear", 0},
		{"our own key", config(1, subnet.WireGuard), ours, none, "DuplicateKey", "is that of this node", 0},
		{"vxlan without a MAC", config(1, subnet.VXLAN), changed(peer(2, subnet.VXLAN), 0, func(e *subnet.Endpoint) { e.MAC = subnet.MAC{} }), none, "Incomplete", "lacks", 0},
		{"no address", config(1, subnet.HostGW), end(func(e *subnet.Endpoint) { e.PublicIP = netip.Addr{} }), none, "Incomplete", "lacks", 0},
		{"I-01: our own address", config(1, subnet.HostGW), end(func(e *subnet.Endpoint) { e.PublicIP = public(0, 1) }), none, "DuplicateAddress",
			"announces our own address 192.168.50.1", 0},
		{"P-10: our own pod CIDR", config(1, subnet.HostGW), cidr("10.244.0.0/23"), none, "OverlappingPodCIDR", "overlaps our own 10.244.1.0/24", 0},
		{"a pod CIDR around the underlay", config(1, subnet.HostGW), cidr("192.168.0.0/16"), none, "OverlappingUnderlay", "would cut the node off", 0},
		{"D-02: outside of the Network is told and planned", config(1, subnet.HostGW), cidr("10.42.2.0/24"), none, "OutsideNetwork", "lies outside the Network 10.244.0.0/16", 1},
		{"S-02 and 12.13: a peer without the family", config(1, subnet.HostGW), end(func(e *subnet.Endpoint) { *e = subnet.Endpoint{} }), none, "", "", 0},
	} {
		in := input(only(subnet.IPv4, test.c), test.peer)
		in.Host = test.host(in.Host)
		r := plan(t, in)
		routes := 0
		for _, route := range r.Want.Routes {
			if route.Type == "unicast" {
				routes++
			}
		}
		told := ""
		for _, p := range r.Problems {
			if p.Reason == test.reason {
				told = p.Text
			}
		}
		if routes != test.routes || (test.reason == "") != (len(r.Problems) == 0) || !strings.Contains(told, test.text) {
			t.Errorf("%s: %d routes, %v", test.name, routes, r.Problems)
		}
	}
}

func TestOneFamilysFaultLeavesTheOtherInPlace(t *testing.T) { // contract 12.18
	for _, kind := range []string{subnet.VXLAN, subnet.HostGW, subnet.WireGuard, subnet.IPIP} {
		for _, f := range subnet.Families() {
			bad := changed(peer(2, kind), f, func(e *subnet.Endpoint) { e.PodCIDR = netip.Prefix{} })
			r := plan(t, input(config(1, kind), bad))
			if _, ok := r.Want.Routes[kernel.RouteKey{Dst: prefix(1-f, 2), Metric: kernel.RouteMetric(1 - f)}]; !ok || reasons(r) != "n2 Incomplete" {
				t.Errorf("%s, %v: %s\n%s", kind, f, reasons(r), r.Want)
			}
		}
	}
}

func TestPlanRefusesWhatCannotWorkHereWithValuePlaceAndCure(t *testing.T) {
	end := func(change func(e *mesh.End)) func(c *mesh.Config) {
		return func(c *mesh.Config) { change(&c.Ends[0]) }
	}
	for _, test := range []struct {
		name, kind string
		change     func(c *mesh.Config)
		want       string
	}{
		{"MTU above the link", subnet.VXLAN, func(c *mesh.Config) { c.MTU = 9000 },
			"MTU 9000 in net-conf.json is larger than the 1500 of the underlay device eth0: lower it, leave it out, or raise the device's"},
		{"MTU too small", subnet.VXLAN, func(c *mesh.Config) { c.MTU = 100 }, "MTU 100 in net-conf.json leaves 50 for IPv4 pods after 50 bytes of vxlan headers"},
		{"link too small", subnet.WireGuard, end(func(e *mesh.End) { e.UnderlayMTU = 100 }), "MTU 100 of the underlay device eth0 leaves 20 for IPv4 pods after 80"},
		{"no pod CIDR", subnet.HostGW, end(func(e *mesh.End) { e.PodCIDR = netip.Prefix{} }), "pod CIDR invalid Prefix of the own Node is not usable"},
		{"no local address", subnet.IPIP, end(func(e *mesh.End) { e.Local = netip.MustParseAddr("::1") }), "IPv4 tunnel address ::1 of eth0 is not usable"},
		{"pods around the underlay", subnet.HostGW, end(func(e *mesh.End) { e.PodCIDR = netip.MustParsePrefix("192.168.0.0/16") }), "must not overlap the underlay"},
		{"no MAC", subnet.VXLAN, func(c *mesh.Config) { c.VXLAN.MACs[0] = subnet.MAC{} }, "needs a unicast MAC"},
		{"no key", subnet.WireGuard, func(c *mesh.Config) { c.WireGuard.Key = subnet.Secret{} }, "no private key"},
		{"no family", subnet.VXLAN, func(c *mesh.Config) { c.Ends = [2]mesh.End{} }, "no address family is in use"},
		{"no such backend", "udp", func(*mesh.Config) {}, `backend "udp" is none of`},
	} {
		c := only(subnet.IPv4, config(1, test.kind))
		test.change(&c)
		if r, err := mesh.Plan(input(c, peer(2, test.kind))); err == nil || !strings.Contains(err.Error(), test.want) || r.Want.Links != nil {
			t.Errorf("%s: %v", test.name, err)
		}
	}
}

func TestTheMTUIsThatOfTheNarrowestWay(t *testing.T) { // V-06, V-07
	route := func(h kernel.Host, dst string, mtu, index int) kernel.Host {
		h.Links = append(h.Links, kernel.HostLink{Index: 3, Name: "vpn0", MTU: 1400, Up: true, Carrier: true})
		h.Routes = append(h.Routes, kernel.HostRoute{Dst: netip.MustParsePrefix(dst), MTU: mtu, Type: "unicast", Hops: []kernel.Hop{{Index: index}}})
		return h
	}
	jumbo := config(1, subnet.VXLAN)
	jumbo.Ends[0].UnderlayMTU, jumbo.Ends[1].UnderlayMTU = 9000, 9000
	set := config(1, subnet.VXLAN)
	set.MTU = 1400
	mixed := config(1, subnet.VXLAN)
	mixed.Former = subnet.KindsOf(subnet.WireGuard)
	auto := config(1, subnet.WireGuard)
	auto.WireGuard.Conf.Mode = subnet.ModeAuto
	for _, test := range []struct {
		name string
		c    mesh.Config
		peer subnet.Peer
		host kernel.Host
		pods int
		link int // of the first device
	}{
		{"host-gw", config(1, subnet.HostGW), peer(2, subnet.HostGW), lan(), 1500, 0},
		{"vxlan in both families", config(1, subnet.VXLAN), peer(2, subnet.VXLAN), lan(), 1430, 1450},
		{"vxlan in IPv4", only(subnet.IPv4, config(1, subnet.VXLAN)), peer(2, subnet.VXLAN), lan(), 1450, 1450},
		{"wireguard", config(1, subnet.WireGuard), peer(2, subnet.WireGuard), lan(), 1420, 1420},
		{"ipip in both families", config(1, subnet.IPIP), peer(2, subnet.IPIP), lan(), 1460, 1480},
		{"alloc", config(1, subnet.Alloc), peer(2, subnet.Alloc), lan(), 1500, 0},
		{"a jumbo link and peers on a common one", jumbo, peer(2, subnet.VXLAN), lan(), 1430, 1450},
		{"set in net-conf", set, peer(2, subnet.VXLAN), lan(), 1330, 1350},
		{"a route with an MTU", only(subnet.IPv4, config(1, subnet.VXLAN)), peer(2, subnet.VXLAN), route(lan(), "192.168.50.2/32", 1300, 2), 1250, 1250},
		{"a peer behind a VPN", only(subnet.IPv4, config(1, subnet.VXLAN)), peer(2, subnet.VXLAN), route(lan(), "192.168.50.2/32", 0, 3), 1350, 1350},
		{"a way too narrow for IPv6 in a tunnel", only(subnet.IPv6, config(1, subnet.VXLAN)), peer(2, subnet.VXLAN), route(lan(), "fd00:50::2/128", 1280, 2), 1280, 1280},
		{"a way of IPv4 too narrow for the pods' IPv6", config(1, subnet.VXLAN), peer(2, subnet.VXLAN), route(lan(), "192.168.50.2/32", 600, 2), 1280, 1280},
		{"one family's narrow way in one device for both", auto, peer(2, subnet.WireGuard), route(lan(), "fd00:50::2/128", 1400, 2), 1320, 1320},
		{"on the way from wireguard", mixed, peer(2, subnet.WireGuard), lan(), 1420, 1450},
	} {
		in := input(test.c, test.peer)
		in.Host = test.host
		r := plan(t, in)
		link := 0
		if len(r.Devices) > 0 {
			link = r.Want.Links[r.Devices[0]].MTU
		}
		if r.PodMTU != test.pods || link != test.link {
			t.Errorf("%s: pods %d, want %d; %v %d, want %d", test.name, r.PodMTU, test.pods, r.Devices, link, test.link)
		}
	}
}

// An annotation that names a pod's address leads back into the overlay. Its device would be taken for the way to that peer, and
// be made smaller for it in every round.
func TestAPeerAtAPodsAddressMakesNoMTUSmaller(t *testing.T) {
	for addr, dst := range map[string]string{"10.244.3.9": "10.244.3.0/24", "10.244.1.9": "10.244.1.0/24"} {
		liar := changed(peer(2, subnet.VXLAN), subnet.IPv4, func(e *subnet.Endpoint) { e.PublicIP = netip.MustParseAddr(addr) })
		in := input(only(subnet.IPv4, config(1, subnet.VXLAN)), liar, peer(3, subnet.VXLAN))
		name := map[string]string{"10.244.3.9": "flannel.1", "10.244.1.9": "cni0"}[addr]
		in.Host.Links = append(in.Host.Links, kernel.HostLink{Index: 9, Name: name, MTU: 1450, Up: true, Carrier: true})
		in.Host.Routes = append(in.Host.Routes, kernel.HostRoute{Dst: netip.MustParsePrefix(dst), Type: "unicast", Hops: []kernel.Hop{{Index: 9}}})
		r := plan(t, in)
		if mtu := r.Want.Links["flannel.1"].MTU; mtu != 1450 || len(r.Problems) != 1 || r.Problems[0].Reason != "OverlappingUnderlay" {
			t.Errorf("%s: MTU %d, %v", addr, mtu, r.Problems)
		}
		if len(r.Want.Routes) != 1 {
			t.Errorf("%s: %v", addr, r.Want.Routes)
		}
	}
}

func TestWhatMayNotBeMetInTheClear(t *testing.T) {
	former := func(kind string, f ...string) mesh.Config {
		c := only(subnet.IPv4, config(1, kind))
		c.Former = subnet.KindsOf(f...)
		return c
	}
	for _, test := range []struct {
		name string
		c    mesh.Config
		peer subnet.Peer
		self string // announced
		want string
	}{
		{"at rest", former(subnet.WireGuard), peer(2, subnet.WireGuard), subnet.WireGuard, "[10.244.2.0/24]"},
		{"a peer that cannot be reached", former(subnet.WireGuard), peer(2, subnet.IPIP), subnet.WireGuard, "[10.244.2.0/24]"},
		{"a peer that is not that far", former(subnet.WireGuard, subnet.VXLAN), peer(2, subnet.VXLAN), subnet.WireGuard, "[]"},
		{"a peer that may still send plain packets", former(subnet.WireGuard), peer(2, subnet.WireGuard, subnet.HostGW), subnet.WireGuard, "[]"},
		{"we said that we take plain packets", former(subnet.WireGuard), peer(2, subnet.WireGuard), subnet.HostGW, "[]"},
		{"on the way back", former(subnet.VXLAN, subnet.WireGuard), peer(2, subnet.WireGuard), subnet.WireGuard, "[10.244.2.0/24]"},
		{"no encryption", former(subnet.VXLAN), peer(2, subnet.VXLAN), subnet.VXLAN, "[]"},
	} {
		in := input(test.c, test.peer)
		in.Snapshot.Self.BackendType = test.self
		if got := fmt.Sprint(plan(t, in).Encrypted[subnet.IPv4]); got != test.want {
			t.Errorf("%s: %s, want %s", test.name, got, test.want)
		}
	}
}

func TestPacketsMoveToWireGuardWhenItsSessionIsUpAndAfterTwoMinutesInAnyCase(t *testing.T) {
	c := only(subnet.IPv4, config(1, subnet.WireGuard))
	c.Former = subnet.KindsOf(subnet.VXLAN)
	p := peer(2, subnet.WireGuard, subnet.VXLAN)
	in := input(c, p)
	in.Snapshot.Self = subnet.Self{BackendType: subnet.WireGuard, Also: subnet.KindsOf(subnet.VXLAN)}
	in.Last = mesh.Ways{"n2": {{Kind: subnet.VXLAN, Since: noon().Add(-time.Hour)}}}
	key := kernel.WGKey{Link: "flannel-wg", Key: p.Key}

	waiting := plan(t, in)
	entry := waiting.Want.Peers[key]
	if got := ways(waiting); got != "n2 IPv4 vxlan; also vxlan" || reasons(waiting) != "n2 NotEncrypted" || waiting.Again != time.Second || entry.Keepalive == 0 {
		t.Errorf("waiting: %s, %s, again %v, %+v", got, reasons(waiting), waiting.Again, entry)
	}
	in.Last = waiting.Ways

	in.Now = noon().Add(time.Minute)
	up := in
	up.Have = kernel.New()
	up.Have.Handshakes[key] = in.Now.Add(-time.Second)
	moved := plan(t, up)
	if got := ways(moved); got != "n2 IPv4 wireguard; also " || reasons(moved) != "" || moved.Want.Peers[key].Keepalive != 0 {
		t.Errorf("up: %s, %s", got, reasons(moved))
	}
	if _, kept := moved.Want.Links["flannel.1"]; !kept {
		t.Error("the peer may still send by vxlan, and is not heard")
	}
	up.Last, up.Now, up.Have = moved.Ways, noon().Add(time.Hour), kernel.New()
	if got := ways(plan(t, up)); got != "n2 IPv4 wireguard; also " {
		t.Errorf("an hour later, without a session: %s", got)
	}

	in.Now = noon().Add(2 * time.Minute)
	forced := plan(t, in)
	if got := ways(forced); got != "n2 IPv4 wireguard; also " || reasons(forced) != "n2 NoSession" || !strings.Contains(forced.Problems[0].Text, "192.168.50.2:51820") {
		t.Errorf("never up: %s, %v", got, forced.Problems)
	}
	in.Last, in.Now = forced.Ways, noon().Add(3*time.Minute)
	if got := ways(plan(t, in)); got != "n2 IPv4 wireguard; also " {
		t.Errorf("never up, later: %s", got)
	}
}

func TestDirectRoutingFollowsTheRoutesAndLeavesNothingOfTheOtherForm(t *testing.T) { // contract 12.8
	c := only(subnet.IPv4, config(1, subnet.VXLAN))
	c.DirectRouting = true
	flannel := peer(2, subnet.VXLAN)
	flannel.Port = 0
	silent := peer(2, subnet.VXLAN) // of weft, without DirectRouting: its rp_filter may be strict
	for _, test := range []struct {
		name string
		peer subnet.Peer
		far  bool
		want string
	}{
		{"a neighbour", peer(2, subnet.VXLAN, subnet.HostGW), false, "n2 IPv4 host-gw; also host-gw"},
		{"behind a router", peer(2, subnet.VXLAN, subnet.HostGW), true, "n2 IPv4 vxlan; also host-gw"},
		{"a neighbour that does not take plain packets", silent, false, "n2 IPv4 vxlan; also host-gw"},
		{"a neighbour that runs flannel", flannel, false, "n2 IPv4 host-gw; also host-gw"},
	} {
		in := input(c, test.peer)
		in.Snapshot.Self = subnet.Self{BackendType: subnet.VXLAN, Also: subnet.KindsOf(subnet.HostGW)}
		if test.far {
			in.Host.Routes[1].Hops[0].Via = netip.MustParseAddr("192.168.50.254")
		}
		r := plan(t, in)
		direct := strings.Contains(test.want, "IPv4 host-gw")
		if got := ways(r); got != test.want || direct != (len(r.Want.FDB) == 0 && len(r.Want.Neighs) == 0) || len(r.Want.Routes) != 1 {
			t.Errorf("%s: %s, want %s\n%s", test.name, got, test.want, r.Want)
		}
		if !slices.Equal(r.Plain, []string{"eth0"}) && !test.far {
			t.Errorf("%s: plain packets are taken by %v", test.name, r.Plain)
		}
	}
}

func TestTheReversePathFilterStaysWhereAnswersGoTheWayThatPacketsCame(t *testing.T) {
	former := config(1, subnet.HostGW)
	former.Former = subnet.KindsOf(subnet.VXLAN)
	direct := config(1, subnet.VXLAN)
	direct.DirectRouting = true
	for _, test := range []struct {
		name string
		c    mesh.Config
		peer subnet.Peer
		want []string
	}{
		{"host-gw everywhere", config(1, subnet.HostGW), peer(2, subnet.HostGW), nil},
		{"host-gw, with another backend's device still there", former, peer(2, subnet.HostGW, subnet.VXLAN), []string{"eth0"}},
		{"a peer leaves host-gw", former, peer(2, subnet.VXLAN, subnet.HostGW), []string{"eth0"}},
		{"this node leaves host-gw", config(1, subnet.VXLAN), peer(2, subnet.HostGW, subnet.VXLAN), []string{"eth0"}},
		{"DirectRouting, whose neighbours may be none tomorrow", direct, peer(2, subnet.VXLAN, subnet.HostGW), []string{"eth0"}},
	} {
		in := input(test.c, test.peer)
		in.Snapshot.Self = subnet.Self{BackendType: test.c.Kind, Also: test.c.Former}
		if diff := cmp.Diff(test.want, plan(t, in).Plain); diff != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, diff)
		}
	}
}

func TestANICThatWasReplacedIsFollowed(t *testing.T) { // contract 12.14
	in := input(only(subnet.IPv4, config(1, subnet.HostGW)), peer(2, subnet.HostGW))
	in.Host.Links[0].Index, in.Host.Links[0].Name = 7, "eth7"
	for i := range in.Host.Routes {
		in.Host.Routes[i].Hops[0].Index = 7
	}
	if got := plan(t, in).Want.String(); got != "route 10.244.2.0/24 via 192.168.50.2 dev eth7 proto 87\n" {
		t.Errorf("got %s", got)
	}
}

func TestADeadNodeDoesNotHoldAFormerBackendForEver(t *testing.T) {
	c := only(subnet.IPv4, config(1, subnet.HostGW))
	c.Former = subnet.KindsOf(subnet.VXLAN) // its device is there
	in := input(c, peer(2, subnet.HostGW), peer(3, subnet.HostGW, subnet.VXLAN))
	in.Snapshot.Self.BackendType = subnet.HostGW
	first := plan(t, in)
	if len(first.Want.Links) != 1 || first.Again == 0 {
		t.Errorf("at first: %s again %v", first.Want, first.Again)
	}
	in.Last, in.Kept, in.Now = first.Ways, first.Kept, noon().Add(10*time.Minute)
	second := plan(t, in)
	in.Last, in.Kept, in.Now = second.Ways, second.Kept, noon().Add(10*time.Minute+10*time.Second)
	if third := plan(t, in); len(third.Want.Links) != 0 {
		t.Errorf("left: %s", third.Want)
	}
}

func TestAKindIsGivenUpWhenTheKernelHasMoved(t *testing.T) {
	c := only(subnet.IPv4, config(1, subnet.HostGW))
	c.Former = subnet.KindsOf(subnet.VXLAN)
	in := input(c, peer(2, subnet.HostGW, subnet.VXLAN))
	in.Snapshot.Self = subnet.Self{BackendType: subnet.HostGW, Also: subnet.KindsOf(subnet.VXLAN)}
	before := input(only(subnet.IPv4, config(1, subnet.VXLAN)), peer(2, subnet.VXLAN))
	in.Have = plan(t, before).Want
	first := plan(t, in)
	if got := ways(first); got != "n2 IPv4 host-gw; also vxlan" || first.Again == 0 {
		t.Errorf("while the route is not moved: %s, again %v", got, first.Again)
	}
	in.Last, in.Have = first.Ways, first.Want
	if got := ways(plan(t, in)); got != "n2 IPv4 host-gw; also " {
		t.Errorf("then: %s", got)
	}
}

func TestTwoEqualInputsGiveEqualPlans(t *testing.T) {
	c := config(1, subnet.WireGuard)
	c.Former = subnet.KindsOf(subnet.VXLAN, subnet.HostGW)
	in := input(c, peer(2, subnet.WireGuard), peer(3, subnet.VXLAN), peer(4, subnet.HostGW), peer(5, subnet.IPIP, subnet.VXLAN))
	want := plan(t, in)
	for range 20 {
		if got := plan(t, in); fmt.Sprint(got) != fmt.Sprint(want) {
			t.Fatalf("%v\n%v", got, want)
		}
	}
}
