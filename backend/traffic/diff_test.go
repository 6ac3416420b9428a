package traffic

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/subnet"
)

// fakeState reads knftables' fake as nft's listing would be read.
func fakeState(fake *knftables.Fake) state {
	s := state{chains: map[string]chainState{}, sets: map[string]setState{}}
	if fake.Table == nil {
		return s
	}
	for name, c := range fake.Table.Chains {
		prio, _ := knftables.ParsePriority(knftables.InetFamily, string(*c.Priority))
		cs := chainState{hook: hookText(string(*c.Type), string(*c.Hook), prio, string(*c.Policy))}
		for _, r := range c.Rules {
			cs.comments = append(cs.comments, *r.Comment)
		}
		s.chains[name] = cs
	}
	for name, set := range fake.Table.Sets {
		ss := setState{decl: declText(set.Type, slices.Contains(set.Flags, knftables.IntervalFlag)), elements: map[string]struct{}{}}
		for _, e := range set.Elements {
			ss.elements[strings.Join(e.Key, " . ")] = struct{}{}
		}
		s.sets[name] = ss
	}
	return s
}

// randomConfig draws a Config from few values, so that two draws often differ in one thing only.
func randomConfig(r *rand.Rand) Config {
	c := Config{Masquerade: r.IntN(4) > 0, RandomFully: r.IntN(2) > 0, Port: uint16(4788 + r.IntN(2))}
	if c.Port == 4788 && r.IntN(2) > 0 {
		c.Port = 0
	}
	c.AntiSpoof = c.Port != 0 && r.IntN(2) > 0
	for _, f := range subnet.Families() {
		if r.IntN(4) > 0 {
			c.Nets[f] = cluster().Nets[f]
		}
	}
	for range r.IntN(5) {
		c.Exclude = append(c.Exclude, netip.PrefixFrom(netip.AddrFrom4([4]byte{10, byte(r.IntN(3)), 0, 0}), 8+8*r.IntN(3)))
	}
	for range r.IntN(5) {
		c.Peers = append(c.Peers, netip.AddrPortFrom(netip.AddrFrom4([4]byte{192, 168, 50, byte(r.IntN(9))}), uint16(4789+r.IntN(2))))
	}
	return c
}

func TestWalkingThroughRandomConfigsAlwaysEndsAtTheWantedTable(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	fake := knftables.NewFake(knftables.InetFamily, TableName)
	inPlace := 0
	for i := range 2000 {
		want := Rules(randomConfig(r))
		d := compare(fakeState(fake), wanted(want))
		tx := fake.NewTransaction()
		d.fill(tx, want)
		if err := fake.Run(context.Background(), tx); err != nil {
			t.Fatalf("step %d, %v: %v", i, d.texts, err)
		}
		if again := compare(fakeState(fake), wanted(want)); len(again.texts) > 0 {
			t.Fatalf("step %d: still %v", i, again.texts)
		}
		if !d.rewrite && len(d.elements) > 0 {
			inPlace++
		}
	}
	if inPlace < 20 {
		t.Errorf("only %d of 2000 steps changed elements in place: the walk does not test them", inPlace)
	}
}

