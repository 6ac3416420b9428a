package kernel_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weft-cni/weft/backend/kernel"
)

// node builds the state of a node with the given peers, numbered from 2: peer i has 10.244.i.0/24 at 192.168.50.i.
func node(peers ...int) kernel.State {
	s := kernel.New()
	s.Links[dev] = link(2)
	s.Addrs[addr(kernel.AddrSet, dev, "10.244.1.0/32").Addr] = struct{}{}
	for _, i := range peers {
		addPeer(s, i, mac(byte(i)), fmt.Sprintf("192.168.50.%d", i))
	}
	return s
}

func addPeer(s kernel.State, i int, m [6]byte, dst string) {
	gateway := fmt.Sprintf("10.244.%d.0", i)
	s.FDB[kernel.FDBKey{Link: dev, MAC: m}] = kernel.FDBDest{Dst: netip.MustParseAddr(dst)}
	s.Neighs[kernel.Neigh{Link: dev, IP: netip.MustParseAddr(gateway)}] = m
	r := route(kernel.RouteSet, dev, gateway+"/24", gateway)
	s.Routes[r.Key] = r.Route
}

// edited returns a changed copy.
func edited(s kernel.State, change func(s kernel.State)) kernel.State {
	s = s.Clone()
	change(s)
	return s
}

// guarded puts the blackhole for the pod network into a state.
func guarded(s kernel.State) {
	s.Routes[kernel.RouteKey{Dst: netip.MustParsePrefix("10.244.0.0/16"), Metric: 1<<32 - 1}] = kernel.Route{Ours: true, Type: "blackhole"}
}

func commands(ops []kernel.Op) string {
	var b strings.Builder
	for _, op := range ops {
		b.WriteString(op.String() + "\n")
	}
	return b.String()
}

