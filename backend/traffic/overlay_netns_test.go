package traffic

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	stdsync "sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
	"github.com/weft-cni/weft/tests/terms"
)

func TestTheRealNFTAcceptsEveryRulesetAndListsItAsWanted(t *testing.T) {
	t.Parallel()
	for name, c := range rulesets() {
		ns := nstest.New(t)
		golden, err := os.ReadFile(filepath.Join("testdata", name+".nft"))
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ns.Input(string(golden), "nft", "-c", "-f", "-"); err != nil {
			t.Errorf("%s as text: %v", name, err)
		}
		sync(t, manager(ns), c)
		m := manager(ns)
		have, err := m.nft.read(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(wanted(Rules(c)), have, cmp.AllowUnexported(state{}, chainState{}, setState{})); d != "" {
			t.Errorf("%s: what nft lists is not what was written:\n%s", name, d)
		}
	}
}

// tracked lists the connections to the overlay's ports that a node tracks.
func (f words) tracked(t *testing.T, n *nstest.NS) string {
	t.Helper()
	var out strings.Builder
	for line := range strings.Lines(n.Run("conntrack", "-L", "-f", strings.ToLower(f.String()), "-p", "udp")) {
		if strings.Contains(line, "dport=4789") || strings.Contains(line, "dport=8472") {
			out.WriteString(line)
		}
	}
	return out.String()
}

func TestEncapsulatedPacketsAreNotTrackedAndOtherVXLANIs(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		w := newWorld(t)
		podB := netip.AddrPortFrom(addrs(f.Family)["pod-b"], echoPort)
		for _, n := range w.node { // a rule that needs it makes the kernel track
			n.SetNFT("table inet t { chain c { type filter hook forward priority 0; ct state new accept; }; }\n")
		}
		if !w.arrives("pod-a", podB) || f.tracked(t, w.node[0]) == "" {
			t.Fatal("encapsulated packets are not tracked even without our rules: the test shows nothing")
		}
		for i, n := range w.node {
			sync(t, manager(n), nodeConfig(i+1))
			n.Run("conntrack", "-F")
		}
		if !w.arrives("pod-a", podB) || !w.arrives("pod-b", netip.AddrPortFrom(addrs(f.Family)["pod-a"], echoPort)) {
			t.Fatal("the pods do not reach each other")
		}
		for i, n := range w.node {
			if text := f.tracked(t, n); text != "" {
				t.Errorf("node %d tracks\n%s", i+1, text)
			}
		}
		// A pod that talks VXLAN to the outside is a client like any other: tracked, and masqueraded.
		w.outside.UDPEcho(f.at("192.168.50.3:4789"))
		got, err := seen(w.pods["pod-a"], netip.Addr{}, f.at("192.168.50.3:4789"))
		if err != nil || got.Addr() != addrs(f.Family)["node"] {
			t.Errorf("a pod's own packets to port 4789 arrive from %v (%v)", got, err)
		}
	})
}

func TestOneDeviceHearsPeersOnTwoPorts(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		w := newWorld(t)
		// Node 2 is flannel, on 8472, and sends there; node 1 hears 4789 only, and knows where node 2 listens.
		for _, other := range subnet.Families() {
			w.node[1].IP("link del " + terms.In(other, "flannel.1"))
		}
		w.overlay(w.node[1], 2, 1, 8472)
		w.node[0].Bridge(f.in("fdb replace 02:00:00:00:00:02 dev flannel.1 dst 192.168.50.2 port 8472"))
		c := nodeConfig(1)
		m := manager(w.node[0])
		sync(t, m, c)
		podA, podB := netip.AddrPortFrom(addrs(f.Family)["pod-a"], echoPort), netip.AddrPortFrom(addrs(f.Family)["pod-b"], echoPort)
		if w.quick("pod-b", podA) {
			t.Fatal("node 1 hears port 8472 without a rule: the test shows nothing")
		}
		c.Peers = []netip.AddrPort{f.at("192.168.50.2:8472")}
		sync(t, m, c)
		w.node[0].Run("conntrack", "-F")
		if !w.arrives("pod-b", podA) || !w.arrives("pod-a", podB) {
			t.Errorf("the nodes do not hear each other:\n%s", w.node[0].NFT())
		}
		if text := f.tracked(t, w.node[0]); text != "" {
			t.Errorf("tracked, though rewritten:\n%s", text)
		}
		// TCP with full segments crosses as well: checksums survive the rewrite.
		w.pods["pod-b"].TCPEcho(netip.AddrPortFrom(podB.Addr(), 7008))
		if err := bulk(w.pods["pod-a"], netip.AddrPortFrom(podB.Addr(), 7008), 1<<20); err != nil {
			t.Error(err)
		}
		// Once node 2 has moved, the rule goes.
		c.Peers = []netip.AddrPort{f.at("192.168.50.2:4789")}
		sync(t, m, c)
		if strings.Contains(w.node[0].NFT(), "8472") {
			t.Errorf("the old port is still named:\n%s", w.node[0].NFT())
		}
	})
}

