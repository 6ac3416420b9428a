package kernel_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// put files what an Op of a test sets.
func put(s kernel.State, ops ...kernel.Op) kernel.State {
	for _, op := range ops {
		switch op.Kind {
		case kernel.LinkAdd:
			s.Links[op.Name] = op.Link
		case kernel.AddrSet:
			s.Addrs[op.Addr] = struct{}{}
		case kernel.PeerSet:
			s.Peers[op.PeerKey] = op.Peer
		case kernel.RouteSet:
			s.Routes[op.Key] = op.Route
		}
	}
	return s
}

// wgNode is a node with WireGuard and the given peers: peer i has 10.244.i.0/24 and the key i.
func wgNode(peers ...int) kernel.State {
	s := put(kernel.New(), linkAdd(wg, wgLink()), addr(kernel.AddrSet, wg, "10.244.1.0/32"))
	for _, i := range peers {
		cidr := podCIDR(subnet.IPv4, i).String()
		put(s, peerSet(wg, pub(byte(i)), i, cidr), hop(kernel.RouteSet, wg, cidr, "", false))
	}
	return s
}

// tunNode is the same with IP in IP.
func tunNode(peers ...int) kernel.State {
	s := put(kernel.New(), linkAdd(tun, tunLink(subnet.IPv4)), addr(kernel.AddrSet, tun, "10.244.1.0/32"))
	for _, i := range peers {
		put(s, hop(kernel.RouteSet, tun, podCIDR(subnet.IPv4, i).String(), underlay(subnet.IPv4, i).String(), true))
	}
	return s
}

