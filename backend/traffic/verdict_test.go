package traffic

import (
	"context"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/subnet"
)

// cluster is the Config that the tests of verdicts share: node 1 of a cluster with pods in 10.244.0.0/16 and fd00:244::/48.
func cluster() Config {
	return Config{
		Nets: [2]Net{
			{Network: netip.MustParsePrefix("10.244.0.0/16"), PodCIDR: netip.MustParsePrefix("10.244.1.0/24")},
			{Network: netip.MustParsePrefix("fd00:244::/48"), PodCIDR: netip.MustParsePrefix("fd00:244:0:1::/64")},
		},
		Masquerade: true, RandomFully: true, Forward: true, Port: 4789,
		Exclude: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("fd00:c0::/32")},
	}
}

// verdictTable is what decision 18 says, written as a network engineer would: for each class of source, each class of
// destination, "node" where the packet gets the node's address and "own" where it keeps its own.
const verdictTable = `
source      local-pod remote-pod outside excluded other-node multicast
local-pod   own       own        node    own      node       own
remote-pod  own       own        node    own      node       own
bridge      own       own        node    own      node       own
tunnel      own       own        node    own      node       own
node        own       node       own     own      own        own
other-node  own       node       own     own      own        own
outside     own       node       own     own      own        own
loopback    own       node       own     own      own        own
`

// classes names one address of each class, by family. Bridge and tunnel are the node's own addresses in the pod network.
func classes(f subnet.Family) map[string]string {
	return [2]map[string]string{
		{
			"local-pod": "10.244.1.5", "remote-pod": "10.244.2.7", "bridge": "10.244.1.1", "tunnel": "10.244.1.0", "loopback": "127.0.0.1",
			"node": "192.168.50.1", "other-node": "192.168.50.2", "outside": "198.51.100.9", "excluded": "192.0.2.10", "multicast": "239.1.2.3",
		},
		{
			"local-pod": "fd00:244:0:1::5", "remote-pod": "fd00:244:0:2::7", "bridge": "fd00:244:0:1::1", "tunnel": "fd00:244:0:1::", "loopback": "::1",
			"node": "fd00:50::1", "other-node": "fd00:50::2", "outside": "2001:db8::9", "excluded": "fd00:c0::10", "multicast": "ff05::123",
		},
	}[f]
}

// cell is one cell of a verdict table.
type cell struct{ source, dest, want string }

func cells(table string) []cell {
	var out []cell
	rows := strings.Split(strings.TrimSpace(table), "\n")
	columns := strings.Fields(rows[0])
	for _, row := range rows[1:] {
		words := strings.Fields(row)
		for i, want := range words[1:] {
			out = append(out, cell{words[0], columns[i+1], want})
		}
	}
	return out
}

func TestEveryCellOfTheVerdictTableHoldsInBothFamilies(t *testing.T) {
	fake := onFake(t, Rules(cluster()))
	for _, f := range subnet.Families() {
		for _, c := range cells(verdictTable) {
			p := packet{src: netip.MustParseAddr(classes(f)[c.source]), dst: netip.MustParseAddr(classes(f)[c.dest])}
			want := "return"
			if c.want == "node" {
				want = "masquerade fully-random"
			}
			got, rule := trace(t, fake, "postrouting", p)
			if got == "accept" {
				got = "return" // the end of the chain leaves the packet alone, too
			}
			if got != want {
				t.Errorf("%s: %s to %s: %s by rule %q, want %s", f, c.source, c.dest, got, rule, want)
			}
		}
	}
}

func TestAPacketMarkedByKubeProxyIsLeftToIt(t *testing.T) {
	fake := onFake(t, Rules(cluster()))
	for _, mark := range []uint32{0x4000, 0x4001, 0x64000} { // other users' bits beside it must not matter
		p := packet{src: netip.MustParseAddr("10.244.1.5"), dst: netip.MustParseAddr("198.51.100.9"), mark: mark}
		if got, rule := trace(t, fake, "postrouting", p); got != "return" {
			t.Errorf("mark %#x: %s by %q", mark, got, rule)
		}
	}
}

func TestANodeWithoutPodCIDRStillMasqueradesWhatItForwards(t *testing.T) {
	c := cluster()
	c.Nets[subnet.IPv4].PodCIDR = netip.Prefix{}
	p := packet{src: netip.MustParseAddr("10.244.2.7"), dst: netip.MustParseAddr("198.51.100.9")}
	if got, _ := trace(t, onFake(t, Rules(c)), "postrouting", p); got != "masquerade fully-random" {
		t.Errorf("got %s", got)
	}
}

