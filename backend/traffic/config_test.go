package traffic

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
)

func TestValidateNamesEachMistake(t *testing.T) {
	for want, change := range map[string]func(*Config){
		"10.244.1.0/24 is not inside the network 10.40.0.0/14": func(c *Config) { c.Nets[subnet.IPv4].Network = netip.MustParsePrefix("10.40.0.0/14") },
		"10.244.0.1/16 is not a masked IPv4 prefix":            func(c *Config) { c.Nets[subnet.IPv4].Network = netip.MustParsePrefix("10.244.0.1/16") },
		"10.244.0.0/16 is not a masked IPv6 prefix":            func(c *Config) { c.Nets[subnet.IPv6] = c.Nets[subnet.IPv4] },
		"forward place \"middle\" is none of":                  func(c *Config) { c.ForwardPlace = "middle" },
		"an excluded destination is no prefix":                 func(c *Config) { c.Exclude = append(c.Exclude, netip.Prefix{}) },
	} {
		c := cluster()
		change(&c)
		if err := c.Validate(); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("want %q, got %v", want, err)
		}
	}
	if err := cluster().Validate(); err != nil {
		t.Error(err)
	}
	if err := (Config{}).Validate(); err != nil {
		t.Errorf("the zero Config wants nothing and is right: %v", err)
	}
}

func TestValidateReportsAllMistakesAtOnce(t *testing.T) {
	c := cluster()
	c.ForwardPlace, c.Exclude = "x", append(c.Exclude, netip.Prefix{})
	if err := c.Validate(); err == nil || strings.Count(err.Error(), "\n") != 1 {
		t.Errorf("want two lines, got %v", err)
	}
}

func TestDisjointDropsWhatAnotherPrefixCovers(t *testing.T) {
	for _, tc := range []struct{ in, want string }{
		{"", ""},
		{"10.0.0.0/8 10.1.2.3/32 10.0.0.0/8 10.0.0.0/9", "10.0.0.0/8"},
		{"10.1.2.3/32 10.0.0.0/8 9.255.255.255/32 11.0.0.0/32", "9.255.255.255 10.0.0.0/8 11.0.0.0"},
		{"172.16.5.1/12", "172.16.0.0/12"},
		{"0.0.0.0/0 10.0.0.0/8", "0.0.0.0/0"},
		{"10.0.0.0/9 10.128.0.0/9", "10.0.0.0/9 10.128.0.0/9"},
		{"fd00::/8 fd00:1::/32 fe80::1/128", "fd00::/8 fe80::1"},
	} {
		var in []netip.Prefix
		for _, s := range strings.Fields(tc.in) {
			in = append(in, netip.MustParsePrefix(s))
		}
		var got []string
		for _, p := range disjoint(in) {
			got = append(got, element(p))
		}
		if d := cmp.Diff(tc.want, strings.Join(got, " ")); d != "" {
			t.Errorf("%s: %s", tc.in, d)
		}
	}
}

// A rule for a port works on all nodes and on everybody's packets: a Node that announces DNS's as its own would cut the cluster's
// hosts off from it, since what is not tracked is not translated either.
func TestAPeerThatAnnouncesASystemPortChangesNoRule(t *testing.T) {
	announces := func(port uint16) string {
		c := cluster()
		c.Port, c.AntiSpoof = 4789, true
		c.Peers = []netip.AddrPort{netip.AddrPortFrom(netip.MustParseAddr("192.168.50.2"), port)}
		return Rules(c).String()
	}
	for _, port := range []uint16{53, 67, 123, 443, 500, 1023} {
		if d := cmp.Diff(announces(4789), announces(port)); d != "" {
			t.Errorf("a peer announces %d (-want +got):\n%s", port, d)
		}
	}
	if announces(4789) == announces(8472) {
		t.Error("a peer on flannel's port is not heard")
	}
}

func TestAPortThatAPeerAnnouncesCountsForThatPeerAlone(t *testing.T) {
	c := Config{Port: 4789, Mixed: []uint16{0, 4789, 9000}}
	for _, p := range []string{"10.0.0.2:8472", "10.0.0.3:4789", "10.0.0.2:8472", "10.0.0.5:53", "[fd00::2]:8472"} {
		c.Peers = append(c.Peers, netip.MustParseAddrPort(p))
	}
	want := [2]string{"[10.0.0.2:8472 10.0.0.2:9000 10.0.0.3:9000 10.0.0.5:9000]", "[[fd00::2]:8472 [fd00::2]:9000]"}
	for _, f := range subnet.Families() {
		if d := cmp.Diff(want[f], fmt.Sprint(c.tunnels(f))); d != "" {
			t.Error(d)
		}
	}
	c.Port = 0
	if got := c.tunnels(subnet.IPv4); got != nil {
		t.Errorf("without a port of ours: %v", got)
	}
}

// A hostile Node announces the port of a service that runs on every node.
func TestAPortThatAPeerAnnouncesTakesNothingFromOthers(t *testing.T) {
	c := single()
	c.Port, c.AntiSpoof = 4789, true
	c.Peers = []netip.AddrPort{netip.MustParseAddrPort("192.168.50.66:51820"), netip.MustParseAddrPort("192.168.50.3:4789")}
	fake := onFake(t, Rules(c))
	for _, src := range []string{"192.168.50.3", "192.168.50.9"} { // a peer and a stranger
		in := packet{src: netip.MustParseAddr(src), dst: netip.MustParseAddr("192.168.50.1"), dport: "51820", local: true}
		if got, rule := trace(t, fake, "inbound", in); got != "accept" {
			t.Errorf("from %s: %s by %q", src, got, rule)
		}
		out := packet{src: in.dst, dst: in.src, dport: "51820"}
		if got, rule := trace(t, fake, "outbound", out); got != "accept" {
			t.Errorf("to %s: %s by %q", src, got, rule)
		}
	}
}
