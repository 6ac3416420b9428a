package traffic

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRulesOfIptablesAreSplitAsTheyAreQuoted(t *testing.T) {
	for in, want := range map[string][]string{
		`-s 10.0.0.0/8 -j ACCEPT`:             {"-s", "10.0.0.0/8", "-j", "ACCEPT"},
		`-m comment --comment "a b" -j X`:     {"-m", "comment", "--comment", "a b", "-j", "X"},
		`--comment "say \"hi\" -j DROP" -j X`: {"--comment", `say "hi" -j DROP`, "-j", "X"},
		`--comment "" -j X`:                   {"--comment", "", "-j", "X"},
		`  `:                                  nil,
		`--log-prefix "back\\slash" `:         {"--log-prefix", `back\slash`},
	} {
		if d := cmp.Diff(want, splitWords(in)); d != "" {
			t.Errorf("%s: %s", in, d)
		}
	}
}

func TestATableThatIptablesCannotReadIsKnownAsSuch(t *testing.T) {
	if got := parseXtable("# Table `filter' contains incompatible base-chains, use 'nft' tool to list them.\n"); !got.foreign {
		t.Error("not noticed")
	}
}

// flannelNAT is what flannel's iptables mode leaves, as iptables-save prints it.
const flannelNAT = `*nat
:PREROUTING ACCEPT [0:0]
:POSTROUTING ACCEPT [0:0]
:FLANNEL-POSTRTG - [0:0]
:KUBE-POSTROUTING - [0:0]
-A POSTROUTING -m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A POSTROUTING -s 10.244.0.0/16 -d 10.244.0.0/16 -j RETURN
-A POSTROUTING -s 10.244.0.0/16 ! -d 224.0.0.0/4 -j MASQUERADE --random-fully
-A POSTROUTING ! -s 10.244.0.0/16 -d 10.244.1.0/24 -j RETURN
-A POSTROUTING ! -s 10.244.0.0/16 -d 10.244.0.0/16 -j MASQUERADE
-A POSTROUTING -s 10.244.0.0/16 -o eth9 -j MASQUERADE
-A POSTROUTING -s 172.17.0.0/16 ! -o docker0 -j MASQUERADE
-A POSTROUTING -s 10.9.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
COMMIT
`

func TestM01M19FlannelsRulesAreRecognisedWhateverRangeTheyName(t *testing.T) {
	network, podCIDR := netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("10.244.1.0/24")
	table := parseXtable(flannelNAT)
	commands := leftovers(table, "nat", network, podCIDR)
	got := obey(table, commands)
	want := []string{
		`-m comment --comment "kubernetes postrouting rules" -j KUBE-POSTROUTING`,
		"-s 10.244.0.0/16 -o eth9 -j MASQUERADE",
		"-s 172.17.0.0/16 ! -o docker0 -j MASQUERADE",
	}
	if d := cmp.Diff(want, specsOf(got.rules["POSTROUTING"])); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"PREROUTING", "POSTROUTING", "KUBE-POSTROUTING"}, got.chains); d != "" {
		t.Error(d)
	}
	if again := leftovers(got, "nat", network, podCIDR); len(again) > 0 {
		t.Errorf("a second look still wants %v", again)
	}
	// The jump goes before the chain: a chain that is jumped to cannot be deleted.
	jump, chain := -1, -1
	for i, c := range commands {
		if c == `-D POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG` {
			jump = i
		}
		if c == "-X FLANNEL-POSTRTG" {
			chain = i
		}
	}
	if jump < 0 || chain < jump {
		t.Errorf("order: %v", commands)
	}
}