// bulk sends and receives so many bytes over TCP.
func bulk(from *nstest.NS, to netip.AddrPort, size int) error {
	conn, err := from.Dial("tcp", to, 5*time.Second)
	if err != nil {
		return err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(20 * time.Second))
	go func() { _, _ = conn.Write(make([]byte, size)) }()
	buf := make([]byte, 1<<16)
	for got := 0; got < size; {
		n, err := conn.Read(buf)
		if err != nil {
			return fmt.Errorf("after %d bytes: %w", got, err)
		}
		got += n
	}
	return nil
}

func TestX02OnlyAnnouncedPeersMayEncapsulate(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		w := newWorld(t)
		podA := netip.AddrPortFrom(addrs(f.Family)["pod-a"], echoPort)
		c := nodeConfig(1)
		m := manager(w.node[0])
		sync(t, m, c)
		sync(t, manager(w.node[1]), nodeConfig(2))
		// The outside host makes itself a device with the right VNI and MAC: an intruder.
		w.outside.IP(f.in("link add evil type vxlan id 1 local 192.168.50.3 dev eth0 dstport 4789 nolearning"))
		w.outside.IP(f.in("link set evil up"))
		w.outside.Bridge(f.in("fdb add 02:00:00:00:00:01 dev evil dst 192.168.50.1"))
		w.outside.IP(f.in("addr add 10.244.9.9/32 dev evil"))
		w.outside.IP(f.in("neigh add 10.244.9.8 lladdr 02:00:00:00:00:01 dev evil nud permanent"))
		w.outside.IP(f.in("route replace 10.244.1.0/24 via 10.244.9.8 dev evil onlink"))
		capture := w.pods["pod-a"].Capture("eth0")
		intrude := func() {
			conn, err := w.outside.Dial("udp", podA, time.Second)
			if err != nil {
				t.Fatal(err)
			}
			_, _ = conn.Write([]byte("evil"))
		}
		arrived := func() int {
			return capture.Count(func(frame []byte) bool { return port(frame) == echoPort && strings.HasSuffix(string(frame), "evil") })
		}
		nstest.Eventually(t, 20*time.Second, func() error {
			intrude()
			if arrived() == 0 {
				return fmt.Errorf("the intruder's packet does not arrive without anti-spoofing: the test shows nothing")
			}
			return nil
		})
		everybody := map[subnet.Family]string{subnet.IPv4: "224.0.0.1", subnet.IPv6: "ff02::1"}[f.Family]
		before := arrived()
		nstest.Eventually(t, 20*time.Second, func() error {
			w.outside.Bridge(f.in("fdb replace 02:00:00:00:00:01 dev evil dst ") + everybody + " via eth0")
			intrude()
			if arrived() == before {
				return fmt.Errorf("what is sent to all hosts does not arrive without anti-spoofing: the test shows nothing")
			}
			return nil
		})
		c.AntiSpoof = true
		c.Peers = []netip.AddrPort{f.at("192.168.50.2:4789")}
		sync(t, m, c)
		before = arrived()
		for _, to := range []string{everybody + " via eth0", f.in("192.168.50.1")} {
			w.outside.Bridge(f.in("fdb replace 02:00:00:00:00:01 dev evil dst ") + to)
			for range 5 {
				intrude()
			}
		}
		if !w.arrives("pod-b", podA) { // a peer passes, and its answer comes after whatever the intruder sent
			t.Error("a peer is shut out")
		}
		if n := arrived() - before; n > 0 {
			t.Errorf("%d packets of the intruder arrived", n)
		}
		// A peer that leaves is shut out, and one that comes is let in: one element each, no rewrite.
		c.Peers = nil
		r := sync(t, m, c)
		if len(r.Changes) != 1 || !strings.Contains(r.Changes[0], f.in("set peers-ipv4 has 192.168.50.2")) || w.quick("pod-b", podA) {
			t.Errorf("a peer that left: %v", r.Changes)
		}
	})
}

