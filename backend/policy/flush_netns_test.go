package policy_test

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/guard"
	"github.com/weft-cni/weft/backend/policy/oracle"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// agent runs a guarded Manager as the daemon does: it syncs whenever somebody else has changed the table. Each Sync puts
// something into synced.
func agent(t *testing.T, host netfilter.Host, w func() policy.World) (synced chan struct{}) {
	t.Helper()
	m := policy.NewGuarded(host)
	ctx, cancel := context.WithCancel(context.Background())
	pokes := m.Watch(ctx)
	<-pokes
	synced = make(chan struct{}, 1000)
	var wg sync.WaitGroup
	wg.Go(func() {
		defer m.Close()
		for {
			res, err := m.Sync(ctx, w(), policy.Config{})
			if ctx.Err() == nil && (err != nil || res.Unguarded != nil) {
				t.Error(err, res.Unguarded)
			}
			synced <- struct{}{}
			if _, more := <-pokes; !more {
				return
			}
		}
	})
	t.Cleanup(func() { cancel(); wg.Wait() })
	<-synced
	return synced
}

// damages are the ways in which others take rules away.
func damages() []string {
	return []string{"flush ruleset", "delete table inet weft-policy", "flush table inet weft-policy"}
}

// The guard cannot be flushed. What is forbidden waits behind it until the rules are back, and what was let through before
// passes, as new connections too.
func TestNothingPassesWhileTheRulesAreFlushedAndNothingThatPassedIsLost(t *testing.T) { // N-18
	for f, family := range []string{"ipv4", "ipv6"} {
		t.Run(family, func(t *testing.T) {
			c := newChain(t)
			w := townOfTwo(t)
			synced := agent(t, netfilter.Host{NetNS: c.node[0].Path()}, func() policy.World { return w.World })
			to := w.pod("x/b").Addrs[f]
			yes := oracle.Packet{Src: w.pod("x/c").Addrs[f], Dst: to, Proto: policy.UDP, Port: 53}
			no := oracle.Packet{Src: w.pod("x/a").Addrs[f], Dst: to, Proto: policy.UDP, Port: 53}
			first := c.send(yes) // what has never passed would wait
			if !c.arrived()[first] {
				t.Fatal("what is allowed does not pass")
			}
			stop, sent := make(chan struct{}), make(chan struct{})
			var s stream
			go func() {
				defer close(sent)
				s.run(c, yes, no, stop)
			}()
			var took []time.Duration
			for i := range 7 * len(damages()) {
				begin := time.Now()
				c.node[0].SetNFT(damages()[i%len(damages())])
				<-synced
				took = append(took, time.Since(begin))
				nstest.Eventually(t, time.Minute, func() error { // what is forgotten with damaged rules has to pass once again
					select {
					case <-sent:
						return nil // on a busy machine the stream ends before the damages do
					default:
					}
					set := "passed-" + family
					if list := c.node[0].Run("nft", "list", "set", "inet", guard.TableName, set); !strings.Contains(list, "elements") {
						return fmt.Errorf("nothing has passed: %s", list)
					}
					return nil
				})
			}
			close(stop)
			<-sent
			passed := c.arrived()
			leaked, lost := 0, 0
			for i := range s.allowed {
				if passed[s.denied[i]] {
					leaked++
				}
				if !passed[s.allowed[i]] {
					lost++
				}
			}
			slices.Sort(took)
			t.Logf("back after %v (median), %v (longest), the nft program that did it included; of %d packets each, %d passed that must not and %d were lost",
				took[len(took)/2], took[len(took)-1], len(s.denied), leaked, lost)
			if leaked > 0 || lost > 0 || len(s.denied) < 100 {
				t.Error(c.node[0].NFT())
			}
		})
	}
}

