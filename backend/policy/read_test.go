package policy

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

// What nft 1.0.6 and 1.1.3 print, with and without an /etc/protocols.
const listed = `{"nftables": [{"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
{"table": {"family": "inet", "name": "weft-policy", "handle": 1}},
{"counter": {"family": "inet", "name": "in-np-1", "table": "weft-policy", "handle": 1, "packets": 7, "bytes": 420}},
{"set": {"name": "ports-1-ipv4", "type": ["ipv4_addr", "inet_proto", "inet_service"], "elem": [{"concat": ["10.0.0.1", 132, 53]}, {"concat": ["10.0.0.1", "tcp", 80]}, {"concat": ["10.0.0.1", 17, 53]}]}},
{"set": {"name": "nets-1-ipv4", "type": "ipv4_addr", "flags": ["interval"], "elem": [{"range": ["0.0.0.0", "9.255.255.255"]}, {"prefix": {"addr": "11.0.0.0", "len": 8}}, "192.0.2.1"]}},
{"set": {"name": "cut-ipv4", "type": ["ipv4_addr", "ipv4_addr", "inet_proto", "inet_service", "inet_service"], "flags": ["timeout"], "timeout": 60, "elem": [{"elem": {"val": {"concat": ["10.0.0.1", "10.0.0.2", 17, 1234, 53]}, "expires": 59}}]}},
{"map": {"name": "ingress-ipv4", "type": "ipv4_addr", "map": "verdict", "elem": [["10.0.0.1", {"jump": {"target": "in-np-1"}}]]}},
{"chain": {"name": "forward", "type": "filter", "hook": "forward", "prio": 10, "policy": "accept"}},
{"chain": {"name": "late", "type": "filter", "hook": "forward", "prio": 20, "policy": "accept"}},
{"set": {"name": "signatures", "type": "mark", "flags": ["timeout"], "timeout": 60, "elem": [{"elem": {"val": 7, "comment": "by weft 1", "expires": 3}}]}},
{"rule": {"chain": "forward", "comment": "judged when it began #6a164ca4", "expr": []}}]}`

func TestAListingIsReadInTheSpellingOfTheRules(t *testing.T) {
	got, strange, err := parse(listed)
	if err != nil || len(strange) > 0 {
		t.Fatal(strange, err)
	}
	want := `table inet weft-policy {
	counter in-np-1 { }
	set cut-ipv4 {
		type ipv4_addr . ipv4_addr . inet_proto . inet_service . inet_service
		size 65536
		flags dynamic,timeout
		timeout 3m0s
		elements = { 10.0.0.1 . 10.0.0.2 . udp . 1234 . 53 }
	}
	map ingress-ipv4 {
		type ipv4_addr : verdict
		elements = { 10.0.0.1 : jump in-np-1 }
	}
	set nets-1-ipv4 {
		type ipv4_addr
		flags interval
		elements = { 0.0.0.0-9.255.255.255, 11.0.0.0-11.255.255.255, 192.0.2.1 }
	}
	set ports-1-ipv4 {
		type ipv4_addr . inet_proto . inet_service
		elements = { 10.0.0.1 . sctp . 53, 10.0.0.1 . tcp . 80, 10.0.0.1 . udp . 53 }
	}
	chain forward {
		type filter hook forward priority filter + 10; policy accept;
		 comment "judged when it began #6a164ca4"
	}
	chain late {
		type filter hook forward, type "filter", priority 20, policy accept priority filter + 10; policy accept;
	}
}
`
	if diff := cmp.Diff(want, got.String()); diff != "" {
		t.Error(diff)
	}
}

func TestWhatCannotBeOursIsStrange(t *testing.T) {
	for name, text := range map[string]string{
		"a sleeping table": `{"nftables": [{"table": {"name": "weft-policy", "flags": "dormant"}}, {"chain": {"name": "a"}}]}`,
		"an empty table":   `{"nftables": [{"table": {"name": "weft-policy"}}]}`,
		"a flowtable":      `{"nftables": [{"chain": {"name": "a"}}, {"flowtable": {"name": "f"}}]}`,
		"another verdict":  `{"nftables": [{"chain": {"name": "a"}}, {"set": {"name": "s", "type": "ipv4_addr", "elem": [{"elem": {"val": "10.0.0.1", "comment": "mine"}}]}}]}`,
	} {
		if _, strange, err := parse(text); err != nil || len(strange) == 0 {
			t.Errorf("%s is taken as ours: %v", name, err)
		}
	}
	if _, _, err := parse(`{"nftables": [`); err == nil {
		t.Error("half a listing is read")
	}
}

func TestCountersAreAddedUpByPolicy(t *testing.T) {
	r := Ruleset{Counters: []Counter{{Name: "in-np-1", Direction: Ingress, Policies: []string{"x/a", "x/b"}}, {Name: "in-np-2", Policies: []string{"x/b"}}, {Name: "stray"}}}
	text := `{"nftables": [{"counter": {"name": "in-np-1", "packets": 7, "bytes": 70}}, {"counter": {"name": "in-np-2", "packets": 1, "bytes": 10}},
		{"counter": {"name": "stray", "packets": 2, "bytes": 20}}, {"counter": {"name": "foreign", "packets": 9, "bytes": 90}}]}`
	got, err := counts(r, text)
	want := []Count{{Policy: "", Packets: 2, Bytes: 20}, {Policy: "x/a", Packets: 7, Bytes: 70}, {Policy: "x/b", Packets: 8, Bytes: 80}}
	if diff := cmp.Diff(want, got); err != nil || diff != "" {
		t.Error(err, diff)
	}
}

func TestACommentHoldsNoMoreThanNftTakesAndNothingThatItReads(t *testing.T) {
	long := ChainRule{Text: "drop", Why: `x"; flush ruleset; #` + string(make([]byte, 300))}.Comment()
	if len(long) > 127 {
		t.Errorf("%d bytes", len(long))
	}
	for _, c := range long[:len(long)-9] {
		if c == '"' || c == ';' || c == '\\' || c < ' ' {
			t.Errorf("%q is in %q", c, long)
		}
	}
	a, b := ChainRule{Text: "drop", Why: "rule (ä)"}.Comment(), ChainRule{Text: "drop", Why: "rule (ö)"}.Comment()
	if a == b {
		t.Error("two reasons are one comment")
	}
}
