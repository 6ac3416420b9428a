package policy_test

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/tests/nstest"
)

// echoes lets every place of the site answer on the Services' port.
func (s *site) echoes() {
	for _, name := range podsOfSite {
		s.pods[name].UDPEcho(netip.AddrPortFrom(podAddr(name), servicesPort))
		s.pods[name].UDPEcho(netip.AddrPortFrom(podAddrLong(name), servicesPort))
	}
	s.outside.UDPEcho(netip.MustParseAddrPort(outsideAddr + ":80"))
	s.outside.UDPEcho(netip.MustParseAddrPort("[" + outsideLong + "]:80"))
	s.node.UDPEcho(netip.MustParseAddrPort(nodeAddr + ":80"))
}

func both(name string) []string { return []string{podAddr(name).String(), podAddrLong(name).String()} }

func TestPodsOfOneBridgeAreJudgedAndTheNodeReachesItsPods(t *testing.T) { // N-11, N-17
	s := newSite(t)
	s.echoes()
	s.sync()
	s.expect("no policy", true, s.pods["a"], both("b")...)
	s.expect("no policy", true, s.outside, both("b")...)
	if got := s.node.NFT(); strings.Contains(got, policy.TableName) {
		t.Errorf("something is in the path although no policy selects a pod:\n%s", got)
	}
	s.sync(isolate(policy.Ingress, "b", with([]string{"c"})))
	s.expect("isolated", false, s.pods["a"], both("b")...)
	s.expect("isolated", false, s.outside, both("b")...)
	s.expect("allowed", true, s.pods["c"], both("b")...)
	s.expect("the other way", true, s.pods["b"], both("a")...)
	s.expect("the own node", true, s.node, both("b")...)
	s.expect("to others", true, s.pods["a"], both("c")...)
	s.sync(isolate(policy.Ingress, "b"), isolate(policy.Egress, "c"))
	s.expect("egress of one", false, s.pods["c"], append(both("a"), outsideAddr, outsideLong)...)
	s.expect("the own node", true, s.pods["c"], nodeAddr)
	s.sync()
	s.expect("policies are gone", true, s.pods["c"], append(both("b"), outsideAddr)...)
}

func TestAPodReachesItselfThroughItsService(t *testing.T) {
	s := newSite(t)
	s.echoes()
	s.service("b")
	for line := range strings.Lines(s.node.IP("-o link show master cni0")) {
		port, _, _ := strings.Cut(strings.Fields(line)[1], "@")
		s.node.Bridge("link set dev " + port + " hairpin on") // as the bridge plugin does with hairpinMode
	}
	s.sync(isolate(policy.Ingress, "b"), isolate(policy.Egress, "b"))
	s.expect("to itself", true, s.pods["b"], clusterAddr)
	s.expect("others", false, s.pods["a"], clusterAddr)
}

func TestAServiceIsJudgedByWhereItLeads(t *testing.T) { // N-25
	s := newSite(t)
	s.echoes()
	s.service("b")
	to := func(prefix string) policy.Rule {
		return policy.Rule{AllPorts: true, Peers: []policy.Peer{{Networks: []policy.Network{{CIDR: netip.MustParsePrefix(prefix)}}}}}
	}
	s.sync(isolate(policy.Egress, "a", to(clusterAddr+"/32")))
	s.expect("the Service's address allowed", false, s.pods["a"], clusterAddr)
	s.sync(isolate(policy.Egress, "a", to(podAddr("b").String()+"/32")))
	s.expect("the endpoint allowed", true, s.pods["a"], clusterAddr)
}

func TestAGatedAddressIsCutOffUntilItIsJudged(t *testing.T) { // N-03
	s := newSite(t)
	s.service("b")
	s.echoes()
	stale := s.talk("udp", s.pods["a"], s.pods["b"], podAddr("b"), netip.AddrPortFrom(podAddr("b"), 6000)) // of an earlier pod
	s.world.Gated = []netip.Addr{podAddr("b"), podAddrLong("b")}
	s.sync()
	s.expect("gated", false, s.pods["a"], both("b")...)
	s.expect("gated", false, s.pods["b"], append(both("a"), outsideAddr)...)
	s.expect("the own node", true, s.node, both("b")...)
	if heard := goOn(t, 30, stale); heard[0] != [2]int{} {
		t.Errorf("a connection of the address's last pod goes on: %v", heard[0])
	}
	s.world.Gated = nil
	s.sync()
	s.expect("judged", true, s.pods["a"], both("b")...)
}

