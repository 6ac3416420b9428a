package traffic

import (
	"fmt"
	"strings"
	"testing"
)

// listed renders a table for tableTrouble: a forward chain and an input chain with the given rules.
func listed(policy string, exprs ...string) string {
	var rules strings.Builder
	for _, e := range exprs {
		fmt.Fprintf(&rules, `,{"rule":{"family":"inet","table":"t","chain":"fwd","expr":[%s]}}`, e)
		fmt.Fprintf(&rules, `,{"rule":{"family":"inet","table":"t","chain":"in","expr":[%s]}}`, e)
	}
	return `{"nftables":[{"chain":{"name":"fwd","type":"filter","hook":"forward","prio":10,"policy":"` + policy + `"}},` +
		`{"chain":{"name":"in","type":"filter","hook":"input","prio":10,"policy":"` + policy + `"}}` + rules.String() + `]}`
}

func TestM16ATableThatRejectsIsNamedWithItsCure(t *testing.T) {
	const (
		reject    = `{"counter":{"packets":0,"bytes":0}},{"reject":{"type":"icmpx","expr":"admin-prohibited"}}`
		jump      = `{"jump":{"target":"x"}}`
		state     = `{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":["established"]}},{"accept":null}`
		invalid   = `{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":"invalid"}},{"drop":null}`
		limited   = `{"limit":{"rate":1,"per":"second"}},{"drop":null}`
		ourRange  = `{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"prefix":{"addr":"10.244.0.0","len":16}}}},{"accept":null}`
		ourPort   = `{"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":4789}},{"accept":null}`
		widerNet  = `{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"prefix":{"addr":"10.0.0.0","len":8}}}},{"accept":null}`
		otherNet  = `{"match":{"op":"==","left":{"payload":{"protocol":"ip","field":"saddr"}},"right":{"prefix":{"addr":"10.0.0.0","len":24}}}},{"accept":null}`
		onePortIn = `{"match":{"op":"==","left":{"payload":{"protocol":"udp","field":"dport"}},"right":{"set":[53,4789]}}},{"accept":null}`
	)
	forward := "chain fwd stops forwarded packets of 10.244.0.0/16"
	input := "chain in stops packets to UDP port 4789"
	for _, tc := range []struct {
		name, table, listing string
		want                 []string
	}{
		{"open", "inet filter", listed("accept", state, jump), nil},
		{"conditions", "inet filter", listed("accept", invalid, limited), nil},
		{"firewalld", "inet firewalld", listed("accept", state, invalid, jump, reject), []string{
			forward, "firewall-cmd --permanent --zone=trusted --add-source=10.244.0.0/16 && firewall-cmd --reload",
			input, "firewall-cmd --permanent --add-port=4789/udp && firewall-cmd --reload",
		}},
		{"firewalld, cured", "inet firewalld", listed("accept", ourRange, ourPort, reject), nil},
		{"firewalld, network cured", "inet firewalld", listed("accept", widerNet, reject), []string{input}},
		{"policy drop", "inet filter", listed("drop", state, otherNet), []string{
			forward, "nft insert rule inet filter fwd ip daddr 10.244.0.0/16 accept; nft insert rule inet filter fwd ip saddr 10.244.0.0/16 accept",
			input, "nft insert rule inet filter in udp dport 4789 accept",
		}},
		{"policy drop, port among others", "inet filter", listed("drop", onePortIn), []string{forward}},
	} {
		found, err := tableTrouble(tc.listing, tc.table, single())
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		all := strings.Join(found.texts, "\n")
		for _, w := range tc.want {
			if !strings.Contains(all, w) {
				t.Errorf("%s: %q is missing in\n%s", tc.name, w, all)
			}
		}
		if len(tc.want) == 0 && all != "" {
			t.Errorf("%s: %s", tc.name, all)
		}
		if strings.Contains(all, "forwarded") && !contains(tc.want, forward) || strings.Contains(all, "UDP") && !contains(tc.want, input) {
			t.Errorf("%s: too much: %s", tc.name, all)
		}
	}
}

func contains(list []string, s string) bool {
	for _, l := range list {
		if l == s {
			return true
		}
	}
	return false
}

func TestTablesThatMeanToDropAreNotSuspected(t *testing.T) {
	for name, want := range map[string]bool{
		"inet firewalld": true, "inet filter": true, "ip nat-rules": true, "ip filter": false, "ip nat": false, "ip6 mine": false,
		"inet weft": false, "inet weft-policy": false, "ip kube-proxy": false, "ip calico": false, "bridge filter": false, "netdev x": false,
		"inet kube-network-policies": false, "ip flannel-ipv4": false,
	} {
		if got := suspect(name, single()); got != want {
			t.Errorf("%s: %v, want %v", name, got, want)
		}
	}
}

