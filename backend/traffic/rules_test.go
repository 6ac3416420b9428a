package traffic

import (
	"flag"
	"net/netip"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
)

var update = flag.Bool("update", false, "write the golden files anew")

// single is cluster with IPv4 only, as most clusters are.
func single() Config {
	c := cluster()
	c.Nets[subnet.IPv6] = Net{}
	c.Exclude = nil
	return c
}

// rulesets are the Configs whose rules are kept as golden files; each is also loaded by the real nft.
func rulesets() map[string]Config {
	sets := map[string]Config{"plain": single(), "dual": cluster()}
	vary := func(name string, change func(*Config)) {
		c := single()
		change(&c)
		sets[name] = c
	}
	vary("no-masquerade", func(c *Config) { c.Masquerade = false })
	vary("port-kept", func(c *Config) { c.RandomFully = false })
	vary("no-overlay-port", func(c *Config) { c.Port = 0 })
	vary("tracked", func(c *Config) { c.Tracked = true })
	vary("mixed", func(c *Config) {
		c.Peers = []netip.AddrPort{netip.MustParseAddrPort("192.168.50.2:8472"), netip.MustParseAddrPort("192.168.50.3:4789")}
	})
	vary("anti-spoof", func(c *Config) {
		c.AntiSpoof = true
		c.Mixed = []uint16{8472, 14789}
		c.Peers = []netip.AddrPort{netip.MustParseAddrPort("192.168.50.2:4789")}
	})
	vary("ipip-anti-spoof", func(c *Config) {
		c.AntiSpoof, c.IPIP, c.Port = true, true, 0
		c.Peers = []netip.AddrPort{netip.MustParseAddrPort("192.168.50.2:0")}
	})
	vary("exclude", func(c *Config) {
		for _, p := range []string{"10.0.0.0/8", "10.1.2.3/32", "172.16.0.1/12", "192.168.50.2/32", "10.0.0.0/8", "fd00::/8"} {
			c.Exclude = append(c.Exclude, netip.MustParsePrefix(p))
		}
	})
	both := cluster()
	both.Nets[subnet.IPv6].KeepSource = true
	both.Sealed = Sealed{Devices: []string{"flannel-wg-v6", "flannel-wg"}, Ranges: [2][]netip.Prefix{
		{netip.MustParsePrefix("10.244.3.0/24"), netip.MustParsePrefix("10.244.2.0/24")}, {netip.MustParsePrefix("fd00:10:244:2::/64")},
	}}
	sets["sealed"] = both
	return sets
}

func TestRulesReadLikeTheGoldenFiles(t *testing.T) {
	for name, c := range rulesets() {
		path := filepath.Join("testdata", name+".nft")
		got := Rules(c).String()
		if *update {
			if err := os.WriteFile(path, []byte(got), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		want, err := os.ReadFile(path)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(string(want), got); d != "" {
			t.Errorf("%s (go test -update writes it anew):\n%s", name, d)
		}
	}
}

func TestNothingWantedMeansNoTable(t *testing.T) {
	for name, c := range map[string]Config{
		"zero":      {},
		"no family": {Masquerade: true},
	} {
		if r := Rules(c); !r.Empty() || r.String() != "" {
			t.Errorf("%s: got %s", name, r)
		}
	}
}

func TestTheSameConfigGivesTheSameRulesInWhateverOrderItIsWritten(t *testing.T) {
	a, b := single(), single()
	a.Mixed, b.Mixed = []uint16{8472, 9999, 8472}, []uint16{9999, 8472}
	a.Peers = []netip.AddrPort{netip.MustParseAddrPort("10.0.0.3:1"), netip.MustParseAddrPort("10.0.0.2:1"), netip.MustParseAddrPort("[fd00::2]:1")}
	b.Peers = []netip.AddrPort{a.Peers[1], a.Peers[0], a.Peers[1], a.Peers[2]}
	if d := cmp.Diff(Rules(a).String(), Rules(b).String()); d != "" {
		t.Error(d)
	}
}

func TestTheCommentOfARuleChangesWithItsText(t *testing.T) {
	a, b := Rule{Text: "ip saddr 10.244.0.0/16 masquerade", Why: "w"}, Rule{Text: "ip saddr 10.245.0.0/16 masquerade", Why: "w"}
	if a.Comment() == b.Comment() {
		t.Errorf("both are %q", a.Comment())
	}
	for _, c := range Rules(cluster()).Chains {
		for _, r := range c.Rules {
			if len(r.Comment()) > 128 { // the kernel's limit
				t.Errorf("%d bytes: %q", len(r.Comment()), r.Comment())
			}
		}
		if len(c.Why) > 128 {
			t.Errorf("%d bytes: %q", len(c.Why), c.Why)
		}
	}
}

func TestOverlayPacketsAreJudgedInOrder(t *testing.T) {
	c := single()
	c.AntiSpoof = true
	c.Peers = []netip.AddrPort{netip.MustParseAddrPort("192.168.50.2:8472"), netip.MustParseAddrPort("192.168.50.3:4789")}
	fake := onFake(t, Rules(c))
	for _, tc := range []struct {
		src, dport string
		local      bool
		want       string
	}{
		{"192.168.50.2", "8472", true, "udp dport set 4789"},
		{"192.168.50.2", "4789", true, "notrack"},
		{"192.168.50.3", "4789", true, "notrack"},
		{"192.168.50.9", "4789", true, "drop"},
		{"192.168.50.9", "8472", true, "accept"},  // nobody hears it but who has that port for something else
		{"192.168.50.9", "8472", false, "accept"}, // a pod's own VXLAN, passing through
		{"192.168.50.2", "4789", false, "accept"},
		{"192.168.50.2", "53", true, "accept"},
	} {
		p := packet{src: netip.MustParseAddr(tc.src), dst: netip.MustParseAddr("192.168.50.1"), dport: tc.dport, local: tc.local}
		if got, rule := trace(t, fake, "inbound", p); got != tc.want {
			t.Errorf("%+v: got %s by %q", tc, got, rule)
		}
	}
	for _, port := range []string{"4789", "8472"} {
		p := packet{src: netip.MustParseAddr("192.168.50.1"), dst: netip.MustParseAddr("192.168.50.2"), dport: port}
		if got, _ := trace(t, fake, "outbound", p); got != "notrack" {
			t.Errorf("to port %s: got %s", port, got)
		}
	}
}
