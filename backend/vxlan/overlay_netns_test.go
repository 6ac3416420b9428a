package vxlan_test

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
	"github.com/weft-cni/weft/tests/terms"
)

func TestPodsOfThreeNodesReachEachOtherInEveryFamily(t *testing.T) {
	for name, fam := range map[string]families{"IPv4": v4, "IPv6": v6, "dual": dual} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, fam)
			c.reachAll(20 * time.Second)
		})
	}
}

func TestDeviceAndEntriesReadAsFlannelsInIPAndBridge(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a := c.nodes[0]
		a.cfg.Port = 8472
		p := peer(2)
		p.Port = 8472
		a.know(p)
		a.sync()
		link := a.IP(f.in("-d link show flannel.1"))
		want := f.in("vxlan id 1 local 192.168.50.1 dev eth0 srcport 0 0 dstport 8472 nolearning ttl auto ageing 300 udpcsum noudp6zerocsumtx noudp6zerocsumrx")
		if !strings.Contains(link, want) || !strings.Contains(link, fmt.Sprintf("mtu %d ", 1500-f.overhead())) || !strings.Contains(link, "UP") {
			t.Errorf("device:\n%s", link)
		}
		got := plain(a.IP(f.in("-4 -br addr show flannel.1")) + a.IP(f.in("route show dev flannel.1")) +
			a.IP(f.in("neigh show dev flannel.1 nud permanent")) + a.Bridge(f.in("fdb show dev flannel.1")))
		lines := f.in("flannel.1 UNKNOWN 10.244.1.0/32\n10.244.2.0/24 via 10.244.2.0 proto 87 onlink\n" +
			"10.244.2.0 lladdr 0a:00:00:00:00:02 PERMANENT\n0a:00:00:00:00:02 dst 192.168.50.2 self permanent\n")
		if d := cmp.Diff(lines, got); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}

func TestV07FullSizedPacketsPassAndLargerOnesDoNot(t *testing.T) {
	for name, fam := range map[string]families{"IPv4": v4, "IPv6": v6, "dual": dual} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2, fam)
			a, b := c.nodes[0], c.nodes[1]
			c.reachAll(20 * time.Second)
			wire := a.Capture("eth0")
			mtu := a.cfg.PodMTU()
			for _, dst := range b.podAddrs() {
				if r := a.pod.Ping(nstest.Ping{Dst: dst.Addr(), Size: mtu, DF: true}, 5); len(r.Lost) > 0 {
					t.Errorf("%d bytes to %s: %s", mtu, dst.Addr(), r)
				}
				if r := a.pod.Ping(nstest.Ping{Dst: dst.Addr(), Size: mtu + 1, DF: true}, 3); len(r.Lost) != r.Sent {
					t.Errorf("%d bytes passed to %s: %s", mtu+1, dst.Addr(), r)
				}
				f := family{Family: subnet.FamilyOf(dst.Addr())} // pods of two families have the smaller MTU of both
				wire.Wait(t, time.Second, func(frame []byte) bool { return len(frame) == 14+mtu+f.overhead() })
			}
			if n := wire.Count(func(frame []byte) bool { return len(frame) > 14+1500 }); n > 0 {
				t.Errorf("%d frames larger than the underlay's MTU", n)
			}
		})
	}
}

func TestS09NoNeighbourIsEverAskedForOnTheTunnel(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a, dst := c.nodes[0], c.nodes[1].podAddrs()[0].Addr()
		c.reachAll(20 * time.Second)
		wire := a.Capture("eth0")
		third := peer(3)
		a.know(third)
		var order []kernel.OpKind
		for _, op := range a.sync() {
			order = append(order, op.Kind)
		}
		if neigh, route := slices.Index(order, kernel.NeighSet), slices.Index(order, kernel.RouteSet); neigh < 0 || neigh > route {
			t.Errorf("a new peer's route is there before its neighbour: %v", order)
		}
		a.keep()
		ping := a.pod.StartPing(nstest.Ping{Dst: dst})
		for range 5 {
			a.IP(f.in("neigh del 10.244.2.0 dev flannel.1"))
			nstest.Eventually(t, 20*time.Second, a.inSync)
		}
		t.Logf("five times without its neighbour: %s", ping.Stop())
		c.reachAll(20 * time.Second)
		if n := wire.Count(func(frame []byte) bool {
			_, _, _, inner, ok := nstest.VXLAN(frame)
			return ok && inner[0]&1 == 1
		}); n > 0 {
			t.Errorf("%d frames to a group of nodes went through the tunnel", n)
		}
	})
}

