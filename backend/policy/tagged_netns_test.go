package policy_test

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/oracle"
	"github.com/weft-cni/weft/tests/nstest"
)

// A frame of the VLAN that is none (IEEE 802.1Q, priority tags) is taken as one without a tag by whoever gets it. br_netfilter
// shows tagged frames to nobody unless it is told to, and those of two tags never.
func TestFramesWithTagsAreNoWayAroundThePolicies(t *testing.T) { // N-17
	s := newSite(t)
	const last = 999
	pods := [2]netip.Prefix{netip.PrefixFrom(podAddr("a"), 23).Masked(), netip.PrefixFrom(podAddrLong("a"), 63).Masked()}
	s.syncWith(policy.Config{Bridged: pods}, isolate(policy.Ingress, "b", with([]string{"a"}, port(policy.UDP, last))))
	s.pods["b"].SetNFT("table inet seen { set ports { type inet_service; size 100; flags dynamic; }; chain c { type filter hook input priority 0; add @ports { udp dport }; }; }")
	wire, to, from := openWire(t, s.pods["a"]), mac(t, s.pods["b"], "eth0"), mac(t, s.pods["a"], "eth0")
	send := func(tags string, src, dst netip.Addr, n uint16) {
		p := oracle.Packet{Src: src, Dst: dst, Proto: policy.UDP, Port: n}
		kind := map[bool]string{true: "\x08\x00", false: "\x86\xdd"}[src.Is4()]
		frame := append([]byte(string(to)+string(from)+tags+kind), datagram(p, transport(p, 4000, nil))...)
		if _, err := wire.file.Write(frame); err != nil {
			t.Fatal(err)
		}
	}
	for i, tags := range []string{"", "\x81\x00\x00\x00", "\x88\xa8\x00\x00", "\x81\x00\x00\x00\x81\x00\x00\x00", "\x88\xa8\x00\x00\x81\x00\x00\x00"} {
		send(tags, podAddr("a"), podAddr("b"), uint16(100+i))
		send(tags, podAddrLong("a"), podAddrLong("b"), uint16(200+i))
	}
	send("", podAddr("a"), podAddr("b"), last)
	nstest.Eventually(t, 30*time.Second, func() error {
		if list := s.pods["b"].Run("nft", "list", "set", "inet", "seen", "ports"); !strings.Contains(list, fmt.Sprint(last)) {
			return fmt.Errorf("the last has not arrived: %s", list)
		}
		return nil
	})
	list := s.pods["b"].Run("nft", "list", "set", "inet", "seen", "ports")
	if _, elements, _ := strings.Cut(list, "elements = "); strings.TrimSpace(strings.Trim(elements, "{} \n\t")) != fmt.Sprint(last) {
		t.Errorf("more came than is allowed: %s", elements)
	}
}

func TestTheTableOfTagsIsKeptWhileRulesStand(t *testing.T) { // N-17, N-18
	s := newSite(t)
	cfg := policy.Config{Bridged: [2]netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}}
	list := func() string {
		text, _ := s.node.Try("nft", "list", "table", "bridge", policy.TableName)
		return text
	}
	s.syncWith(cfg, isolate(policy.Ingress, "b"))
	want := list()
	if strings.Count(want, "drop comment") != 2 {
		t.Errorf("for one family:\n%s", want)
	}
	for _, damage := range []string{
		"flush ruleset", "delete table bridge weft-policy", "flush table bridge weft-policy", "add rule bridge weft-policy forward accept",
		"add chain bridge weft-policy mine", "add table bridge weft-policy { flags dormant; }",
	} {
		s.node.SetNFT(damage)
		s.syncWith(cfg, isolate(policy.Ingress, "b"))
		if got := list(); got != want {
			t.Errorf("after %q:\n%s", damage, got)
		}
	}
	cfg.Bridged[1] = netip.MustParsePrefix("fd00:244:0:1::/64")
	if s.syncWith(cfg, isolate(policy.Ingress, "b")); strings.Count(list(), "drop comment") != 3 {
		t.Errorf("for two families:\n%s", list())
	}
	if s.syncWith(policy.Config{Bridged: cfg.Bridged, Audit: true}, isolate(policy.Ingress, "b")); strings.Contains(list(), "drop") {
		t.Errorf("in audit:\n%s", list())
	}
	s.syncWith(cfg, isolate(policy.Ingress, "b"))
	s.restart()
	if s.syncWith(cfg); s.node.NFT() != "" {
		t.Errorf("without policies there is something left:\n%s", s.node.NFT())
	}
}