func TestDiffBringsAllKindsOfDeviceAboutInTheOrderOfThePath(t *testing.T) {
	k2, k3, k22 := pub(2).String(), pub(3).String(), pub(22).String()
	rekeyed := wgNode()
	put(rekeyed, peerSet(wg, pub(22), 2, "10.244.2.0/24"), hop(kernel.RouteSet, wg, "10.244.2.0/24", "", false))
	direct := put(kernel.New(), hop(kernel.RouteSet, "eth0", "10.244.2.0/24", "192.168.50.2", false))
	tests := []struct {
		name       string
		have, want kernel.State
		ops        string
	}{
		{"a first start with WireGuard", kernel.New(), wgNode(2), `
ip route add blackhole 10.244.0.0/16 proto 87 metric 4294967295
ip link add flannel-wg mtu 1420 up type wireguard; wg set flannel-wg listen-port 51820 private-key (hidden)
ip addr replace 10.244.1.0/32 dev flannel-wg
wg set flannel-wg peer ` + k2 + ` endpoint 192.168.50.2:51820 allowed-ips 10.244.2.0/24
ip route add 10.244.2.0/24 dev flannel-wg proto 87
ip route del blackhole 10.244.0.0/16 proto 87 metric 4294967295
`},
		{"a blackhole that is wanted comes before everything, and stays", kernel.New(), edited(wgNode(), guarded), `
ip route add blackhole 10.244.0.0/16 proto 87 metric 4294967295
ip link add flannel-wg mtu 1420 up type wireguard; wg set flannel-wg listen-port 51820 private-key (hidden)
ip addr replace 10.244.1.0/32 dev flannel-wg
`},
		{"nothing to do", wgNode(2, 3), wgNode(2, 3), ``},
		{"a WireGuard peer joins and another leaves", wgNode(2), wgNode(3), `
wg set flannel-wg peer ` + k3 + ` endpoint 192.168.50.3:51820 allowed-ips 10.244.3.0/24
ip route add 10.244.3.0/24 dev flannel-wg proto 87
ip route del 10.244.2.0/24 dev flannel-wg proto 87
wg set flannel-wg peer ` + k2 + ` remove
`},
		{"a peer with a new key takes its range over, then the old entry goes", wgNode(2), rekeyed, `
wg set flannel-wg peer ` + k22 + ` endpoint 192.168.50.2:51820 allowed-ips 10.244.2.0/24
wg set flannel-wg peer ` + k2 + ` remove
`},
		{"an agent restarts with another key and port", edited(wgNode(2), func(s kernel.State) {
			s.Links[wg] = with(wgLink(), func(l *kernel.Link) { l.Key, l.Port, l.MTU, l.Extra = secret(9), 4711, 1400, "fwmark 0x1" })
		}), wgNode(2), `
ip link set flannel-wg mtu 1420; wg set flannel-wg listen-port 51820 private-key (hidden) fwmark off
`},
		{"flannel's route to the whole network gives way to one for each peer", put(wgNode(2), changed(
			hop(kernel.RouteSet, wg, "10.244.0.0/16", "", false), func(op *kernel.Op) { op.Route.Ours = false })), wgNode(2), `
ip route del 10.244.0.0/16 dev flannel-wg
`},
		{"from VXLAN to WireGuard routes move in place and the old device goes last", node(2), wgNode(2), `
ip route add blackhole 10.244.0.0/16 proto 87 metric 4294967295
ip link add flannel-wg mtu 1420 up type wireguard; wg set flannel-wg listen-port 51820 private-key (hidden)
ip addr replace 10.244.1.0/32 dev flannel-wg
wg set flannel-wg peer ` + k2 + ` endpoint 192.168.50.2:51820 allowed-ips 10.244.2.0/24
ip route replace 10.244.2.0/24 dev flannel-wg proto 87
ip link del flannel.1
ip route del blackhole 10.244.0.0/16 proto 87 metric 4294967295
`},
		{"from WireGuard to routes past all devices", wgNode(2), direct, `
ip route replace 10.244.2.0/24 via 192.168.50.2 dev eth0 proto 87
ip link del flannel-wg
`},
		{"from routes past all devices to IP in IP", direct, tunNode(2), `
ip route add blackhole 10.244.0.0/16 proto 87 metric 4294967295
ip link add flannel.ipip mtu 1480 up type ipip remote any local 192.168.50.1 ttl inherit nopmtudisc
ip addr replace 10.244.1.0/32 dev flannel.ipip
ip route replace 10.244.2.0/24 via 192.168.50.2 dev flannel.ipip proto 87 onlink
ip route del blackhole 10.244.0.0/16 proto 87 metric 4294967295
`},
		{"a tunnel with another local address, or to one peer only, is made anew", edited(tunNode(2), func(s kernel.State) {
			s.Links[tun] = with(tunLink(subnet.IPv4), func(l *kernel.Link) { l.Local, l.Extra = netip.MustParseAddr("192.168.50.9"), "remote 192.168.50.2" })
		}), tunNode(2), `
ip route add blackhole 10.244.0.0/16 proto 87 metric 4294967295
ip link del flannel.ipip
ip link add flannel.ipip mtu 1480 up type ipip remote any local 192.168.50.1 ttl inherit nopmtudisc
ip addr replace 10.244.1.0/32 dev flannel.ipip
ip route add 10.244.2.0/24 via 192.168.50.2 dev flannel.ipip proto 87 onlink
ip route del blackhole 10.244.0.0/16 proto 87 metric 4294967295
`},
		{"flannel's routes over its tunnel are replaced in place", edited(tunNode(2), func(s kernel.State) {
			for k, r := range s.Routes {
				r.Ours = false
				s.Routes[k] = r
			}
		}), tunNode(2), `
ip route replace 10.244.2.0/24 via 192.168.50.2 dev flannel.ipip proto 87 onlink
`},
		{"a route of somebody's command is replaced past our devices, and told of", edited(kernel.New(), func(s kernel.State) {
			s.Foreign[direct2().Key] = kernel.Route{Link: "eth1", Via: netip.MustParseAddr("172.16.0.1"), Type: "unicast"}
		}), direct, `
ip route add 10.244.2.0/24 via 192.168.50.2 dev eth0 proto 87 in place of 10.244.2.0/24 via 172.16.0.1 dev eth1
`},
		{"one that IPv6 would like better goes, and is told of", edited(directSix(), func(s kernel.State) {
			s.Foreign[kernel.RouteKey{Dst: netip.MustParsePrefix("fd00:244:2::/64"), Metric: 100}] = kernel.Route{Link: "eth1", Via: netip.MustParseAddr("fd00:9::1"), Type: "unicast"}
			s.Foreign[kernel.RouteKey{Dst: netip.MustParsePrefix("fd00:244:2::/64"), Metric: 2000}] = kernel.Route{Link: "eth1", Via: netip.MustParseAddr("fd00:9::2"), Type: "unicast"}
			s.Foreign[kernel.RouteKey{Dst: netip.MustParsePrefix("fd00:244:2::/64"), Metric: 50}] = kernel.Route{Link: "eth0", Via: netip.MustParseAddr("fd00:50::2"), Type: "unicast"}
			s.Foreign[kernel.RouteKey{Dst: netip.MustParsePrefix("fd00:244:3::/64"), Metric: 100}] = kernel.Route{Link: "eth1", Via: netip.MustParseAddr("fd00:9::1"), Type: "unicast"}
		}), directSix(), `
ip route del fd00:244:2::/64 via fd00:9::1 dev eth1 metric 100
`},
		{"flannel's route is nobody's command", edited(kernel.New(), func(s kernel.State) {
			s.Foreign[direct2().Key] = kernel.Route{Link: "eth0", Via: netip.MustParseAddr("192.168.50.2"), Type: "unicast"}
		}), direct, `
ip route add 10.244.2.0/24 via 192.168.50.2 dev eth0 proto 87
`},
		{"a device of another kind under our name is not ours to remove, unless we want the name", edited(kernel.New(), func(s kernel.State) {
			s.Links[wg] = kernel.Link{Kind: "dummy", MTU: 1500}
			s.Links[tun] = kernel.Link{Kind: "dummy", MTU: 1500}
		}), tunNode(), `
ip route add blackhole 10.244.0.0/16 proto 87 metric 4294967295
ip link del flannel.ipip
ip link add flannel.ipip mtu 1480 up type ipip remote any local 192.168.50.1 ttl inherit nopmtudisc
ip addr replace 10.244.1.0/32 dev flannel.ipip
ip route del blackhole 10.244.0.0/16 proto 87 metric 4294967295
`},
	}
	for _, test := range tests {
		test.want.Networks[0] = netip.MustParsePrefix("10.244.0.0/16")
		got := commands(kernel.Diff(test.have, test.want))
		if d := cmp.Diff(strings.TrimPrefix(test.ops, "\n"), got); d != "" {
			t.Errorf("%s (-want +got):\n%s", test.name, d)
		}
	}
}