func TestDiffListsTheCommandsInTheOrderOfThePath(t *testing.T) {
	setLink := func(change func(l *kernel.Link)) func(s kernel.State) {
		return func(s kernel.State) { s.Links[dev] = with(s.Links[dev], change) }
	}
	peer2 := func(s kernel.State) kernel.RouteKey {
		return route(kernel.RouteSet, dev, "10.244.2.0/24", "10.244.2.0").Key
	}
	tests := []struct {
		name       string
		have, want kernel.State
		ops        string
	}{
		{"a first start makes device, address and peers", kernel.New(), node(2), `
ip route add blackhole 10.244.0.0/16 proto 87 metric 4294967295
ip link add flannel.1 address 0a:00:00:00:00:01 mtu 1450 up type vxlan id 1 dev if2 local 192.168.50.1 dstport 8472 nolearning
ip addr replace 10.244.1.0/32 dev flannel.1
bridge fdb replace 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.2 self permanent
ip neigh replace 10.244.2.0 lladdr 0a:00:00:00:00:02 dev flannel.1 nud permanent
ip route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink
ip route del blackhole 10.244.0.0/16 proto 87 metric 4294967295
`},
		{"nothing to do gives nothing", node(2, 3), node(2, 3), ``},
		{"uninstall: an empty state removes all that is ours, the device last", edited(node(2), func(s kernel.State) {
			s.Routes[kernel.RouteKey{Dst: netip.MustParsePrefix("10.244.1.0/24"), Metric: 1<<32 - 1}] = kernel.Route{Ours: true, Type: "blackhole"}
			s.Links["flannel.9"] = kernel.Link{Kind: "vlan"}
		}), kernel.New(), `
ip route del blackhole 10.244.1.0/24 proto 87 metric 4294967295
ip link del flannel.1
`},
		{"a peer joins", node(2), node(2, 3), `
bridge fdb replace 0a:00:00:00:00:03 dev flannel.1 dst 192.168.50.3 self permanent
ip neigh replace 10.244.3.0 lladdr 0a:00:00:00:00:03 dev flannel.1 nud permanent
ip route add 10.244.3.0/24 via 10.244.3.0 dev flannel.1 proto 87 onlink
`},
		{"a peer leaves, the route first", node(2, 3), node(2), `
ip route del 10.244.3.0/24 via 10.244.3.0 dev flannel.1 proto 87 onlink
ip neigh del 10.244.3.0 dev flannel.1
bridge fdb del 0a:00:00:00:00:03 dev flannel.1 self
`},
		{"P-03: a peer's MAC changes and the old forwarding entry goes", node(2), edited(node(), func(s kernel.State) {
			addPeer(s, 2, mac(0x22), "192.168.50.2")
		}), `
bridge fdb replace 0a:00:00:00:00:22 dev flannel.1 dst 192.168.50.2 self permanent
ip neigh replace 10.244.2.0 lladdr 0a:00:00:00:00:22 dev flannel.1 nud permanent
bridge fdb del 0a:00:00:00:00:02 dev flannel.1 self
`},
		{"P-04: a peer's public IP changes in one message", node(2), edited(node(), func(s kernel.State) {
			addPeer(s, 2, mac(2), "192.168.50.33")
		}), `
bridge fdb replace 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.33 self permanent
`},
		{"P-05: another node takes the place of one", node(2), node(3), `
bridge fdb replace 0a:00:00:00:00:03 dev flannel.1 dst 192.168.50.3 self permanent
ip neigh replace 10.244.3.0 lladdr 0a:00:00:00:00:03 dev flannel.1 nud permanent
ip route add 10.244.3.0/24 via 10.244.3.0 dev flannel.1 proto 87 onlink
ip route del 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink
ip neigh del 10.244.2.0 dev flannel.1
bridge fdb del 0a:00:00:00:00:02 dev flannel.1 self
`},
		{"V-12: MTU, MAC and learning change on the living device", edited(node(2), setLink(func(l *kernel.Link) {
			l.MTU, l.MAC, l.Learning = 1400, mac(9), true
		})), node(2), `
ip link set flannel.1 mtu 1450 address 0a:00:00:00:00:01 type vxlan nolearning
ip neigh replace 10.244.2.0 lladdr 0a:00:00:00:00:02 dev flannel.1 nud permanent
`},
		{"V-12: an incompatible device is replaced with all that is on it, and nothing leaves in the clear meanwhile", node(2),
			edited(node(2), setLink(func(l *kernel.Link) { l.GBP = true })), `
ip route add blackhole 10.244.0.0/16 proto 87 metric 4294967295
ip link del flannel.1
ip link add flannel.1 address 0a:00:00:00:00:01 mtu 1450 up type vxlan id 1 dev if2 local 192.168.50.1 dstport 8472 nolearning gbp
ip addr replace 10.244.1.0/32 dev flannel.1
bridge fdb replace 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.2 self permanent
ip neigh replace 10.244.2.0 lladdr 0a:00:00:00:00:02 dev flannel.1 nud permanent
ip route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink
ip route del blackhole 10.244.0.0/16 proto 87 metric 4294967295
`},
		{"a guard that an earlier round left goes when the device is there, and stays up until then", edited(node(2), guarded), node(2), `
ip route del blackhole 10.244.0.0/16 proto 87 metric 4294967295
`},
		{"V-10: a device on another port makes room without a gap", node(2), edited(node(2), setLink(func(l *kernel.Link) { l.Port = 4789 })), `
ip route add blackhole 10.244.0.0/16 proto 87 metric 4294967295
ip link set flannel.1 name flannel-old
ip link add flannel.1 address 0a:00:00:00:00:01 mtu 1450 up type vxlan id 1 dev if2 local 192.168.50.1 dstport 4789 nolearning
ip addr replace 10.244.1.0/32 dev flannel.1
bridge fdb replace 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.2 self permanent
ip neigh replace 10.244.2.0 lladdr 0a:00:00:00:00:02 dev flannel.1 nud permanent
ip route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink
ip link del flannel-old
ip route del blackhole 10.244.0.0/16 proto 87 metric 4294967295
`},
		{"V-04: a device that is down comes up before its routes", edited(node(2), func(s kernel.State) {
			s.Links[dev] = with(s.Links[dev], func(l *kernel.Link) { l.Up = false })
			clear(s.Routes)
			clear(s.Neighs)
		}), node(2), `
ip link set flannel.1 up
ip neigh replace 10.244.2.0 lladdr 0a:00:00:00:00:02 dev flannel.1 nud permanent
ip route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink
`},
		{"V-14: two destinations of a MAC become one", edited(node(2), func(s kernel.State) {
			s.FDB[kernel.FDBKey{Link: dev, MAC: mac(2)}] = kernel.FDBDest{Dst: netip.MustParseAddr("192.168.50.7"), More: 1}
			s.FDB[kernel.FDBKey{Link: dev}] = kernel.FDBDest{Dst: netip.MustParseAddr("192.168.50.7"), More: 1}
		}), node(2), `
bridge fdb replace 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.2 self permanent
bridge fdb del 00:00:00:00:00:00 dev flannel.1 self
`},
		{"flannel's own route is replaced in place", edited(node(2), func(s kernel.State) {
			r := s.Routes[peer2(s)]
			r.Ours = false
			s.Routes[peer2(s)] = r
		}), node(2), `
ip route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink
`},
		{"a route that shares its key is looked at before it is replaced", edited(node(2), func(s kernel.State) {
			r := s.Routes[peer2(s)]
			r.More = 1
			s.Routes[peer2(s)] = r
		}), node(2), `
ip route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink
`},
		{"an address of ours that is a peer's gateway now goes before the peer's route", edited(node(), func(s kernel.State) {
			s.Addrs[addr(kernel.AddrSet, dev, "10.244.2.0/32").Addr] = struct{}{}
			s.Addrs[addr(kernel.AddrSet, dev, "10.244.2.7/24").Addr] = struct{}{} // with a connected route
			s.Addrs[addr(kernel.AddrSet, dev, "10.244.9.0/32").Addr] = struct{}{}
			s.Addrs[addr(kernel.AddrSet, dev, "172.16.0.1/32").Addr] = struct{}{} // a guest, outside of the pod network
		}), edited(node(2), func(s kernel.State) {}), `
bridge fdb replace 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.2 self permanent
ip neigh replace 10.244.2.0 lladdr 0a:00:00:00:00:02 dev flannel.1 nud permanent
ip addr del 10.244.2.7/24 dev flannel.1
ip addr del 10.244.2.0/32 dev flannel.1
ip route add 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink
ip addr del 10.244.9.0/32 dev flannel.1
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

func TestV08SoftwareChecksumsAreSwitchedOnWhereWantedAndNeverOffAgain(t *testing.T) {
	soft := edited(node(), func(s kernel.State) {
		s.Links[dev] = with(s.Links[dev], func(l *kernel.Link) { l.SoftChecksum = true })
	})
	if got := commands(kernel.Diff(node(), soft)); got != "ethtool -K flannel.1 tx-checksum-ip-generic off\n" {
		t.Errorf("got %q", got)
	}
	if got := commands(kernel.Diff(soft, node())); got != "" { // an administrator's doing
		t.Errorf("got %q", got)
	}
	if got := commands(kernel.Diff(kernel.New(), soft)); !strings.Contains(got, "nolearning; ethtool -K flannel.1 tx-checksum-ip-generic off\n") {
		t.Errorf("got %q", got)
	}
}

func TestAnOldVNIsDeviceIsRemovedLastAndItsRoutesMoveInPlace(t *testing.T) {
	have := node(2)
	want := kernel.New()
	want.Links["flannel.7"] = with(link(2), func(l *kernel.Link) { l.VNI = 7 })
	r := route(kernel.RouteSet, "flannel.7", "10.244.2.0/24", "10.244.2.0")
	want.Routes[r.Key] = r.Route
	got := commands(kernel.Diff(have, want))
	if d := cmp.Diff(`ip link add flannel.7 address 0a:00:00:00:00:01 mtu 1450 up type vxlan id 7 dev if2 local 192.168.50.1 dstport 8472 nolearning
ip route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.7 proto 87 onlink
ip link del flannel.1
`, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestAnIPv6RouteMovesFromDeviceToDeviceInPlace(t *testing.T) {
	on := func(name string, vni uint32) kernel.State {
		s := kernel.New()
		s.Links[name] = with(link6(2), func(l *kernel.Link) { l.VNI = vni })
		r := route(kernel.RouteSet, name, "fd00:244:2::/64", "fd00:244:2::")
		s.Routes[r.Key] = r.Route
		return s
	}
	got := commands(kernel.Diff(on(dev6, 1), on("flannel-v6.7", 7)))
	if d := cmp.Diff(`ip link add flannel-v6.7 address 0a:00:00:00:00:61 mtu 1430 up type vxlan id 7 dev if2 local fd00:50::1 dstport 8472 nolearning
ip route replace fd00:244:2::/64 via fd00:244:2:: dev flannel-v6.7 proto 87 metric 1024 onlink
ip link del flannel-v6.1
`, got); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestAnOldDeviceThatHoldsThePortInAnotherModeIsRemovedFirst(t *testing.T) {
	have := node()
	want := kernel.New()
	want.Links["flannel.7"] = with(link(2), func(l *kernel.Link) { l.VNI, l.GBP = 7, true })
	if got := kernel.Diff(have, want); len(got) != 2 || got[0].Kind != kernel.LinkDel || got[0].Prune {
		t.Errorf("got:\n%s", commands(got))
	}
}

func TestADeviceOfAnotherKindUnderOurNameIsReplacedAndUnderAnotherLeftAlone(t *testing.T) {
	have := kernel.New()
	have.Links[dev] = kernel.Link{Kind: "bridge", MTU: 1500}
	have.Links["flannel.9"] = kernel.Link{Kind: "vlan", MTU: 1500}
	got := commands(kernel.Diff(have, node()))
	if !strings.HasPrefix(got, "ip link del flannel.1\nip link add flannel.1 ") || strings.Contains(got, "flannel.9") {
		t.Errorf("got:\n%s", got)
	}
}

func TestDiffLeavesLearnedEntriesToADeviceThatLearns(t *testing.T) {
	learned := func(learning bool) (have, want kernel.State) {
		want = node()
		want.Links[dev] = with(link(2), func(l *kernel.Link) { l.Learning = learning })
		have = want.Clone()
		have.FDB[kernel.FDBKey{Link: dev, MAC: mac(7)}] = kernel.FDBDest{Dst: netip.MustParseAddr("192.168.50.7"), Learned: true}
		return have, want
	}
	if ops := kernel.Diff(learned(true)); len(ops) != 0 {
		t.Errorf("learning on:\n%s", commands(ops))
	}
	if got := commands(kernel.Diff(learned(false))); got != "bridge fdb del 0a:00:00:00:00:07 dev flannel.1 self\n" {
		t.Errorf("learning off:\n%s", got)
	}
}

func TestWithoutPruningKeepsWhatIsGoneFromTheClusterButPutsEverythingInPlace(t *testing.T) {
	ops := kernel.WithoutPruning(kernel.Diff(node(2, 3), edited(node(3, 4), func(s kernel.State) {
		s.Links[dev] = with(s.Links[dev], func(l *kernel.Link) { l.Port = 4789 })
	})))
	fake := kernel.NewFake()
	apply(t, fake, kernel.Diff(kernel.New(), node(2, 3)))
	apply(t, fake, ops)
	for _, op := range ops {
		if op.Kind == kernel.RouteDel || op.Kind == kernel.NeighDel || op.Kind == kernel.FDBDel {
			t.Errorf("prunes: %s", op)
		}
	}
	apply(t, fake, kernel.WithoutPruning(kernel.Diff(dump(t, fake), node(4, 5))))
	have := dump(t, fake)
	for _, i := range []int{3, 4, 5} {
		if _, ok := have.Routes[route(kernel.RouteSet, dev, fmt.Sprintf("10.244.%d.0/24", i), "10.0.0.1").Key]; !ok && i != 3 {
			t.Errorf("no route to peer %d:\n%s", i, have)
		}
	}
}

func TestStateAndOpsReadLikeIPAndBridge(t *testing.T) {
	s := node(2)
	s.Links[dev6] = with(link6(2), func(l *kernel.Link) { l.Up, l.GBP, l.Learning, l.Extra = false, true, true, "l2miss" })
	s.Links["flannel.2"] = kernel.Link{Kind: "bridge", MTU: 1500, MAC: mac(5)}
	s.FDB[kernel.FDBKey{Link: dev, MAC: mac(7)}] = kernel.FDBDest{Dst: netip.MustParseAddr("192.168.50.7"), Port: 4789, More: 2, Learned: true}
	s.Routes[kernel.RouteKey{Dst: netip.MustParsePrefix("10.244.1.0/24"), Metric: 1<<32 - 1}] = kernel.Route{Ours: true, Type: "blackhole"}
	s.Routes[kernel.RouteKey{Dst: netip.MustParsePrefix("0.0.0.0/0")}] = kernel.Route{Link: "if2", Via: netip.MustParseAddr("10.0.0.1"), Type: "unicast", More: 1}
	want := `link flannel-v6.1 mtu 1430 state DOWN address 0a:00:00:00:00:61 vxlan id 1 dev if2 local fd00:50::1 dstport 8472 learning gbp l2miss
link flannel.1 mtu 1450 state UP address 0a:00:00:00:00:01 vxlan id 1 dev if2 local 192.168.50.1 dstport 8472 nolearning
link flannel.2 mtu 1500 state DOWN address 0a:00:00:00:00:05 bridge
addr 10.244.1.0/32 dev flannel.1
neigh 10.244.2.0 dev flannel.1 lladdr 0a:00:00:00:00:02 PERMANENT
fdb 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.2 self permanent
fdb 0a:00:00:00:00:07 dev flannel.1 dst 192.168.50.7 port 4789 and 2 more self
route default via 10.0.0.1 dev if2 and 1 more
route blackhole 10.244.1.0/24 proto 87 metric 4294967295
route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink
`
	if d := cmp.Diff(want, s.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	down := linkSet(dev, with(link(2), func(l *kernel.Link) { l.Up = false }))
	down.Was = link(2)
	if got := down.String(); got != "ip link set flannel.1 down" {
		t.Errorf("got %q", got)
	}
	if got := (kernel.Op{Kind: 99}).String(); got != "op 99" {
		t.Errorf("got %q", got)
	}
}

// equal compares states without what Dump adds and Diff ignores.
var equal = cmp.Options{cmpopts.IgnoreFields(kernel.Link{}, "Index"), cmpopts.IgnoreFields(kernel.State{}, "Networks", "Read", "Foreign", "Handshakes", "Sent"), cmpopts.EquateComparable(netip.Addr{}, netip.Prefix{}, netip.AddrPort{})}

func TestDiffBringsAnyStateToAnyOtherAndNeverBreaksAPathThatStays(t *testing.T) {
	for seed := range uint64(500) {
		r := rand.New(rand.NewPCG(seed, 87))
		fake := kernel.NewFake()
		fake.EditHost(func(h *kernel.Host) {
			h.Links = append(h.Links, kernel.HostLink{Index: 3, Name: "eth1", Kind: "device", MTU: 1500, Up: true})
		})
		have := kernel.New()
		for round := range 4 {
			want := worldState(r, 2, 3)
			ops := kernel.Diff(have, want)
			context := func() string {
				return fmt.Sprintf("seed %d round %d: from\n%sto\n%sby\n%s", seed, round, have, want, commands(ops))
			}
			for _, op := range ops {
				if err := fake.Apply(t.Context(), op); err != nil {
					t.Fatalf("%v\n%s", err, context())
				}
				if broken := brokenPath(have, want, dump(t, fake)); broken != "" {
					t.Fatalf("after %s: %s\n%s", op, broken, context())
				}
			}
			have = dump(t, fake)
			if d := cmp.Diff(want, have, equal); d != "" {
				t.Fatalf("(-want +got):\n%s\n%s", d, context())
			}
			if again := kernel.Diff(have, want); len(again) > 0 {
				t.Fatalf("a second diff is not empty:\n%s\n%s", commands(again), context())
			}
		}
	}
}

// brokenPath looks for a peer that both states have in the same way, over a device that stays, and that now lacks a
// link of its path; and for a new route without a neighbour or forwarding entry.
func brokenPath(have, want, now kernel.State) string {
	for key, r := range now.Routes {
		if r.Type == "blackhole" {
			continue
		}
		m, ok := now.Neighs[kernel.Neigh{Link: r.Link, IP: r.Via}]
		_, forwarded := now.FDB[kernel.FDBKey{Link: r.Link, MAC: m}]
		before := have.Links[r.Link]
		changed := before.MAC != want.Links[r.Link].MAC // the kernel flushes neighbours
		if (!ok || !forwarded) && !changed {
			return fmt.Sprintf("the route to %s leads to a gateway without neighbour or forwarding entry", key.Dst)
		}
	}
	for key, r := range want.Routes {
		if have.Routes[key] != r || !stays(have.Links[r.Link], want.Links[r.Link]) {
			continue
		}
		if now.Routes[key] != r {
			return fmt.Sprintf("the route to %s is away", key.Dst)
		}
	}
	return ""
}

func stays(have, want kernel.Link) bool {
	have.Index, have.MTU, have.MAC, have.Learning = want.Index, want.MTU, want.MAC, want.Learning
	return have == want
}

func TestDiffAddsBeforeItRemoves(t *testing.T) {
	ops := kernel.Diff(node(2, 3, 4), node(5, 6, 7))
	firstRemoval := slices.IndexFunc(ops, func(op kernel.Op) bool { return op.Prune })
	for _, op := range ops[firstRemoval:] {
		if !op.Prune {
			t.Errorf("%s comes after a removal", op)
		}
	}
}

func apply(t *testing.T, k kernel.Kernel, ops []kernel.Op) {
	t.Helper()
	for _, op := range ops {
		if err := k.Apply(t.Context(), op); err != nil {
			t.Fatal(err)
		}
	}
}

func dump(t *testing.T, k kernel.Kernel) kernel.State {
	t.Helper()
	s, err := k.Dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s
}
