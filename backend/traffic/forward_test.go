package traffic

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// TestM04M05TheJumpStandsDirectlyBeforeWhatStopsEverything is the table of where our jump goes. A chain is written as
// iptables -S prints it; "+" in want marks our jump's place, counted from 1.
func TestM04M05TheJumpStandsDirectlyBeforeWhatStopsEverything(t *testing.T) {
	for _, tc := range []struct {
		name    string
		chain   string // FORWARD policy, then rules
		extra   string // other chains
		place   Place
		want    int // 0: no jump
		problem string
	}{
		{name: "an open chain needs no jump", chain: "ACCEPT", want: 0},
		{name: "a closed policy", chain: "DROP", want: 1},
		{name: "a closed policy behind rules", chain: "DROP|-j KUBE-FORWARD|-i eth1 -j DROP", extra: ":KUBE-FORWARD - [0:0]", want: 3},
		{name: "a terminal reject", chain: "ACCEPT|-i lo -j ACCEPT|-j REJECT --reject-with icmp-host-prohibited", want: 2},
		{name: "a terminal drop under a closed policy", chain: "DROP|-j DROP", want: 1},
		{name: "a terminal drop with a comment", chain: `ACCEPT|-m comment --comment "the -j end" -j DROP`, want: 1},
		{name: "nothing may begin", chain: "ACCEPT|-m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT|-m conntrack --ctstate INVALID,NEW -j DROP", want: 2},
		{name: "nothing may begin, in a chain", chain: "ACCEPT|-j END", extra: ":END - [0:0]|-A END -m state --state NEW -j REJECT", want: 1},
		{name: "nothing may begin on one device", chain: "ACCEPT|-i eth1 -m state --state NEW -j DROP|-m state --state NEW -i eth1 -j DROP", want: 0},
		{name: "what begins is accepted", chain: "ACCEPT|-m state --state NEW -j ACCEPT|-j DROP", want: 2},
		{name: "what is invalid is dropped", chain: "ACCEPT|-m state --state INVALID -j DROP|-m state ! --state NEW -j DROP", want: 0},
		{name: "a guard rule stays first", chain: "ACCEPT|-i eth1 -j REJECT --reject-with icmp-port-unreachable|-j REJECT --reject-with icmp-port-unreachable", want: 2},
		{name: "a guard rule alone is the operator's wish", chain: "ACCEPT|-s 10.244.0.0/16 -d 10.0.0.0/8 -j DROP", want: 0},
		{name: "what accepts everything needs no help", chain: "DROP|-j ACCEPT|-j DROP", want: 0},
		{name: "a chain that ends in a reject", chain: "ACCEPT|-j END", extra: ":END - [0:0]|-A END -i lo -j ACCEPT|-A END -j REJECT", want: 1},
		{name: "a chain that comes back", chain: "ACCEPT|-j BACK|-j DROP", extra: ":BACK - [0:0]|-A BACK -j RETURN|-A BACK -j DROP", want: 2},
		{name: "a chain that accepts", chain: "DROP|-j YES", extra: ":YES - [0:0]|-A YES -j ACCEPT", want: 0},
		{name: "a chain that some packets skip", chain: "ACCEPT|-i eth9 -j END", extra: ":END - [0:0]|-A END -j DROP", want: 0},
		{name: "a goto that meets the policy", chain: "DROP|-g BACK|-j ACCEPT", extra: ":BACK - [0:0]|-A BACK -i lo -j ACCEPT", want: 1},
		{name: "a goto under an open policy", chain: "ACCEPT|-g BACK|-j DROP", extra: ":BACK - [0:0]", want: 0},
		{name: "a return meets the policy", chain: "DROP|-j RETURN", want: 1},
		{name: "a log goes on", chain: "ACCEPT|-j LOG --log-prefix \"x \"|-j DROP", want: 2},
		{name: "chains in a circle", chain: "DROP|-j A", extra: ":A - [0:0]|-A A -j A", want: 2},
		{name: "a policy engine judges first", chain: "DROP|-j KUBE-ROUTER-FORWARD", extra: ":KUBE-ROUTER-FORWARD - [0:0]|-A KUBE-ROUTER-FORWARD -j DROP", want: 2},
		{name: "calico judges first", chain: `DROP|-m comment --comment "cali:wUHhoiAYhphO9Mso" -j cali-FORWARD|-j REJECT`, extra: ":cali-FORWARD - [0:0]", want: 2},
		{name: "a reject before a policy engine is not jumped over", chain: "ACCEPT|-j REJECT|-j WEAVE-NPC", extra: ":WEAVE-NPC - [0:0]", want: 0, problem: "stops pod traffic before the policy engine's chain WEAVE-NPC"},
		{name: "first", chain: "ACCEPT|-i eth1 -j DROP", place: PlaceFirst, want: 1},
		{name: "first comes after a policy engine all the same", chain: "DROP|-j cali-FORWARD|-i eth1 -j DROP", extra: ":cali-FORWARD - [0:0]", place: PlaceFirst, want: 2},
		{name: "last", chain: "ACCEPT|-i eth1 -j DROP", place: PlaceLast, want: 2},
		{name: "last behind a reject says so", chain: "ACCEPT|-j REJECT", place: PlaceLast, want: 2, problem: "before our jump, which is forced to be last"},
		{name: "off", chain: "DROP", place: PlaceOff, want: 0},
	} {
		place := tc.place
		if place == "" {
			place = PlaceAuto
		}
		table := parseXtable(save(tc.chain, tc.extra))
		p := planForward(table, netip.MustParsePrefix("10.244.0.0/16"), place)
		after := obey(table, p.commands)
		if got := jumpAt(after); got != tc.want {
			t.Errorf("%s: the jump is rule %d, want %d: %v", tc.name, got, tc.want, p.commands)
		}
		if tc.problem == "" && p.problem != "" || !strings.Contains(p.problem, tc.problem) {
			t.Errorf("%s: problem %q, want %q", tc.name, p.problem, tc.problem)
		}
		if again := planForward(after, netip.MustParsePrefix("10.244.0.0/16"), place); len(again.commands) > 0 {
			t.Errorf("%s: a second look still wants %v", tc.name, again.commands)
		}
		if gone := obey(after, planForward(after, netip.Prefix{}, PlaceOff).commands); strings.Contains(strings.Join(gone.chains, " "), chainName) || jumpAt(gone) != 0 {
			t.Errorf("%s: turned off, it is still there", tc.name)
		}
	}
}