// say sends a datagram from an address, whoever answers.
func say(t *testing.T, from *nstest.NS, bind netip.Addr, to netip.AddrPort) {
	t.Helper()
	err := from.Do(func() error {
		conn, err := net.DialUDP("udp", net.UDPAddrFromAddrPort(netip.AddrPortFrom(bind, 0)), net.UDPAddrFromAddrPort(to))
		if err == nil {
			_, err = conn.Write([]byte("forged"))
			conn.Close()
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
}

// An outer address is as easily forged as any other: a packet that comes by it from a pod of the node itself, or from outside, is
// nobody's.
func TestX02APeerMaySendFromItsOwnPodsOnly(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		w := newWorld(t)
		podA := netip.AddrPortFrom(addrs(f.Family)["pod-a"], echoPort)
		c := nodeConfig(1)
		c.Peers = []netip.AddrPort{f.at("192.168.50.2:4789")}
		c.Inner = Inner{Devices: []string{"flannel.1", "flannel-v6.1"}}
		for _, family := range subnet.Families() {
			c.Inner.Ranges[family] = []netip.Prefix{podPrefix(family, 2)}
		}
		m := manager(w.node[0])
		forged := []netip.Addr{f.addr("10.244.1.77"), f.addr("192.0.2.77"), f.addr("10.244.3.5")}
		for _, a := range forged {
			w.node[1].IP(fmt.Sprintf("addr add %s/%d dev lo", a, a.BitLen()))
		}
		capture := w.pods["pod-a"].Capture("eth0")
		arrives := func() (out []netip.Addr) {
			for _, a := range forged {
				before := capture.Count(func(frame []byte) bool { return source(frame) == a })
				for range 2 {
					say(t, w.node[1], a, podA)
				}
				if !w.arrives("pod-b", podA) {
					t.Fatalf("a pod of the peer is shut out:\n%s", w.node[0].NFT())
				}
				if capture.Count(func(frame []byte) bool { return source(frame) == a }) > before {
					out = append(out, a)
				}
			}
			return out
		}
		for _, tc := range []struct {
			spoof, masquerade bool
			want              []netip.Addr
		}{{false, true, forged}, {true, true, nil}, {true, false, forged[1:2]}} {
			c.AntiSpoof, c.Masquerade = tc.spoof, tc.masquerade
			sync(t, m, c)
			if d := cmp.Diff(tc.want, arrives(), cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
				t.Errorf("anti-spoof %v, masquerade %v: what arrives (-want +got):\n%s", tc.spoof, tc.masquerade, d)
			}
		}
		if _, err := seen(w.node[1], podPrefix(f.Family, 2).Addr(), podA); err != nil {
			t.Errorf("the peer itself is shut out: %v", err)
		}
	})
}

// A pod's packets leave with its node's address, which is a peer's: what it wraps by itself would be believed, whatever pod it says
// it is from.
func TestX02APodDoesNotEncapsulateInItsNodesName(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		w := newWorld(t)
		pod, podA2, podB := w.pods["pod-a"], addrs(f.Family)["pod-a2"], netip.AddrPortFrom(addrs(f.Family)["pod-b"], echoPort)
		pod.IP(fmt.Sprintf("link add evil type vxlan id 1 local %s dev eth0 dstport 4789 nolearning", addrs(f.Family)["pod-a"]))
		pod.IP("link set evil up")
		pod.Bridge(f.in("fdb add 02:00:00:00:00:02 dev evil dst 192.168.50.2"))
		pod.IP(fmt.Sprintf("addr add %s/%d dev lo", podA2, podA2.BitLen()))
		gateway := podPrefix(f.Family, 2).Addr()
		pod.IP(fmt.Sprintf("neigh add %s lladdr 02:00:00:00:00:02 dev evil nud permanent", gateway))
		pod.IP(fmt.Sprintf("route replace %s via %s dev evil onlink", podPrefix(f.Family, 2), gateway))
		capture := w.pods["pod-b"].Capture("eth0")
		arrived := func() int {
			return capture.Count(func(frame []byte) bool { return source(frame) == podA2 && strings.HasSuffix(string(frame), "forged") })
		}
		config := func(node int, spoof bool) Config {
			c := nodeConfig(node)
			c.AntiSpoof, c.Peers = spoof, []netip.AddrPort{f.at(fmt.Sprintf("192.168.50.%d:4789", 3-node))}
			c.Inner = Inner{Devices: []string{"flannel.1", "flannel-v6.1"}}
			for _, family := range subnet.Families() {
				c.Inner.Ranges[family] = []netip.Prefix{podPrefix(family, 3-node)}
			}
			return c
		}
		sync(t, manager(w.node[1]), config(2, true))
		m := manager(w.node[0])
		sync(t, m, config(1, false))
		nstest.Eventually(t, 20*time.Second, func() error {
			say(t, pod, podA2, podB)
			if arrived() == 0 {
				return fmt.Errorf("what the pod wraps does not arrive without anti-spoofing: the test shows nothing")
			}
			return nil
		})
		sync(t, m, config(1, true))
		w.node[0].Run("conntrack", "-F")
		before := arrived()
		for range 5 {
			say(t, pod, podA2, podB)
		}
		if !w.arrives("pod-a2", podB) { // what comes after it has arrived
			t.Errorf("a pod that wraps nothing is shut out:\n%s", w.node[0].NFT())
		}
		if n := arrived() - before; n > 0 {
			t.Errorf("%d packets that a pod had wrapped arrived", n)
		}
		// VXLAN to the outside is none of ours.
		w.outside.UDPEcho(f.at("192.168.50.3:4789"))
		if got, err := seen(w.pods["pod-a2"], netip.Addr{}, f.at("192.168.50.3:4789")); err != nil || got.Addr() != addrs(f.Family)["node"] {
			t.Errorf("a pod's own packets to port 4789 of an outside host arrive from %v (%v)", got, err)
		}
	})
}

