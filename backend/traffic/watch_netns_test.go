package traffic

import (
	"context"
	"errors"
	"math/rand/v2"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/nstest"
)

func TestWatchEndsWithItsContextAndStartsWithAPoke(t *testing.T) {
	ns := nstest.New(t)
	ctx, cancel := context.WithCancel(context.Background())
	pokes := manager(ns).Watch(ctx)
	<-pokes // what happened before is not known
	cancel()
	for range pokes { // ends when the channel is closed
	}
}

func TestWatchGoesOnWhenTheNamespaceComesLater(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ns := nstest.New(t)
	path := t.TempDir() + "/later"
	pokes := New(Options{NetNS: path}).Watch(ctx)
	if err := os.Symlink(ns.Path(), path); err != nil {
		t.Fatal(err)
	}
	select {
	case <-pokes:
	case <-time.After(10 * time.Second):
		t.Error("no poke")
	}
}

func TestAForwardChainThatIsClosedLaterIsOpenedForPods(t *testing.T) {
	ns := nstest.New(t)
	right := keep(t, ns, single())
	for _, engine := range engineNames {
		xt(ns, engine, "-A", "FORWARD", "-j", "REJECT")
		took := nstest.Eventually(t, patience, right)
		if got := rulesOf(ns, engine); len(got) != 2 || got[0] != jumpSpec {
			t.Errorf("%s: FORWARD is %q", engine, got)
		}
		xt(ns, engine, "-D", "FORWARD", "2") // and what is not needed any more goes
		nstest.Eventually(t, patience, right)
		if got := rulesOf(ns, engine); len(got) != 0 {
			t.Errorf("%s: FORWARD is %q", engine, got)
		}
		t.Logf("%s: opened after %v", engine, took.Round(time.Millisecond))
	}
	xt(ns, engineNFT, "-P", "FORWARD", "DROP")
	nstest.Eventually(t, patience, right)
	// The legacy engine tells nobody of a policy, and no size changes by it: it is looked at.
	xt(ns, engineLegacy, "-P", "FORWARD", "DROP")
	nstest.Eventually(t, patience, right)
	for _, engine := range engineNames {
		if got := rulesOf(ns, engine); len(got) != 1 {
			t.Errorf("%s: FORWARD is %q", engine, got)
		}
	}
}

func TestRandomConfigsAndDamageAlwaysEndAtTheWantedRules(t *testing.T) {
	t.Parallel()
	r := rand.New(rand.NewPCG(7, 7))
	ns := nstest.New(t)
	m := manager(ns)
	damage := []string{
		"add rule inet weft postrouting accept", "flush table inet weft", "delete table inet weft", "flush ruleset", "flush chain inet weft inbound",
		"flush set inet weft exclude-ipv4", "flush set inet weft peers-ipv4", "add element inet weft exclude-ipv4 { 10.0.0.0/7 }",
		"add element inet weft peers-ipv4 { 192.168.50.200 }", "add chain inet weft x", "add table inet weft { flags dormant; }",
	}
	places := []Place{PlaceAuto, PlaceFirst, PlaceLast, PlaceOff}
	chains := [][]string{{"-P", "FORWARD", "DROP"}, {"-P", "FORWARD", "ACCEPT"}, {"-A", "FORWARD", "-j", "REJECT"}, {"-F", "FORWARD"}, {"-I", "FORWARD", "-i", "eth1", "-j", "DROP"}, {"-F"}}
	for i := range 60 {
		c := randomConfig(r)
		c.Forward, c.ForwardPlace = r.IntN(3) > 0, places[r.IntN(4)]
		if r.IntN(2) == 0 {
			_, _ = ns.Input(damage[r.IntN(len(damage))]+"\n", "nft", "-f", "-") // what is not there cannot be damaged
		}
		if r.IntN(2) == 0 {
			xt(ns, engineNames[r.IntN(2)], chains[r.IntN(len(chains))]...)
		}
		sync(t, m, c)
		if p := m.survey(context.Background(), c, scope{}); len(p.table.texts)+len(p.actions)+len(p.errs) > 0 {
			t.Fatalf("step %d, %+v: still %q, %d actions, %v", i, c, p.table.texts, len(p.actions), p.errs)
		}
	}
	if texts, err := m.Remove(context.Background()); err != nil {
		t.Error(texts, err)
	}
	if left := ns.NFT() + xt(ns, engineLegacy, "-S"); strings.Contains(strings.ToLower(left), "weft") {
		t.Error(left)
	}
}

func TestThePolicyOfALegacyTableIsRead(t *testing.T) {
	ns := nstest.New(t)
	m := manager(ns)
	for i, tool := range []string{"iptables-legacy", "ip6tables-legacy"} {
		for _, c := range []struct {
			policy string
			want   int32
		}{{"ACCEPT", -2}, {"DROP", -1}, {"ACCEPT", -2}} {
			ns.Run(tool, "-P", "FORWARD", c.policy)
			ns.Run(tool, "-A", "FORWARD", "-m", "comment", "--comment", c.policy)
			if got := m.legacyState()[i].policy; got != c.want {
				t.Errorf("%s %s: %d, want %d", tool, c.policy, got, c.want)
			}
		}
	}
}

// M-03, M-16: `firewall-cmd --reload` forgets what was allowed at runtime only, and an operator closes a chain that was open. The
// table is there before and after.
func TestAForeignTableThatStopsPodsLaterIsNamedAsWell(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns, c := nstest.New(t), f.single()
		ctx, cancel := context.WithCancel(t.Context())
		defer cancel()
		m := manager(ns)
		open := "table inet corp { chain ahead { type filter hook forward priority 0; policy accept; }\n}\n"
		ns.SetNFT(open)
		m.Watch(ctx)
		nstest.Eventually(t, patience, func() error { return listened(ns) })
		named := func() error {
			for _, p := range sync(t, m, c).Problems {
				if strings.Contains(p, "table inet corp, chain ahead stops forwarded packets") {
					return nil
				}
			}
			return errors.New("it is not named")
		}
		for _, change := range []string{
			"add chain inet corp ahead { policy drop; }\n",
			"delete table inet corp\n" + strings.Replace(open, "policy accept", "policy drop", 1),
			"add rule inet corp ahead counter reject\n",
		} {
			ns.SetNFT("delete table inet corp\n" + open)
			nstest.Eventually(t, patience, func() error {
				if named() == nil {
					return errors.New("it is named although it is open")
				}
				return nil
			})
			ns.SetNFT(change)
			nstest.Eventually(t, patience, named)
		}
	})
}