func TestAuditCountsAndDropsNothing(t *testing.T) {
	s := newSite(t)
	s.echoes()
	deny := isolate(policy.Ingress, "b")
	s.syncWith(policy.Config{Audit: true}, deny)
	s.expect("audit", true, s.pods["a"], both("b")...)
	counted := func() policy.Count {
		counts, err := s.m.Counters(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		for _, c := range counts {
			if c.Policy == deny.Key() && c.Direction == policy.Ingress {
				return c
			}
		}
		return policy.Count{}
	}
	audited := counted()
	if audited.Packets < 2 || audited.Bytes == 0 {
		t.Errorf("counted %+v, want the first packet of each of two connections at least", audited)
	}
	s.syncWith(policy.Config{}, deny)
	if c := counted(); c != audited {
		t.Errorf("a change of mode lost the counters: %+v", c)
	}
	s.expect("enforced", false, s.pods["a"], podAddr("b").String())
	if c := counted(); c.Packets <= audited.Packets {
		t.Errorf("drops are not counted: %+v", c)
	}
}

func TestErrorsAboutAnAllowedConnectionPass(t *testing.T) {
	s := newSite(t)
	s.outside.IP("link set eth0 mtu 1300")
	s.node.IP("link set uplink mtu 1300")
	s.outside.TCPEcho(netip.MustParseAddrPort(outsideAddr + ":80"))
	s.sync(isolate(policy.Ingress, "a"), isolate(policy.Egress, "a", policy.Rule{AllPeers: true, Ports: []policy.Port{port(policy.TCP, 80), port(policy.UDP, 9)}}))
	// A closed port answers with an error that belongs to the connection, and the socket hears of it.
	conn, err := s.pods["a"].Dial("udp", netip.MustParseAddrPort(outsideAddr+":9"), time.Second)
	if err != nil {
		t.Fatal(err)
	}
	nstest.Eventually(t, 10*time.Second, func() error {
		_, _ = conn.Write([]byte("anyone?"))
		_ = conn.SetReadDeadline(time.Now().Add(200 * time.Millisecond))
		if _, err := conn.Read(make([]byte, 10)); err == nil || !strings.Contains(err.Error(), "refused") {
			return fmt.Errorf("read: %v, want that the port was refused", fmt.Sprint(err))
		}
		return nil
	})
	s.expect("other ports", false, s.pods["a"], outsideAddr)
}

// Fragments are put together before they are judged, so that one without a port is no way around.
func TestFragmentsAreJudgedAsOnePacket(t *testing.T) {
	s := newSite(t)
	s.echoes()
	s.sync(isolate(policy.Ingress, "b", with([]string{"a"}, port(policy.UDP, servicesPort))))
	big := func(from *nstest.NS) error {
		conn, err := from.Dial("udp", netip.AddrPortFrom(podAddr("b"), servicesPort), time.Second)
		if err != nil {
			return err
		}
		defer conn.Close()
		_, _ = conn.Write(make([]byte, 4000))
		_ = conn.SetReadDeadline(time.Now().Add(500 * time.Millisecond))
		_, err = conn.Read(make([]byte, 8000))
		return err
	}
	nstest.Eventually(t, 10*time.Second, func() error { return big(s.pods["a"]) })
	if err := big(s.pods["c"]); err == nil {
		t.Error("fragments pass that no rule allows")
	}
}

// IPVS takes a packet in the input hook and sends it on through the output hook, with the source it had. A socket that may use
// any address does the same.
func TestPacketsThatTheNodePassesOnAsItsOwnAreJudged(t *testing.T) { // N-16
	s := newSite(t)
	s.sync(isolate(policy.Ingress, "b", with([]string{"c"})))
	capture := s.pods["b"].Capture("eth0")
	send := func(src string, n byte) {
		t.Helper()
		// A packet that is dropped in the output hook is an error of the sender's.
		if err := s.node.Do(func() error { return sendAs(src, netip.AddrPortFrom(podAddr("b"), 80), n) }); err != nil && !errors.Is(err, unix.EPERM) {
			t.Fatal(err)
		}
	}
	send(outsideAddr, 1)
	send(podAddr("a").String(), 2)
	send(podAddr("c").String(), 3)
	is := func(n byte) func([]byte) bool {
		return func(frame []byte) bool { return strings.HasSuffix(string(frame), "as another "+string('0'+rune(n))) }
	}
	capture.Wait(t, 10*time.Second, is(3))
	if capture.Count(is(1)) > 0 || capture.Count(is(2)) > 0 {
		t.Error("what is passed on in the output hook is not judged")
	}
}

func TestAForeignChangeIsHeardAndUndone(t *testing.T) { // N-18, N-23
	s := newSite(t)
	s.echoes()
	var runs []string
	s.host.OnExec = func(argv []string) { runs = append(runs, strings.Join(argv, " ")) }
	s.m = policy.NewPatient(s.host)
	ctx, cancel := context.WithCancel(context.Background())
	pokes := s.m.Watch(ctx)
	defer func() {
		cancel()
		for range pokes {
		}
	}()
	<-pokes
	rules := []*policy.NetworkPolicy{isolate(policy.Ingress, "b", with([]string{"c"}))}
	s.sync(rules...)
	runs = nil
	for _, c := range []struct{ name, script string }{
		{"a flush of everything", "flush ruleset"},
		{"an element less", "delete element inet weft-policy ingress-ipv4 { " + podAddr("b").String() + " }"},
		{"a rule less", "flush chain inet weft-policy judge"},
		{"a rule more", "insert rule inet weft-policy judge accept"},
		{"a table that sleeps", "add table inet weft-policy { flags dormant; }"},
		{"a chain more", "add chain inet weft-policy mine { type filter hook input priority 0; policy drop; }"},
		{"a set more", "add set inet weft-policy mine { type ipv4_addr; elements = { 10.0.0.1 } }"},
	} {
		t.Run(c.name, func(t *testing.T) {
			s.node.SetNFT(c.script)
			select {
			case <-pokes:
			case <-time.After(30 * time.Second):
				t.Fatal("nobody heard of it")
			}
			if res := s.sync(rules...); len(res.Changes) == 0 {
				t.Error("nothing was written")
			}
			if left, err := s.m.Check(ctx, s.world, policy.Config{}); err != nil || len(left) > 0 {
				t.Errorf("left over: %v %v", left, err)
			}
			s.expect(c.name, false, s.pods["a"], podAddr("b").String())
			s.expect(c.name, true, s.pods["c"], podAddr("b").String())
		})
	}
	runs = nil
	s.node.SetNFT("table ip other {\n set s {\n type ipv4_addr . inet_service\n flags interval\n elements = { 10.0.0.0/8 . 1-5 }\n }\n}")
	s.sync(rules...)
	if len(runs) > 0 {
		t.Errorf("another table's change made us run %v", runs)
	}
	s.world.Pods = s.world.Pods[:2]
	s.sync(rules...)
	if len(runs) == 0 || len(runs) > 2 {
		t.Errorf("a pod that went cost %v, want one transaction", runs)
	}
}

func TestARewriteOfTheTableKeepsCutConnectionsCut(t *testing.T) {
	s := newSite(t)
	s.service("b") // connections are tracked, as wherever there are Services
	udp := s.talk("udp", s.pods["a"], s.pods["b"], podAddr("b"), netip.AddrPortFrom(podAddr("b"), 6000))
	s.sync(isolate(policy.Ingress, "b"))
	s.node.SetNFT("add table inet weft-policy { flags dormant; }")
	goOn(t, 20, udp) // it comes up again, for the rules are not in force
	s.sync(isolate(policy.Ingress, "b"))
	s.restart() // a new agent finds the set as it is
	s.sync(isolate(policy.Ingress, "b"))
	if heard := goOn(t, 50, udp); heard[0] != [2]int{} {
		t.Errorf("it goes on: %v", heard[0])
	}
	s.sync(isolate(policy.Ingress, "b", with([]string{"a"})))
	if heard := goOn(t, 50, udp); heard[0][0] == 0 || heard[0][1] == 0 {
		t.Errorf("it does not go on although it may: %v", heard[0])
	}
}

func TestAnAgentThatIsAwayLeavesThePoliciesInForce(t *testing.T) { // N-19
	s := newSite(t)
	s.echoes()
	rules := []*policy.NetworkPolicy{isolate(policy.Ingress, "b", with([]string{"c"}))}
	s.sync(rules...)
	s.restart()
	s.expect("away", false, s.pods["a"], both("b")...)
	s.expect("away", true, s.pods["c"], both("b")...)
	if res := s.sync(rules...); len(res.Changes) > 0 {
		t.Errorf("the restart writes %v", res.Changes)
	}
}