func TestARuleThatAcceptsThePortByStateNewKeepsItsPacketsTracked(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		for _, engine := range engineNames {
			w := newWorld(t)
			n := w.node[0]
			f.xt(n, engine, "-A", "INPUT", "-p", "udp", "-m", "state", "--state", "NEW", "-m", "udp", "--dport", "4789", "-j", "ACCEPT")
			f.xt(n, engine, "-A", "INPUT", "-p", "udp", "--dport", "4789", "-j", "REJECT")
			f.xt(n, engine, "-A", "OUTPUT", "-p", "udp", "-m", "state", "--state", "NEW,ESTABLISHED", "-j", "ACCEPT")
			if f.Family == subnet.IPv6 { // whose neighbours are found by what passes OUTPUT
				f.xt(n, engine, "-A", "OUTPUT", "-p", "icmpv6", "-j", "ACCEPT")
			}
			f.xt(n, engine, "-P", "OUTPUT", "DROP")
			sync(t, manager(n), nodeConfig(1))
			sync(t, manager(w.node[1]), nodeConfig(2))
			a := addrs(f.Family)
			if !w.arrives("pod-b", netip.AddrPortFrom(a["pod-a"], echoPort)) || !w.arrives("pod-a", netip.AddrPortFrom(a["pod-b"], echoPort)) {
				t.Errorf("%s: encapsulated packets do not pass a rule that flannel's passed", engine)
			}
		}
	})
}