func TestV08TheOuterChecksumIsZeroOrRight(t *testing.T) { // what a receiver would call a bad checksum
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a, b := c.nodes[0], c.nodes[1]
		c.reachAll(20 * time.Second)
		at := netip.AddrPortFrom(b.podAddrs()[0].Addr(), 7000)
		b.pod.TCPEcho(at)
		// masqueraded on the way in, as kube-proxy does with a Service's packets
		a.SetNFT(f.in(`table ip nat { chain postrouting { type nat hook postrouting priority srcnat
			oifname "flannel.1" masquerade
		}
		}`))
		a.IP(f.in("link set eth0 txqueuelen 1000"))
		a.Run(strings.Fields(f.in("ethtool -K eth0 tx off"))...)
		wire := a.Capture("eth0")
		seen, err := a.pod.Seen("tcp", at, time.Second)
		if err != nil || seen.Addr() != f.addr("10.244.1.0") {
			t.Fatalf("seen as %v, %v", seen, err)
		}
		toB := func(frame []byte) bool {
			dst, _, _, _, ok := nstest.VXLAN(frame)
			return ok && dst == f.addr("192.168.50.2")
		}
		nstest.Eventually(t, 10*time.Second, func() error {
			if n := wire.Count(toB); n < 3 {
				return fmt.Errorf("%d packets captured", n)
			}
			return nil
		})
		if n := wire.Count(func(frame []byte) bool { return toB(frame) && !udpChecksumGood(frame[14:]) }); n > 0 {
			t.Errorf("%d packets with a bad outer checksum", n)
		}
	})
}

// udpChecksumGood checks a packet with UDP in it. None at all is good in IPv4 alone.
func udpChecksumGood(ip []byte) bool {
	udp, addrs, required := []byte(nil), ip[12:20], false
	if ip[0]>>4 == 4 {
		udp = ip[int(ip[0]&0xf)*4 : binary.BigEndian.Uint16(ip[2:])]
	} else {
		udp, addrs, required = ip[40:40+binary.BigEndian.Uint16(ip[4:])], ip[8:40], true
	}
	if udp[6] == 0 && udp[7] == 0 {
		return !required
	}
	sum := uint32(17 + len(udp))
	for _, part := range [][]byte{addrs, udp} {
		for i, b := range part {
			sum += uint32(b) << (8 * (1 - i%2))
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum == 0xffff
}

func TestNodesOnTwoPortsTalkWhenEachListensOnBoth(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a, b := c.nodes[0], c.nodes[1]
		b.cfg.Port = 8472
		for _, h := range c.nodes {
			h.know(peer(h.i%2 + 1))
		}
		a.know(b.announced())
		b.sync()
		if ops := a.sync(); len(ops) != 1 || !strings.Contains(ops[0].String(), f.in("port 8472")) {
			t.Errorf("a peer's port is in its forwarding entry only: %v", ops)
		}
		wire := b.Capture("eth0")
		// the traffic rules do this for the ports that differ (decision 11)
		b.SetNFT("table inet mixed { chain c { type filter hook prerouting priority raw - 1\n udp dport 4789 udp dport set 8472\n}\n}")
		a.SetNFT("table inet mixed { chain c { type filter hook prerouting priority raw - 1\n udp dport 8472 udp dport set 4789\n}\n}")
		c.reachAll(20 * time.Second)
		for _, port := range []uint16{4789, 8472} {
			wire.Wait(t, time.Second, func(frame []byte) bool {
				_, p, _, _, ok := nstest.VXLAN(frame)
				return ok && p == port
			})
		}
	})
}