// Each backend has a way of its own by which peers' packets come in.
func TestInputRulesThatShutAnyBackendOutAreNamed(t *testing.T) {
	const closed = ":INPUT DROP [0:0]\n-A INPUT -p tcp -m tcp --dport 22 -j ACCEPT\n"
	wg := Config{Nets: cluster().Nets, Listens: [2][]uint16{{51820}, {51821}}}
	ipip := Config{Nets: cluster().Nets, IPIP: true}
	for _, tc := range []struct {
		name string
		c    Config
		f    family
		open []string // rules each of which is enough
		want string   // what is said without them
	}{
		{"wireguard", wg, families()[0], []string{"-A INPUT -p udp -m udp --dport 51820 -j ACCEPT"}, "UDP port 51820 of the overlay in: iptables -I INPUT -p udp --dport 51820 -j ACCEPT"},
		{"wireguard", wg, families()[1], []string{"-A INPUT -p udp -m multiport --dports 53,51821 -j ACCEPT"}, "--dport 51821"},
		{"ipip", ipip, families()[0], []string{"-A INPUT -p ipencap -j ACCEPT", "-A INPUT -p 4 -j ACCEPT", "-A INPUT -p ipip -j ACCEPT"}, "IP protocol 4 of the overlay in: iptables -I INPUT -p 4 -j ACCEPT"},
		{"ipip", ipip, families()[1], []string{"-A INPUT -p ipv6 -j ACCEPT", "-A INPUT -p 41 -j ACCEPT"}, "-p 41 -j ACCEPT"},
	} {
		ways := tc.c.arrivals(tc.f)
		if len(ways) != 1 {
			t.Fatalf("%s, %v: %v", tc.name, tc.f.Family, ways)
		}
		for _, other := range []string{"", "-A INPUT -p udp -m udp --dport 4789 -j ACCEPT", "-A INPUT ! -p ipencap -m ttl --ttl-gt 1 -j ACCEPT", "-A INPUT -p icmp -j ACCEPT"} {
			if got := gateTrouble(parseXtable(closed+other), "iptables", "INPUT", ways[0]); !strings.Contains(got, tc.want) {
				t.Errorf("%s, %v beside %q: %q", tc.name, tc.f.Family, other, got)
			}
		}
		for _, rule := range tc.open {
			if got := gateTrouble(parseXtable(closed+rule), "iptables", "INPUT", ways[0]); got != "" {
				t.Errorf("%s, %v: %q is there, and still: %s", tc.name, tc.f.Family, rule, got)
			}
		}
	}
	if ways := (Config{Nets: cluster().Nets}).arrivals(families()[0]); len(ways) > 0 {
		t.Errorf("without a tunnel nothing arrives: %v", ways)
	}
}