func TestATableOfNFTThatTakesThePortByStateNewKeepsItsPacketsTracked(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		w := newWorld(t)
		n := w.node[0]
		n.SetNFT("table inet filter { chain input { type filter hook input priority 0; policy drop; ct state established accept\nmeta l4proto { icmp, icmpv6 } accept\n" +
			"udp dport 4789 ct state new accept\n }; }\n")
		m := manager(n)
		for range 2 {
			sync(t, m, nodeConfig(1))
		}
		sync(t, manager(w.node[1]), nodeConfig(2))
		if !w.arrives("pod-b", netip.AddrPortFrom(addrs(f.Family)["pod-a"], echoPort)) {
			t.Error("encapsulated packets do not pass a rule that flannel's passed")
		}
		n.Run("nft", "delete", "table", "inet", "filter")
		if sync(t, m, nodeConfig(1)); !strings.Contains(n.NFT(), "notrack") {
			t.Error("the rule is gone, and packets are still tracked")
		}
	})
}

// firewalld is the skeleton of what firewalld 1.3 writes, with the rules that matter.
const firewalld = `table inet firewalld {
	chain filter_INPUT {
		type filter hook input priority filter + 10; policy accept;
		ct state established,related accept
		iifname "lo" accept
		ct state invalid drop
		%[1]s
		reject with icmpx admin-prohibited
	}
	chain filter_FORWARD {
		type filter hook forward priority filter + 10; policy accept;
		ct state established,related accept
		iifname "lo" accept
		%[2]s
		reject with icmpx admin-prohibited
	}
}
`

func TestM16FirewalldsRejectIsNamedUntilItIsCured(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		m := manager(ns)
		if r := sync(t, m, f.single()); len(r.Problems) > 0 {
			t.Fatalf("problems on a clean host: %q", r.Problems)
		}
		ns.SetNFT(fmt.Sprintf(firewalld, "", ""))
		r := sync(t, m, f.single())
		all := strings.Join(r.Problems, "\n")
		for _, want := range []string{f.in("--zone=trusted --add-source=10.244.0.0/16"), "--add-port=4789/udp"} {
			if !strings.Contains(all, want) {
				t.Errorf("%q is missing in\n%s", want, all)
			}
		}
		if len(r.Changes) > 0 {
			t.Errorf("naming a problem changed %q", r.Changes)
		}
		ns.Run("nft", "delete", "table", "inet", "firewalld")
		ns.SetNFT(fmt.Sprintf(firewalld, "ct state { new, untracked } udp dport 4789 accept", f.in("ip saddr 10.244.0.0/16 accept")))
		if r := sync(t, m, f.single()); len(r.Problems) > 0 {
			t.Errorf("cured, and still: %q", r.Problems)
		}
	})
}