func TestV14LearningOffFloodsNothingAndKeepsOneDestinationForAMAC(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a := c.nodes[0]
		a.Run(strings.Fields(f.in("bridge fdb append 00:00:00:00:00:00 dev flannel.1 dst 192.168.50.2 self permanent"))...)
		a.Run(strings.Fields(f.in("bridge fdb append 00:00:00:00:00:00 dev flannel.1 dst 192.168.50.9 self permanent"))...)
		a.Run(strings.Fields(f.in("bridge fdb append 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.9 self permanent"))...)
		a.Run(strings.Fields(f.in("bridge fdb add 0a:00:00:00:00:77 dev flannel.1 dst 192.168.50.9 self dynamic"))...)
		a.Run(strings.Fields(f.in("bridge fdb replace 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.9 self dynamic"))...)
		a.sync()
		if d := cmp.Diff(f.in("0a:00:00:00:00:02 dst 192.168.50.2 self permanent\n"), a.Bridge(f.in("fdb show dev flannel.1"))); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		wire := a.Capture("eth0")
		a.IP(f.in("neigh replace 10.244.2.77 lladdr 0a:00:00:00:00:78 dev flannel.1 nud reachable"))
		a.IP(f.in("route add 10.244.77.0/24 via 10.244.2.77 dev flannel.1 onlink"))
		if r := a.Ping(nstest.Ping{Dst: f.addr("10.244.77.1")}, 3); len(r.Lost) != r.Sent {
			t.Errorf("an unknown MAC answers: %s", r)
		}
		c.reach(a, 5*time.Second)
		n := wire.Count(func(frame []byte) bool {
			_, _, _, inner, ok := nstest.VXLAN(frame)
			return ok && subnet.MAC(inner[:6]).String() == f.in("0a:00:00:00:00:78")
		})
		if n > 0 {
			t.Errorf("%d frames to an unknown MAC left the node", n)
		}
	})
}

func TestV12AndP01ARestartWritesNothingAndLosesNothing(t *testing.T) {
	c := newCluster(t, 3, widest(t))
	a := c.nodes[0]
	c.reachAll(20 * time.Second)
	device := terms.In(lane.Of(t).First(), "flannel.1")
	before, events := a.index(device), a.Monitor()
	ping := a.pod.StartPing(nstest.Ping{Dst: c.nodes[1].podAddrs()[0].Addr()})
	back := c.nodes[1].pod.StartPing(nstest.Ping{Dst: a.podAddrs()[0].Addr()})
	for range 20 {
		conn, err := kernel.OpenAt(a.FD()) // a new process knows nothing
		if err != nil {
			t.Fatal(err)
		}
		old := a.conn
		a.conn = conn
		if ops := a.sync(); len(ops) > 0 {
			t.Errorf("a restart writes: %v", ops)
		}
		old.Close()
	}
	for _, r := range []nstest.PingResult{ping.Stop(), back.Stop()} {
		if len(r.Lost) > 0 {
			t.Errorf("lost: %s", r)
		}
	}
	for _, e := range events.Events() {
		if e.Index == before || e.IsRoute() {
			t.Errorf("the kernel was written to: %s", e)
		}
	}
	if after := a.index(device); after != before {
		t.Errorf("device %d became %d", before, after)
	}
}