func TestInputRulesThatShutTheOverlayOutAreNamed(t *testing.T) {
	for _, tc := range []struct {
		name, input string
		tracked     bool
		trouble     bool
	}{
		{name: "open", input: ":INPUT ACCEPT [0:0]"},
		{name: "closed", input: ":INPUT DROP [0:0]\n-A INPUT -i lo -j ACCEPT\n-A INPUT -p tcp --dport 22 -j ACCEPT", trouble: true},
		{name: "closed by a reject", input: ":INPUT ACCEPT [0:0]\n-A INPUT -j REJECT", trouble: true},
		{name: "closed, port named", input: ":INPUT DROP [0:0]\n-A INPUT -p udp -m udp --dport 4789 -j ACCEPT"},
		{name: "closed, port among others", input: ":INPUT DROP [0:0]\n-A INPUT -p udp -m multiport --dports 53,4789 -j ACCEPT"},
		{name: "closed, port of TCP", input: ":INPUT DROP [0:0]\n-A INPUT -p tcp -m tcp --dport 4789 -j ACCEPT", trouble: true},
		{name: "closed, nodes let in", input: ":INPUT DROP [0:0]\n-A INPUT -s 192.168.0.0/16 -j ACCEPT"},
		{name: "closed, a range of ports", input: ":INPUT DROP [0:0]\n-A INPUT -p udp -m udp --dport 4000:5000 -j ACCEPT"},
		{name: "closed, a range among others", input: ":INPUT DROP [0:0]\n-A INPUT -p udp -m multiport --dports 53,4700:4800 -j ACCEPT"},
		{name: "closed, another range", input: ":INPUT DROP [0:0]\n-A INPUT -p udp -m udp --dport 4790:5000 -j ACCEPT", trouble: true},
		{name: "closed, all but a port", input: ":INPUT DROP [0:0]\n-A INPUT -p udp -m udp ! --dport 53 -j ACCEPT"},
		{name: "closed, all but ours", input: ":INPUT DROP [0:0]\n-A INPUT -p udp -m udp ! --dport 4789 -j ACCEPT", trouble: true},
		{name: "closed, all of UDP", input: ":INPUT DROP [0:0]\n-A INPUT -p udp -j ACCEPT"},
		{name: "closed, UDP of nodes", input: ":INPUT DROP [0:0]\n-A INPUT -s 192.168.0.0/16 -p udp -j ACCEPT"},
		{name: "closed, nodes in a set", input: ":INPUT DROP [0:0]\n-A INPUT -m set --match-set nodes src -j ACCEPT"},
		{name: "closed, but lo and one device", input: ":INPUT DROP [0:0]\n-A INPUT -i lo -j ACCEPT\n-A INPUT -i eth1 -j ACCEPT"},
		{name: "closed, answers alone", input: ":INPUT DROP [0:0]\n-A INPUT -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT", trouble: true},
		{name: "closed, answers of DNS alone", input: ":INPUT DROP [0:0]\n-A INPUT -p udp -m udp --sport 53 -j ACCEPT", trouble: true},
		{name: "the port is dropped", input: ":INPUT ACCEPT [0:0]\n-A INPUT -p udp -m udp --dport 4789 -j DROP", trouble: true},
		{name: "the port is dropped in a chain", input: ":INPUT ACCEPT [0:0]\n:OPS - [0:0]\n-A INPUT -j OPS\n-A OPS -p udp -m multiport --dports 4700:4800 -j REJECT", trouble: true},
		{name: "the port is dropped behind the nodes", input: ":INPUT ACCEPT [0:0]\n-A INPUT -s 192.168.0.0/16 -j ACCEPT\n-A INPUT -p udp -m udp --dport 4789 -j DROP"},
		{name: "the port is dropped on one device", input: ":INPUT ACCEPT [0:0]\n-A INPUT -i eth1 -p udp -m udp --dport 4789 -j DROP"},
		{name: "the port is dropped for strangers", input: ":INPUT ACCEPT [0:0]\n-A INPUT ! -s 192.168.0.0/16 -p udp -m udp --dport 4789 -j DROP"},
		{name: "a chain that returns", input: ":INPUT DROP [0:0]\n:OPS - [0:0]\n-A INPUT -j OPS\n-A INPUT -p udp -j ACCEPT\n-A OPS -p udp -j RETURN\n-A OPS -j DROP"},
		{name: "a rule that only counts", input: ":INPUT DROP [0:0]\n-A INPUT -p udp\n-A INPUT -p udp -m udp --dport 4789 -j ACCEPT"},
		{name: "by state NEW, a range", tracked: true, input: ":INPUT DROP [0:0]\n-A INPUT -p udp -m state --state NEW -m udp --dport 4000:5000 -j ACCEPT"},
		{name: "by state NEW", tracked: true, input: ":INPUT ACCEPT [0:0]\n-A INPUT -p udp -m state --state NEW -m udp --dport 4789 -j ACCEPT\n-A INPUT -j REJECT"},
		{name: "by state NEW in a chain", tracked: true, input: ":INPUT DROP [0:0]\n:IN - [0:0]\n-A INPUT -j IN\n-A IN -p udp -m state --state NEW -m multiport --dports 53,4789 -j ACCEPT"},
		{name: "by state NEW of hosts", tracked: true, input: ":INPUT DROP [0:0]\n-A INPUT -s 10.0.0.0/8 -m conntrack --ctstate NEW,ESTABLISHED -j ACCEPT"},
		{name: "by state NEW on the way out", tracked: true, input: ":INPUT ACCEPT [0:0]\n:OUTPUT DROP [0:0]\n-A OUTPUT -p udp -m state --state NEW,ESTABLISHED -j ACCEPT"},
		{name: "by state NEW, another port", input: ":INPUT ACCEPT [0:0]\n-A INPUT -p udp -m state --state NEW -m udp --dport 53 -j ACCEPT"},
		{name: "by state NEW, TCP", input: ":INPUT ACCEPT [0:0]\n-A INPUT -p tcp -m state --state NEW -m tcp --dport 4789 -j ACCEPT"},
		{name: "by state NEW, a jump of kube-proxy's", input: ":INPUT ACCEPT [0:0]\n:KUBE-PROXY-FIREWALL - [0:0]\n-A INPUT -m conntrack --ctstate NEW -j KUBE-PROXY-FIREWALL"},
		{name: "by state ESTABLISHED", input: ":INPUT ACCEPT [0:0]\n-A INPUT -m state --state RELATED,ESTABLISHED -j ACCEPT"},
		{name: "by state not NEW", input: ":INPUT ACCEPT [0:0]\n-A INPUT -m conntrack ! --ctstate NEW -j ACCEPT"},
		{name: "by state NEW or UNTRACKED", input: ":INPUT DROP [0:0]\n-A INPUT -p udp -m conntrack --ctstate NEW,UNTRACKED -m udp --dport 4789 -j ACCEPT"},
	} {
		table := parseXtable("*filter\n" + tc.input + "\nCOMMIT\n")
		tracked, text := wantsTracking(table, 4789), gateTrouble(table, "iptables", "INPUT", single().arrivals(families()[0])[0])
		if tracked != tc.tracked || (text != "") != tc.trouble {
			t.Errorf("%s: tracked %v, trouble %q", tc.name, tracked, text)
		}
	}
	out := parseXtable("*filter\n:OUTPUT DROP [0:0]\n-A OUTPUT -o lo -j ACCEPT\n-A OUTPUT -p udp -m udp --dport 53 -j ACCEPT\n")
	const want = "OUTPUT stops what it does not know, and no rule lets UDP port 4789 of the overlay out: ip6tables-nft -I OUTPUT -p udp --dport 4789 -j ACCEPT"
	if got := gateTrouble(out, "ip6tables-nft", "OUTPUT", single().arrivals(families()[0])[0]); got != want {
		t.Errorf("a host that lets nothing out: %q", got)
	}
	closed := parseXtable("*filter\n:INPUT DROP [0:0]\n-A INPUT -m state --state NEW -j ACCEPT\n")
	if wantsTracking(closed, 0) {
		t.Error("without an overlay port there is nothing to say")
	}
}