// iptables reads no table of its name that nft has made, as many a nftables.conf does.
func TestM16AFilterTableThatNFTHasMadeIsNamedUntilItIsCured(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		m := manager(ns)
		ns.SetNFT(f.in("table ip filter { chain forward { type filter hook forward priority 0; policy accept; ct state established accept; }; }\n"))
		if r := sync(t, m, f.single()); len(r.Problems) > 0 {
			t.Errorf("it stops nothing, and still: %q", r.Problems)
		}
		ns.SetNFT(f.in("delete table ip filter\ntable ip filter { chain forward { type filter hook forward priority 0; policy drop; ct state established accept; }\n" +
			"chain input { type filter hook input priority 0; policy drop; tcp dport 22 accept; }\n" +
			"chain output { type filter hook output priority 0; policy drop; udp dport 53 accept; }; }\n"))
		r := sync(t, m, f.single())
		all := strings.Join(r.Problems, "\n")
		for _, want := range []string{
			"table ip filter, chain forward stops forwarded packets of 10.244.0.0/16, and no other table can override that: " +
				"nft insert rule ip filter forward ip daddr 10.244.0.0/16 accept; nft insert rule ip filter forward ip saddr 10.244.0.0/16 accept",
			"so no peer can reach this node: nft insert rule ip filter input udp dport 4789 accept",
			"so this node can reach no peer: nft insert rule ip filter output udp dport 4789 accept",
		} {
			if !strings.Contains(all, f.in(want)) {
				t.Errorf("%q is missing in\n%s", f.in(want), all)
			}
		}
		for _, cure := range []string{
			"ip filter forward ip daddr 10.244.0.0/16 accept", "ip filter forward ip saddr 10.244.0.0/16 accept",
			"ip filter input udp dport 4789 accept", "ip filter output udp dport 4000-5000 accept",
		} {
			ns.SetNFT(f.in("insert rule "+cure) + "\n")
		}
		if r := sync(t, m, f.single()); len(r.Problems) > 0 {
			t.Errorf("cured, and still: %q", r.Problems)
		}
	})
}

// A host's own rules may drop the very port.
func TestV10ARuleThatDropsThePortOutrightIsNamed(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		c := f.single()
		c.Peers = []netip.AddrPort{f.at("192.168.50.2:4789")}
		for rules, want := range map[string]bool{
			"udp dport 4789 drop": true, "udp dport 4000-5000 counter reject": true, "jump deny": true, "meta l4proto udp drop": true,
			"udp dport vmap { 53 : accept, 4789 : accept }; drop": false, "ip saddr 192.168.50.0/24 accept; udp dport 4789 drop": false,
			"ip saddr 10.0.0.0/8 accept; udp dport 4789 drop": true, "iifname eth9 udp dport 4789 drop": false,
			"ip saddr != { 192.168.50.2, 192.168.50.3 } udp dport 4789 drop": false, "tcp dport 4789 drop": false, "udp dport { 53, 67 } drop": false,
			"meta l4proto { icmp, icmpv6, udp } accept; drop": false, "ct state vmap { established : accept, invalid : drop }; drop": true,
		} {
			ns.SetNFT(f.in("table inet ops { chain deny { drop; }\n" +
				"chain in { type filter hook input priority 0; policy accept; " + rules + "; }; }\n"))
			r := sync(t, manager(ns), c)
			if named := strings.Contains(strings.Join(r.Problems, "\n"), "table inet ops, chain in stops packets to UDP port 4789"); named != want {
				t.Errorf("%s: %q", rules, r.Problems)
			}
			ns.Run("nft", "delete", "table", "inet", "ops")
		}
	})
}

func TestM01DoubledAndMisplacedRulesInTheTableAreReplaced(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		m := manager(ns)
		sync(t, m, f.single())
		right := ns.NFT()
		for _, spoil := range []string{
			"insert rule inet weft postrouting ip saddr 10.244.0.0/16 masquerade",
			"add rule inet weft postrouting ip daddr 10.244.0.0/16 masquerade fully-random comment \"remote pods answer to this node, not past it #a05c93bc\"",
			"flush chain inet weft postrouting",
			"delete chain inet weft outbound; add chain inet weft outbound { type filter hook output priority 0; }",
			"add element inet weft exclude-ipv4 { 198.51.100.0/24 }",
			"add map inet weft m { type ipv4_addr : verdict; }",
		} {
			ns.SetNFT(f.in(spoil) + "\n")
			if r := sync(t, m, f.single()); len(r.Changes) == 0 {
				t.Errorf("%s: nothing was changed", spoil)
			}
			if d := cmp.Diff(right, ns.NFT()); d != "" {
				t.Errorf("%s:\n%s", spoil, d)
			}
		}
	})
}