func TestCompareNamesWhatDiffers(t *testing.T) {
	c := single()
	c.Mixed, c.AntiSpoof = []uint16{8472}, true
	c.Peers = []netip.AddrPort{netip.MustParseAddrPort("192.168.50.2:8472")}
	want := wanted(Rules(c))
	for text, tc := range map[string]struct {
		change  func(*state)
		rewrite bool
	}{
		"table inet weft: it is missing": {func(s *state) { *s = state{} }, true},
		"table inet weft: chain postrouting has other rules than wanted": {func(s *state) {
			p := s.chains["postrouting"]
			p.comments = append([]string{""}, p.comments...)
			s.chains["postrouting"] = p
		}, true},
		"table inet weft: chain inbound is missing":      {func(s *state) { delete(s.chains, "inbound") }, true},
		"table inet weft: chain extra is not wanted":     {func(s *state) { s.chains["extra"] = chainState{hook: "x"} }, true},
		"table inet weft: set peers-ipv4 is \"\", not":   {func(s *state) { delete(s.sets, "peers-ipv4") }, true},
		"table inet weft: map m is not ours":             {func(s *state) { s.strange = []string{"map m is not ours"} }, true},
		"set peers-ipv4 lacks 192.168.50.2":              {func(s *state) { delete(s.sets["peers-ipv4"].elements, "192.168.50.2") }, false},
		"set peers-ipv4 has 192.168.50.77":               {func(s *state) { s.sets["peers-ipv4"].elements["192.168.50.77"] = struct{}{} }, false},
		"set tunnels-ipv4 lacks 192.168.50.2 . 8472":     {func(s *state) { delete(s.sets["tunnels-ipv4"].elements, "192.168.50.2 . 8472") }, false},
		"table inet weft: chain outbound has \"type nat": {func(s *state) { s.chains["outbound"] = chainState{hook: "type nat"} }, true},
	} {
		have := wanted(Rules(c))
		tc.change(&have)
		d := compare(have, want)
		if len(d.texts) != 1 || !strings.Contains(d.texts[0], text) || d.rewrite != tc.rewrite {
			t.Errorf("%s: got %q, rewrite %v", text, d.texts, d.rewrite)
		}
	}
	if d := compare(want, wanted(Ruleset{})); len(d.texts) != 1 || !d.rewrite {
		t.Errorf("a table that is not wanted: %v", d)
	}
	if d := compare(state{}, wanted(Ruleset{})); len(d.texts) != 0 {
		t.Errorf("nothing there, nothing wanted: %v", d)
	}
}

func TestElementsAreRemovedBeforeOthersAreAdded(t *testing.T) {
	// nft refuses 10.0.0.0/8 beside 10.1.0.0/16 even for the length of one command.
	fake := knftables.NewFake(knftables.InetFamily, TableName)
	tx := fake.NewTransaction()
	difference{elements: []change{{"s", "10.0.0.0/8", false}, {"s", "10.1.0.0/16", true}}}.fill(tx, Ruleset{})
	want := "delete element inet weft s { 10.1.0.0/16 }\nadd element inet weft s { 10.0.0.0/8 }\n"
	if d := cmp.Diff(want, tx.String()); d != "" {
		t.Error(d)
	}
}

func TestAListingOfNFTIsReadCompletely(t *testing.T) {
	const listing = `{"nftables": [{"metainfo": {"version": "1.0.6", "json_schema_version": 1}},
		{"table": {"family": "inet", "name": "weft", "handle": 1, "flags": ["dormant"]}},
		{"set": {"family": "inet", "name": "s", "table": "weft", "type": "ipv4_addr", "handle": 3, "flags": ["interval"],
			"elem": [{"prefix": {"addr": "10.0.0.0", "len": 8}}, "192.0.2.1", {"range": ["1.1.1.1", "1.1.1.9"]}, "word"]}},
		{"map": {"family": "inet", "name": "m", "table": "weft", "type": "ipv4_addr", "map": "verdict"}},
		{"chain": {"family": "inet", "table": "weft", "name": "c", "handle": 1, "type": "nat", "hook": "postrouting", "prio": 100, "policy": "accept"}},
		{"rule": {"family": "inet", "table": "weft", "chain": "c", "handle": 8, "comment": "one", "expr": [{"return": null}]}},
		{"rule": {"family": "inet", "table": "weft", "chain": "c", "handle": 9, "expr": [{"return": null}]}}]}`
	got, err := parseTable(listing)
	if err != nil {
		t.Fatal(err)
	}
	want := state{
		chains: map[string]chainState{"c": {"type nat hook postrouting priority 100 policy accept", []string{"one", ""}}},
		sets:   map[string]setState{"s": {"ipv4_addr interval", map[string]struct{}{"10.0.0.0/8": {}, "192.0.2.1": {}}}},
		strange: []string{
			`the table has flags ["dormant"]`, `set s has the element {"range": ["1.1.1.1", "1.1.1.9"]}`,
			`set s has the element "word"`, "map m is not ours",
		},
	}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(state{}, chainState{}, setState{})); d != "" {
		t.Error(d)
	}
	for _, bad := range []string{"", "{", `{"nftables": [{"chain": 7}]}`} {
		if _, err := parseTable(bad); err == nil {
			t.Errorf("%q: no error", bad)
		}
	}
}

func TestASummaryOfManyChangesIsShort(t *testing.T) {
	var many []string
	for i := range 5000 {
		many = append(many, fmt.Sprint(i))
	}
	if got := summary(many); len(got) != 11 || got[10] != "and 4990 more" {
		t.Errorf("got %v", got)
	}
}