func TestM01AWrongJumpOrChainIsPutRight(t *testing.T) {
	network := netip.MustParsePrefix("10.244.0.0/16")
	right := obey(parseXtable(save("DROP|-i eth1 -j DROP", "")), planForward(parseXtable(save("DROP|-i eth1 -j DROP", "")), network, PlaceAuto).commands)
	for name, spoil := range map[string]func(*xtable){
		"a jump too many":     func(x *xtable) { x.rules["FORWARD"] = append(x.rules["FORWARD"], parseXrule(jumpSpec)) },
		"no jump":             func(x *xtable) { x.rules["FORWARD"] = x.rules["FORWARD"][:1] },
		"the jump too early":  func(x *xtable) { r := x.rules["FORWARD"]; x.rules["FORWARD"] = []xrule{r[1], r[0]} },
		"a jump with a match": func(x *xtable) { x.rules["FORWARD"][1] = parseXrule("-i eth0 -j " + chainName) },
		"a jump elsewhere":    func(x *xtable) { x.rules["INPUT"] = []xrule{parseXrule("-j " + chainName)} },
		"a rule twice":        func(x *xtable) { x.rules[chainName] = append(x.rules[chainName], x.rules[chainName][0]) },
		"a foreign rule":      func(x *xtable) { x.rules[chainName] = append([]xrule{parseXrule("-j DROP")}, x.rules[chainName]...) },
		"another network": func(x *xtable) {
			x.rules[chainName][0] = parseXrule(acceptSpecs(netip.MustParsePrefix("10.40.0.0/14"))[0])
		},
		"an empty chain": func(x *xtable) { x.rules[chainName] = nil },
	} {
		table := clone(right)
		spoil(&table)
		p := planForward(table, network, PlaceAuto)
		if p.text == "" || len(p.commands) == 0 {
			t.Errorf("%s: not noticed", name)
			continue
		}
		got := obey(table, p.commands)
		if d := cmp.Diff(specsOf(right.rules["FORWARD"]), specsOf(got.rules["FORWARD"])); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if d := cmp.Diff(specsOf(right.rules[chainName]), specsOf(got.rules[chainName])); d != "" {
			t.Errorf("%s: %s", name, d)
		}
		if refs := got.references(chainName); len(refs) != 1 {
			t.Errorf("%s: jumps %v", name, refs)
		}
	}
}

// save renders a filter table as iptables-save does, from "POLICY|rule|rule".
func save(forward, extra string) string {
	parts := strings.Split(forward, "|")
	lines := []string{"# Generated", "*filter", ":INPUT ACCEPT [0:0]", ":FORWARD " + parts[0] + " [0:0]", ":OUTPUT ACCEPT [0:0]"}
	lines = append(lines, strings.Split(extra, "|")...)
	for _, r := range parts[1:] {
		lines = append(lines, "-A FORWARD "+r)
	}
	return strings.Join(append(lines, "COMMIT"), "\n") + "\n"
}

// jumpAt is the number of the rule of FORWARD that is our jump; 0 without one.
func jumpAt(t xtable) int {
	for i, r := range t.rules["FORWARD"] {
		if r.target == chainName {
			return i + 1
		}
	}
	return 0
}

func clone(t xtable) xtable {
	c := xtable{policies: map[string]string{}, rules: map[string][]xrule{}, chains: append([]string(nil), t.chains...)}
	for k, v := range t.policies {
		c.policies[k] = v
	}
	for k, v := range t.rules {
		c.rules[k] = append([]xrule(nil), v...)
	}
	return c
}

// obey does to a table what iptables-restore --noflush would.
func obey(t xtable, commands []string) xtable {
	c := clone(t)
	for _, line := range commands {
		verb, rest, _ := strings.Cut(line, " ")
		if name, isChain := strings.CutPrefix(verb, ":"); isChain {
			if _, there := c.policies[name]; !there {
				c.chains = append(c.chains, name)
			}
			c.policies[name], c.rules[name] = "-", nil
			continue
		}
		chain, spec, _ := strings.Cut(rest, " ")
		rules := c.rules[chain]
		switch verb {
		case "-A":
			c.rules[chain] = append(rules, parseXrule(spec))
		case "-I":
			number, spec, _ := strings.Cut(spec, " ")
			i := int(number[0] - '1')
			c.rules[chain] = append(append(append([]xrule(nil), rules[:i]...), parseXrule(spec)), rules[i:]...)
		case "-D":
			for i, r := range rules {
				if r.spec == spec {
					c.rules[chain] = append(append([]xrule(nil), rules[:i]...), rules[i+1:]...)
					break
				}
			}
		case "-X":
			delete(c.policies, chain)
			delete(c.rules, chain)
			for i, name := range c.chains {
				if name == chain {
					c.chains = append(c.chains[:i:i], c.chains[i+1:]...)
					break
				}
			}
		}
	}
	return c
}