func TestM11ExcludedDestinationsChangeLiveAndOneElementAtATime(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		w := newWorld(t)
		m := manager(w.node[0])
		c := nodeConfig(1)
		c.Exclude = nil
		sync(t, m, c)
		excluded := netip.AddrPortFrom(addrs(f.Family)["excluded"], echoPort)
		for _, tc := range []struct {
			exclude, want string
		}{
			{"", "192.168.50.1"}, {"192.0.2.10/32", "10.244.1.5"}, {"192.0.2.0/24 192.0.2.10/32", "10.244.1.5"}, {"192.0.3.0/24", "192.168.50.1"},
			{"0.0.0.0/0 192.0.2.0/24", "10.244.1.5"}, {"192.0.2.0/25 192.0.2.128/25 ::/0", "10.244.1.5"}, {"", "192.168.50.1"},
		} {
			c.Exclude = nil
			for _, p := range strings.Fields(f.in(tc.exclude)) {
				c.Exclude = append(c.Exclude, netip.MustParsePrefix(p))
			}
			r := sync(t, m, c)
			if got, err := seen(w.pods["pod-a"], netip.Addr{}, excluded); err != nil || got.Addr() != f.addr(tc.want) {
				t.Errorf("exclude %q: seen %v (%v), want %s; changed %q", tc.exclude, got, err, tc.want, r.Changes)
			}
			if node := netip.AddrPortFrom(addrs(f.Family)["node2"], echoPort); strings.Contains(tc.exclude, "0.0.0.0/0") {
				if got, err := seen(w.pods["pod-a"], netip.Addr{}, node); err != nil || got.Addr() != f.addr("10.244.1.5") {
					t.Errorf("another node sees %v (%v)", got, err)
				}
			}
			for _, text := range r.Changes {
				if !strings.Contains(text, "set exclude-") {
					t.Errorf("exclude %q: %s", tc.exclude, text)
				}
			}
		}
	})
}

func TestAnElementThatWentBeforeItCouldBeRemovedCostsARewrite(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		m := manager(ns)
		c := f.single()
		c.Exclude = []netip.Prefix{f.prefix("192.0.2.0/24")}
		sync(t, m, c)
		c.Exclude = nil
		p := m.survey(context.Background(), c, scope{})
		ns.Run("nft", "flush", "set", "inet", "weft", f.in("exclude-ipv4")) // between our look and our write
		if _, err := m.apply(context.Background(), p); err != nil {
			t.Error(err)
		}
		if err := differs(ns, c); err != nil {
			t.Error(err)
		}
	})
}

func TestManyNodesLiveInOneProcess(t *testing.T) {
	var wg stdsync.WaitGroup
	for i := range 8 {
		ns := nstest.New(t)
		c := single()
		c.Nets[0].PodCIDR = netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)
		wg.Go(func() {
			m := manager(ns)
			for range 10 {
				c.RandomFully = !c.RandomFully
				if _, err := m.Sync(context.Background(), c); err != nil {
					t.Error(err)
				}
				if err := differs(ns, c); err != nil {
					t.Errorf("node %d: %v", i, err)
				}
			}
		})
	}
	wg.Wait()
}

func TestAChangeOfFiveThousandPeersIsOneTransaction(t *testing.T) {
	ns := nstest.New(t)
	m := manager(ns)
	c := single()
	c.AntiSpoof = true
	for i := range 5000 {
		c.Peers = append(c.Peers, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, byte(i / 250), byte(i % 250)}), 4789))
	}
	start := time.Now()
	sync(t, m, c)
	first := time.Since(start)
	start = time.Now()
	if r := sync(t, m, c); len(r.Changes) > 0 {
		t.Errorf("a quiet round changed %q", r.Changes)
	}
	quiet := time.Since(start)
	c.Peers = c.Peers[1:]
	start = time.Now()
	if r := sync(t, m, c); len(r.Changes) != 1 {
		t.Errorf("one peer less changed %q", r.Changes)
	}
	t.Logf("5,000 peers: first %v, quiet %v, one less %v", first.Round(time.Millisecond), quiet.Round(time.Millisecond), time.Since(start).Round(time.Millisecond))
}
