package policy

import (
	"context"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/tests/nstest"
)

// guardedWorld is a pod that is isolated, but for clients out of a block.
func guardedWorld(block string) World {
	p := &Pod{Namespace: "x", Name: "p", UID: "p", Phase: Running, Local: true, Addrs: [2]netip.Addr{netip.MustParseAddr("10.244.1.2")}}
	np := &NetworkPolicy{Namespace: "x", Name: "np", Isolates: [2]bool{true, false}}
	np.Rules[Ingress] = []Rule{{Peers: []Peer{{Networks: []Network{{CIDR: netip.MustParsePrefix(block)}}}}}}
	return World{Pods: []*Pod{p}, Namespaces: []*Namespace{{Name: "x"}}, Policies: []*NetworkPolicy{np}}
}

// Reading a large table takes as long as a change may take in all.
func TestAChangeDoesNotWaitForTheTableToBeReadAgain(t *testing.T) {
	n := nstest.New(t)
	listings := 0
	m := New(netfilter.Host{NetNS: n.Path(), OnExec: func(argv []string) {
		if slices.Contains(argv, "table") && slices.Contains(argv, TableName) {
			listings++
		}
	}})
	m.watching.Store(true) // nobody else is here
	for _, step := range []struct {
		what  string
		age   time.Duration // since the last reading
		block string
		want  int // readings
	}{
		{"the first", 0, "192.0.2.1/32", 1},
		{"a change soon after", 30 * time.Second, "192.0.2.2/32", 0},
		{"nothing to do, soon after", 30 * time.Second, "192.0.2.2/32", 0},
		{"a change when it is due", 90 * time.Second, "192.0.2.3/32", 0},
		{"nothing to do when it is due", 90 * time.Second, "192.0.2.3/32", 1},
		{"a change when it is long due", time.Hour, "192.0.2.4/32", 1},
	} {
		listings = 0
		m.readAt, m.reads = time.Now().Add(-step.age), 0
		if _, err := m.Sync(context.Background(), guardedWorld(step.block), Config{}); err != nil {
			t.Fatalf("%s: %v", step.what, err)
		}
		if listings != step.want {
			t.Errorf("%s: the table is read %d times, want %d", step.what, listings, step.want)
		}
	}
}

func TestATableThatIsSlowToReadIsReadLessOften(t *testing.T) {
	m := New(netfilter.Host{})
	for _, c := range []struct {
		reads, age time.Duration
		want       bool
	}{
		{20 * time.Millisecond, 59 * time.Second, true}, {20 * time.Millisecond, 61 * time.Second, false},
		{time.Second, 299 * time.Second, true}, {time.Second, 301 * time.Second, false},
		{time.Minute, 9 * time.Minute, true}, {time.Minute, 11 * time.Minute, false},
	} {
		m.reads, m.readAt = c.reads, time.Now().Add(-c.age)
		if got := m.trusts(Ruleset{}); got != c.want {
			t.Errorf("read in %v, %v ago: %t", c.reads, c.age, got)
		}
	}
}

func TestADriftOfTheTableIsTold(t *testing.T) { // N-18
	n := nstest.New(t)
	m := New(netfilter.Host{NetNS: n.Path()})
	for _, step := range []struct {
		what, script, block string
		want                bool
	}{
		{"the first", "", "192.0.2.1/32", false},
		{"nothing to do", "", "192.0.2.1/32", false},
		{"a rule less", "flush chain inet weft-policy judge", "192.0.2.1/32", true},
		{"an edit", "", "192.0.2.2/32", false},
		{"an element less", "delete element inet weft-policy guarded-ipv4 { 10.244.1.2 }", "192.0.2.2/32", true},
		{"a table less, and an edit", "delete table inet weft-policy", "192.0.2.3/32", true},
		{"a table that sleeps", "add table inet weft-policy { flags dormant; }", "192.0.2.3/32", true},
		{"another edit", "", "192.0.2.4/32", false},
	} {
		if step.script != "" {
			n.SetNFT(step.script)
		}
		res, err := m.Sync(context.Background(), guardedWorld(step.block), Config{})
		if err != nil || res.Drift != step.want {
			t.Errorf("%s: drift %t, %v; want %t (%v)", step.what, res.Drift, err, step.want, res.Changes)
		}
	}
	res, err := New(netfilter.Host{NetNS: n.Path()}).Sync(context.Background(), guardedWorld("192.0.2.5/32"), Config{})
	if err != nil || res.Drift {
		t.Errorf("what an earlier agent left is a drift: %v", err)
	}
}