func TestP01UnchangedPeersSeeNoEventWhenOthersComeAndGo(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 3, f.only)
		a := c.nodes[0]
		c.reachAll(20 * time.Second)
		// while the daemon was away, node 3 was deleted and nodes 4 and 5 joined
		a.forget("n3")
		a.know(peer(4), peer(5))
		events := a.Monitor()
		ping := a.pod.StartPing(nstest.Ping{Dst: c.nodes[1].podAddrs()[0].Addr()})
		a.sync()
		if r := ping.Stop(); len(r.Lost) > 0 {
			t.Errorf("the unchanged peer lost packets: %s", r)
		}
		count, unchanged := map[string]int{}, c.nodes[1].announced().Endpoints[f.Family]
		for _, e := range events.Events() {
			if bytes.Contains(e.Body, unchanged.PodCIDR.Addr().AsSlice()) || bytes.Contains(e.Body, unchanged.MAC[:]) {
				t.Errorf("the unchanged peer was touched: %s", e)
			}
			if e.Body[0] == unix.AF_INET6 || e.Body[0] == unix.AF_BRIDGE && len(e.Body) < 32 {
				continue // neighbours that the kernel keeps for multicast; and Linux 6.1 tells of an FDB entry twice, once without its peer
			}
			if e.Index == a.index(f.in("flannel.1")) || e.IsRoute() {
				count[strings.Fields(e.String())[0]+" "+strings.Fields(e.String())[1]]++
			}
		}
		// two entries for each new peer, and one more: the kernel calls a neighbour failed before it removes it
		want := map[string]int{"new neigh": 4 + 1, "new route": 2, "del neigh": 2, "del route": 1}
		if d := cmp.Diff(want, count); d != "" && f.Family == subnet.IPv4 { // of IPv6 the kernel tells much more, of its own
			t.Errorf("notifications (-want +got):\n%s", d)
		}
		if left := a.IP(f.in("route show dev flannel.1")) + a.IP(f.in("neigh show dev flannel.1")) + a.Bridge(f.in("fdb show dev flannel.1")); strings.Contains(left, f.in("10.244.3.0")) ||
			strings.Contains(left, f.in("192.168.50.3")) {
			t.Errorf("of the deleted peer something is left:\n%s", left)
		}
	})
}

func TestP03ToP05APeersNewMACAndAddressReplaceTheOldEntries(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a, b := c.nodes[0], c.nodes[1]
		c.reachAll(20 * time.Second)
		fdb := func() string { return a.Bridge(f.in("fdb show dev flannel.1")) }

		t.Run("P-03_a_new_MAC", func(t *testing.T) {
			b.cfg.VTEPs[f.Family].MAC[5] = 0x22
			b.sync()
			a.know(changed(b.announced(), f.Family, func(e *subnet.Endpoint) { e.MAC[5] = 0x22 }))
			a.sync()
			if d := cmp.Diff(f.in("0a:00:00:00:00:22 dst 192.168.50.2 self permanent\n"), fdb()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			c.reachAll(20 * time.Second)
		})
		t.Run("P-04_a_new_public_IP", func(t *testing.T) {
			b.IP(f.in("addr add 192.168.50.33/24 dev eth0"))
			b.cfg.VTEPs[f.Family].Local = f.addr("192.168.50.33")
			ping := a.pod.StartPing(nstest.Ping{Dst: b.podAddrs()[0].Addr()})
			start := time.Now()
			b.sync()
			a.know(changed(b.announced(), f.Family, func(e *subnet.Endpoint) { e.MAC[5], e.PublicIP = 0x22, b.cfg.VTEPs[f.Family].Local }))
			a.sync()
			took := time.Since(start)
			if r := ping.Stop(); len(r.Lost) > int(took/(10*time.Millisecond))+5 {
				t.Errorf("lost more than what was on the way within %v: %s", took, r)
			}
			if d := cmp.Diff(f.in("0a:00:00:00:00:22 dst 192.168.50.33 self permanent\n"), fdb()); d != "" {
				t.Errorf("(-want +got):\n%s", d)
			}
			c.reachAll(20 * time.Second)
		})
		t.Run("P-05_another_node_of_the_same_name", func(t *testing.T) {
			p := peer(7)
			p.Name = b.announced().Name
			a.know(p)
			a.sync()
			if got := fdb() + a.IP(f.in("route show dev flannel.1")) + a.IP(f.in("neigh show dev flannel.1")); strings.Contains(got, f.in("10.244.2.0")) || strings.Contains(got, f.in("192.168.50.33")) {
				t.Errorf("the old identity is left:\n%s", got)
			}
		})
	})
}