func TestRulesOfNFTThatTakeNewConnectionsOnlyAreKnown(t *testing.T) {
	const state = `{"match":{"op":"in","left":{"ct":{"key":"state"}},"right":%s}},`
	for _, tc := range []struct {
		name, states, rest string
		want               bool
	}{
		{"the port", `"new"`, `{"match":{"left":{"payload":{"protocol":"udp","field":"dport"}},"right":4789}},{"accept":null}`, true},
		{"any port", `["established","new"]`, `{"accept":null}`, true},
		{"another port", `"new"`, `{"match":{"left":{"payload":{"protocol":"udp","field":"dport"}},"right":53}},{"accept":null}`, false},
		{"TCP", `"new"`, `{"match":{"left":{"payload":{"protocol":"tcp","field":"dport"}},"right":4789}},{"accept":null}`, false},
		{"untracked as well", `{"set":["new","untracked"]}`, `{"match":{"left":{"payload":{"protocol":"udp","field":"dport"}},"right":4789}},{"accept":null}`, false},
		{"established", `"established"`, `{"accept":null}`, false},
		{"a jump", `"new"`, `{"jump":{"target":"x"}}`, false},
	} {
		found, err := tableTrouble(listed("accept", fmt.Sprintf(state, tc.states)+tc.rest), "inet filter", single())
		if err != nil || found.tracked != tc.want {
			t.Errorf("%s: %v, %v", tc.name, found.tracked, err)
		}
	}
}

func TestM16ATableThatStopsAnyBackendIsNamedWithItsCure(t *testing.T) {
	const reject = `{"reject":{"type":"icmpx","expr":"admin-prohibited"}}`
	match := func(left, right string) string {
		return `{"match":{"op":"==","left":` + left + `,"right":` + right + `}},{"accept":null}`
	}
	port := func(right string) string { return match(`{"payload":{"protocol":"udp","field":"dport"}}`, right) }
	proto := func(right string) string { return match(`{"meta":{"key":"l4proto"}}`, right) }
	mark := `{"match":{"op":"==","left":{"meta":{"key":"nfproto"}},"right":"ipv6"}},{"counter":{"packets":0,"bytes":0}}`
	nets := cluster().Nets
	wg, ipip := Config{Nets: nets, Listens: [2][]uint16{{51820}, {51821}}}, Config{Nets: nets, IPIP: true}
	one := Config{Nets: nets, Listens: [2][]uint16{{51820}, {51820}}}
	for _, tc := range []struct {
		name, table string
		c           Config
		rules       []string
		want        []string // what is said of INPUT
	}{
		{"wireguard", "inet firewalld", wg, []string{reject}, []string{"firewall-cmd --permanent --add-port=51820/udp", "firewall-cmd --permanent --add-port=51821/udp"}},
		{"wireguard, one let in", "inet filter", wg, []string{port("51820"), reject}, []string{"nft insert rule inet filter in udp dport 51821 accept"}},
		{"wireguard, both let in", "inet filter", wg, []string{port(`{"set":[53,51820]}`), port("51821"), reject}, nil},
		{"one device for both", "inet firewalld", one, []string{reject}, []string{"--add-port=51820/udp"}},
		{"a table of IPv4", "ip mine", wg, []string{reject}, []string{"nft insert rule ip mine in udp dport 51820 accept"}},
		{"ipip", "inet firewalld", ipip, []string{mark, reject}, []string{"firewall-cmd --permanent --add-protocol=4 ", "firewall-cmd --permanent --add-protocol=41 "}},
		{"ipip, let in by name", "inet filter", ipip, []string{proto(`"ipencap"`), proto(`"ipv6"`), reject}, nil},
		{"ipip, let in by number", "inet filter", ipip, []string{proto(`{"set": [4, 41]}`), reject}, nil},
		{"ipip, another protocol", "inet filter", ipip, []string{proto(`"esp"`), port("4"), port("41"), reject}, []string{"meta l4proto 4 accept", "meta l4proto 41 accept"}},
	} {
		found, err := tableTrouble(listed("accept", tc.rules...), tc.table, tc.c)
		if err != nil {
			t.Errorf("%s: %v", tc.name, err)
		}
		var input []string
		for _, text := range found.texts {
			if strings.Contains(text, "chain in ") {
				input = append(input, text)
			}
		}
		if len(input) != len(tc.want) {
			t.Errorf("%s: want %q, got %q", tc.name, tc.want, input)
			continue
		}
		for i, want := range tc.want {
			if !strings.Contains(input[i], want) {
				t.Errorf("%s: %q is missing in %q", tc.name, want, input[i])
			}
		}
	}
}