// packet is what the tracer looks at.
type packet struct {
	src, dst netip.Addr
	mark     uint32
	dport    string
	local    bool // the destination is an address of this host
}

// onFake loads a Ruleset into knftables' fake.
func onFake(t *testing.T, r Ruleset) *knftables.Fake {
	t.Helper()
	fake := knftables.NewFake(knftables.InetFamily, TableName)
	tx := fake.NewTransaction()
	r.Replace(tx)
	if err := fake.Run(context.Background(), tx); err != nil {
		t.Fatal(err)
	}
	return fake
}

// trace walks a packet through a chain and returns the verdict with the rule that gave it. It knows the words that Rules
// uses, and ends the test at any other.
func trace(t *testing.T, fake *knftables.Fake, chain string, p packet) (verdict, rule string) {
	t.Helper()
	for _, r := range fake.Table.Chains[chain].Rules {
		match, rest := true, r.Rule
		for match && rest != "" {
			var ok bool
			if match, rest, ok = step(t, fake, rest, p); !ok {
				return rest, r.Rule
			}
		}
	}
	return "accept", "(end of chain)"
}

// step takes one match off the front of a rule. ok is false when what is left is the verdict.
func step(t *testing.T, fake *knftables.Fake, rule string, p packet) (match bool, rest string, ok bool) {
	t.Helper()
	w := strings.Fields(rule)
	skip := func(n int) string { return strings.Join(w[n:], " ") }
	switch {
	case strings.HasPrefix(rule, kubeMark):
		return p.mark&0x4000 != 0, strings.TrimSpace(strings.TrimPrefix(rule, kubeMark)), true
	case w[0] == "ip" || w[0] == "ip6":
		addr := p.src
		if w[1] == "daddr" {
			addr = p.dst
		}
		if addr.Is4() != (w[0] == "ip") {
			return false, "", true
		}
		if w[2] == "." { // ip saddr . udp dport @set
			return holds(t, fake, w[5], addr.String()+" . "+p.dport), skip(6), true
		}
		if w[2] == "!=" {
			return !within(t, fake, w[3], addr), skip(4), true
		}
		return within(t, fake, w[2], addr), skip(3), true
	case strings.HasPrefix(rule, "udp dport set "), w[0] == "return", w[0] == "masquerade", w[0] == "drop", w[0] == "notrack":
		return true, rule, false
	case strings.HasPrefix(rule, "udp dport { "):
		ports, rest, _ := strings.Cut(strings.TrimPrefix(rule, "udp dport { "), " }")
		for _, port := range strings.Split(ports, ", ") {
			match = match || port == p.dport
		}
		return match, strings.TrimSpace(rest), true
	case strings.HasPrefix(rule, "udp dport "):
		return w[2] == p.dport, skip(3), true
	case strings.HasPrefix(rule, "fib daddr type local"):
		return p.local, skip(4), true
	case strings.HasPrefix(rule, "fib daddr type != unicast"):
		return p.local, skip(5), true
	}
	t.Fatalf("the tracer does not know %q", rule)
	return false, "", false
}

// holds tells whether a named set has an element of several parts.
func holds(t *testing.T, fake *knftables.Fake, name, element string) bool {
	t.Helper()
	set := fake.Table.Sets[strings.TrimPrefix(name, "@")]
	if set == nil {
		t.Fatalf("no set %s", name)
	}
	return slices.ContainsFunc(set.Elements, func(e *knftables.Element) bool { return strings.Join(e.Key, " . ") == element })
}

// within tells whether an address is in a prefix or a named set.
func within(t *testing.T, fake *knftables.Fake, what string, addr netip.Addr) bool {
	t.Helper()
	name, isSet := strings.CutPrefix(what, "@")
	if !isSet {
		return netip.MustParsePrefix(what).Contains(addr)
	}
	set := fake.Table.Sets[name]
	if set == nil {
		t.Fatalf("no set %s", name)
	}
	for _, e := range set.Elements {
		p, err := netip.ParsePrefix(e.Key[0])
		if err != nil {
			p = netip.PrefixFrom(netip.MustParseAddr(e.Key[0]), addr.BitLen())
		}
		if p.Contains(addr) {
			return true
		}
	}
	return false
}