// Connections that were cut stay cut, and those that are allowed go on, between two pods of one bridge and in both families.
func TestConnectionsFareAsBeforeWhileTheRulesAreFlushed(t *testing.T) { // N-15, N-18
	s := newSite(t)
	s.service("b") // connections are tracked, as wherever there are Services
	var cut, stay []*talk
	for i, network := range []string{"tcp", "udp"} {
		for k, at := range []netip.Addr{podAddr("b"), podAddrLong("b")} {
			n := uint16(5000 + 10*i + k)
			cut = append(cut, s.talk(network, s.pods["a"], s.pods["b"], at, netip.AddrPortFrom(at, n)))
			stay = append(stay, s.talk(network, s.pods["c"], s.pods["b"], at, netip.AddrPortFrom(at, n+100)))
		}
	}
	s.world.Policies = []*policy.NetworkPolicy{isolate(policy.Ingress, "b", with([]string{"c"})), isolate(policy.Egress, "c", with([]string{"b"}))}
	s.pods["b"].SetNFT("table inet count { chain in { type filter hook input priority 0; ip saddr " + podAddr("a").String() + " counter; }; }")
	synced := agent(t, s.host, func() policy.World { return s.world })
	heard := func() (n int) {
		for _, tk := range cut {
			_, h := tk.numbers()
			n += h[0] + h[1]
		}
		return n
	}
	before, counted := heard(), s.pods["b"].NFT()
	for range 3 {
		for _, damage := range damages() {
			s.node.SetNFT(damage)
			goOn(t, 3, append(cut, stay...)...) // in the window, or behind it
			<-synced
		}
	}
	if after := heard(); after != before {
		t.Errorf("%d messages were heard over connections that were cut", after-before)
	}
	if now := s.pods["b"].NFT(); now != counted {
		t.Errorf("packets came that are forbidden: before\n%s\nnow\n%s", counted, now)
	}
	for i, heard := range goOn(t, 100, stay...) {
		if heard[0] < 50 || heard[1] < 50 {
			t.Errorf("%s suffers: %v of 100 messages", stay[i].name, heard)
		}
	}
}

func TestThePoliciesMarkIsOffBehindTheGuard(t *testing.T) {
	c := newChain(t)
	w := townOfTwo(t)
	agent(t, netfilter.Host{NetNS: c.node[0].Path()}, func() policy.World { return w.World })
	c.node[0].SetNFT("table inet count { chain c { type filter hook postrouting priority 110; meta l4proto udp counter; meta l4proto udp meta mark != 0 counter; }; }")
	for _, f := range subnet.Families() {
		to := w.pod("x/b").Addrs[f]
		for range 2 { // the first of a connection, and one that nobody has answered
			c.send(oracle.Packet{Src: w.pod("x/c").Addrs[f], Dst: to, Proto: policy.UDP, Port: 53})
		}
		c.send(oracle.Packet{Src: to, Dst: w.pod("x/c").Addrs[f], Proto: policy.UDP, Port: 5353}) // nobody has a say over it
	}
	c.arrived()
	list := c.node[0].Run("nft", "list", "table", "inet", "count")
	if n := strings.Count(list, "packets 0 "); n != 1 || !strings.Contains(list, "0x00000000 counter packets 0 ") {
		t.Errorf("packets go on with a mark, or none goes on:\n%s", list)
	}
}

func TestNobodyElseCanTouchTheGuardAndItGoesWithItsOwner(t *testing.T) {
	c := newChain(t)
	w := townOfTwo(t)
	host := netfilter.Host{NetNS: c.node[0].Path()}
	m := policy.NewGuarded(host)
	sync := func(m *policy.Manager, w policy.World, cfg policy.Config) policy.Result {
		t.Helper()
		res, err := m.Sync(context.Background(), w, cfg)
		if err != nil {
			t.Fatal(err)
		}
		return res
	}
	stands := func() bool { return strings.Contains(c.node[0].NFT(), "table inet "+guard.TableName+" ") }
	if res := sync(m, w.World, policy.Config{}); res.Unguarded != nil || !stands() {
		t.Fatalf("no guard: %v\n%s", res.Unguarded, c.node[0].NFT())
	}
	for _, attack := range []string{
		"delete table inet weft-guard", "flush table inet weft-guard", "flush chain inet weft-guard postrouting", "add table inet weft-guard { flags dormant; }",
		"flush set inet weft-guard to-pod-ipv4", "add rule inet weft-guard postrouting accept",
	} {
		if _, err := c.node[0].Input(attack, "nft", "-f", "-"); err == nil {
			t.Errorf("%s is carried out", attack)
		}
	}
	second := policy.NewGuarded(host)
	if res := sync(second, w.World, policy.Config{}); res.Unguarded == nil || len(res.Changes) > 0 {
		t.Errorf("a second agent at once: %+v", res)
	}
	if sync(m, w.World, policy.Config{Audit: true}); stands() {
		t.Error("there is a guard in audit")
	}
	if sync(m, w.World, policy.Config{}); !stands() {
		t.Error("there is no guard after audit")
	}
	m.Close() // as when the agent dies
	if stands() {
		t.Error("the guard outlives its owner")
	}
	if res := sync(second, w.World, policy.Config{}); res.Unguarded != nil || !stands() {
		t.Errorf("the next agent has no guard: %v", res.Unguarded)
	}
	if sync(second, policy.World{}, policy.Config{}); c.node[0].NFT() != "" {
		t.Errorf("without policies there is something left:\n%s", c.node[0].NFT())
	}
}