func TestAFlannelNodeIsTakenOverWithoutTouchingItsDevice(t *testing.T) { // 12.A.1
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a, b := c.nodes[0], c.nodes[1]
		for _, h := range c.nodes { // both start as flannel left them
			h.IP(f.in("link del flannel.1"))
			h.cfg.Port = 8472 // as ChoosePort decides when the device is there
			other := c.nodes[2-h.i]
			p := other.announced()
			p.Port = 0
			h.know(p)
			e, v, name := p.Endpoints[f.Family], h.cfg.VTEPs[f.Family], f.in("flannel.1")
			h.IP(fmt.Sprintf("link add %s address %s mtu %d type vxlan id 1 dev eth0 local %s dstport 8472 nolearning",
				name, v.MAC, 1500-f.overhead(), v.Local))
			h.IP(fmt.Sprintf("addr add %s dev %s", netip.PrefixFrom(v.PodCIDR.Addr(), v.PodCIDR.Addr().BitLen()), name))
			h.IP("link set " + name + " up")
			h.IP(f.in(fmt.Sprintf("neigh replace %s lladdr %s dev %s nud permanent", e.PodCIDR.Addr(), e.MAC, name)))
			h.Bridge(f.in(fmt.Sprintf("fdb replace %s dev %s dst %s self permanent", e.MAC, name, e.PublicIP)))
			h.IP(f.in(fmt.Sprintf("route replace %s via %s dev %s onlink", e.PodCIDR, e.PodCIDR.Addr(), name)))
		}
		a.IP(f.in("route replace 10.244.9.0/24 via 10.244.9.0 dev flannel.1 onlink")) // a node that was deleted long ago
		a.IP(f.in("neigh replace 10.244.9.0 lladdr 0a:00:00:00:00:09 dev flannel.1 nud permanent"))
		c.reachAll(20 * time.Second)
		before := a.index(f.in("flannel.1"))
		ping := a.pod.StartPing(nstest.Ping{Dst: b.podAddrs()[0].Addr()})
		ops := a.sync()
		b.sync()
		if r := ping.Stop(); len(r.Lost) > 0 {
			t.Error(r)
		}
		want := `[ip route replace 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink ` +
			`ip route del 10.244.9.0/24 via 10.244.9.0 dev flannel.1 onlink ip neigh del 10.244.9.0 dev flannel.1]`
		if d := cmp.Diff(f.in(want), strings.ReplaceAll(fmt.Sprint(ops), " metric 1024", "")); d != "" || a.index(f.in("flannel.1")) != before {
			t.Errorf("device %d became %d (-want +got):\n%s", before, a.index(f.in("flannel.1")), d)
		}
	})
}

func TestFlannelsDirectRoutesGiveWayAndOthersDoNot(t *testing.T) { // a cluster that had DirectRouting
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 3, f.only)
		a := c.nodes[0]
		c.reachAll(20 * time.Second)
		a.IP(f.in("route replace 10.244.2.0/24 via 192.168.50.2")) // flannel's
		a.IP(f.in("route replace 10.244.3.0/24 via 192.168.50.2")) // not the way to node 3: somebody else's idea
		ping := a.pod.StartPing(nstest.Ping{Dst: c.nodes[1].podAddrs()[0].Addr()})
		if _, err := a.round(); !errors.Is(err, kernel.ErrForeignRoute) || strings.Contains(err.Error(), f.in("10.244.2.0")) || !strings.Contains(err.Error(), f.in("10.244.3.0")) {
			t.Errorf("got %v", err)
		}
		if r := ping.Stop(); len(r.Lost) > 0 {
			t.Error(r)
		}
		want := f.in("10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink\n10.244.3.0/24 via 192.168.50.2 dev eth0\n")
		if d := cmp.Diff(want, plain(a.IP(f.in("route show 10.244.2.0/24"))+a.IP(f.in("route show 10.244.3.0/24")))); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	})
}

func TestP08TwoHundredNodesThatJoinAtOnceAreThereAfterOneRound(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 1, f.only)
		a := c.nodes[0]
		var many []subnet.Peer
		for i := range 200 {
			p := peer(byte(i + 2))
			p.Name = fmt.Sprintf("n%d", i+2)
			many = append(many, p)
		}
		a.know(many...)
		start := time.Now()
		if ops := a.sync(); len(ops) != 600 {
			t.Errorf("%d changes", len(ops))
		}
		t.Logf("200 peers in %v", time.Since(start))
	})
}