func direct2() kernel.Op {
	return hop(kernel.RouteSet, "eth0", "10.244.2.0/24", "192.168.50.2", false)
}

func TestALiveSessionKnowsBestWhereThePeerIs(t *testing.T) {
	k := kernel.WGKey{Link: wg, Key: pub(2)}
	now := time.Now()
	at := func(last int, handshake time.Duration) kernel.State {
		s := wgNode(2)
		s.Read = now
		p := s.Peers[k]
		p.Endpoint = netip.AddrPortFrom(underlay(subnet.IPv4, last), 40000)
		s.Peers[k] = p
		if handshake > 0 {
			s.Handshakes[k] = now.Add(-handshake)
		}
		return s
	}
	for _, test := range []struct {
		name          string
		have, reached kernel.State
		want          string
	}{
		{"roamed, with a session", at(77, time.Minute), wgNode(2), ""},
		{"roamed, with a session, and the agent has restarted", at(77, time.Minute), kernel.New(), ""},
		{"elsewhere, and the session is long over", at(77, 4*time.Minute), wgNode(2), "endpoint 192.168.50.2:51820"},
		{"elsewhere, and there never was a session", at(77, 0), wgNode(2), "endpoint 192.168.50.2:51820"},
		{"the peer announces another address", at(77, time.Minute), put(wgNode(), peerSet(wg, pub(2), 66, "10.244.2.0/24")), "endpoint 192.168.50.2:51820"},
	} {
		got := commands(kernel.DiffSince(test.reached, test.have, wgNode(2)))
		if (test.want == "") != (got == "") || !strings.Contains(got, test.want) || strings.Count(got, "\n") > 1 {
			t.Errorf("%s: %q", test.name, got)
		}
	}
	changed := wgNode(2)
	p := changed.Peers[k]
	p.Keepalive = 25 * time.Second
	changed.Peers[k] = p
	ops := kernel.Diff(at(77, time.Minute), changed)
	if len(ops) != 1 || ops[0].Peer.Endpoint.IsValid() {
		t.Errorf("another change of the peer leaves its place alone:\n%s", commands(ops))
	}
}

func TestRangesGoFromPeerToPeerWithoutBeingNobodys(t *testing.T) {
	have, want := wgNode(), wgNode()
	put(have, peerSet(wg, pub(2), 2, "10.244.2.0/24", "fd00:244:2::/64"), peerSet(wg, pub(3), 3, "10.244.3.0/24", "fd00:244:3::/64"))
	put(want, peerSet(wg, pub(2), 2, "10.244.3.0/24"), peerSet(wg, pub(3), 3, "10.244.2.0/24", "fd00:244:3::/64"))
	got := commands(kernel.Diff(have, want))
	if d := cmp.Diff(`wg set flannel-wg peer `+pub(2).String()+` endpoint 192.168.50.2:51820 allowed-ips 10.244.3.0/24
wg set flannel-wg peer `+pub(3).String()+` endpoint 192.168.50.3:51820 allowed-ips 10.244.2.0/24,fd00:244:3::/64
wg set flannel-wg peer `+pub(2).String()+` allowed-ips -fd00:244:2::/64
`, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestTwoWireGuardDevicesSwapTheirPorts(t *testing.T) {
	ports := func(a, b uint16) kernel.State {
		return put(kernel.New(), linkAdd(wg, with(wgLink(), func(l *kernel.Link) { l.Port = a })), linkAdd(wg6, with(wgLink(), func(l *kernel.Link) { l.Port = b })))
	}
	f := kernel.NewFake()
	apply(t, f, kernel.Diff(kernel.New(), ports(51820, 51821)))
	apply(t, f, kernel.Diff(dump(t, f), ports(51821, 51820)))
	if ops := kernel.Diff(dump(t, f), ports(51821, 51820)); len(ops) > 0 {
		t.Errorf("still to do:\n%s", commands(ops))
	}
	one := put(kernel.New(), linkAdd(wg, with(wgLink(), func(l *kernel.Link) { l.Port = 51820 })))
	apply(t, f, kernel.Diff(dump(t, f), one))
	if d := cmp.Diff(one, dump(t, f), equal); d != "" {
		t.Errorf("a device that goes leaves its port to the other (-want +got):\n%s", d)
	}
}

func TestAPrivateKeyIsComparedAsTheKernelKeepsIt(t *testing.T) {
	want := wgNode()
	want.Links[wg] = with(wgLink(), func(l *kernel.Link) { l.Key = subnet.Secret{0: 0xff, 31: 0xff} })
	f := kernel.NewFake()
	apply(t, f, kernel.Diff(dump(t, f), want))
	if ops := kernel.Diff(dump(t, f), want); len(ops) > 0 {
		t.Errorf("still to do:\n%s", commands(ops))
	}
}

func TestNoTextOfAStateOrAnOpShowsASecret(t *testing.T) {
	want := wgNode()
	op := peerSet(wg, pub(2), 2, "10.244.2.0/24")
	op.Peer.PSK = subnet.Secret{0: 0xab, 1: 0xcd}
	put(want, op)
	want.Links[wg] = with(wgLink(), func(l *kernel.Link) { l.Key = subnet.Secret{0: 0xa8, 1: 0xcd, 31: 0x40} })
	ops := kernel.Diff(kernel.New(), want)
	all := want.String() + commands(ops) + fmt.Sprintf("%v %+v %#v %x", ops, want, ops, ops)
	for _, text := range []string{"abcd", "a8cd", "171 205", "168 205", "qM0", "q80"} {
		if strings.Contains(strings.ToLower(all), strings.ToLower(text)) {
			t.Errorf("%q is in\n%s", text, all)
		}
	}
	if !strings.Contains(all, "preshared-key (hidden)") || !slices.ContainsFunc(ops, func(op kernel.Op) bool { return op.Kind == kernel.PeerSet }) {
		t.Errorf("that there is a secret should be seen:\n%s", all)
	}
}

// directSix is a host that reaches a peer's IPv6 pods by a plain route.
func directSix() kernel.State {
	s := kernel.New()
	s.Routes[kernel.RouteKey{Dst: netip.MustParsePrefix("fd00:244:2::/64"), Metric: 1024}] = kernel.Route{
		Link: "eth0", Via: netip.MustParseAddr("fd00:50::2"), Ours: true, Type: "unicast",
	}
	return s
}
