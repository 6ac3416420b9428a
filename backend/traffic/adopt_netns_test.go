package traffic

import (
	"context"
	"net/netip"
	"strings"
	stdsync "sync"
	"sync/atomic"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/flannelstate"
	"github.com/weft-cni/weft/tests/nstest"
)

// flannelNode is node 1 of the tests under flannel.
func (f words) flannelNode(t *testing.T, rules flannelstate.Rules) flannelstate.Node {
	c := f.single().Nets[f.Family]
	return flannelstate.Node{
		Name: "n1", Network: c.Network, PodCIDR: c.PodCIDR, Underlay: "eth0", Addr: addrs(f.Family)["node"],
		MAC: "02:00:00:00:00:01", VNI: 1, Rules: rules, Root: t.TempDir(),
	}
}

// leaveFlannel puts in the rules that a flannel leaves.
func (f words) leaveFlannel(t *testing.T, ns *nstest.NS, rules ...flannelstate.Rules) {
	t.Helper()
	for _, r := range rules {
		if err := f.flannelNode(t, r).WriteRules(ns); err != nil {
			t.Fatal(err)
		}
	}
}

// everyMode are flannel's ways to write rules.
func everyMode() []flannelstate.Rules {
	return []flannelstate.Rules{flannelstate.IPTablesNFT, flannelstate.IPTablesLegacy, flannelstate.NFTables}
}

func TestM15FlannelsRulesOfEveryModeAreGoneAfterTheFirstSync(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		for name, modes := range map[string][]flannelstate.Rules{
			"iptables-nft": everyMode()[:1], "iptables-legacy": everyMode()[1:2], "nftables": everyMode()[2:], "all at once": everyMode(),
		} {
			for _, forward := range []string{"ACCEPT", "DROP"} {
				ns := nstest.New(t)
				for _, engine := range engineNames {
					f.xt(ns, engine, "-P", "FORWARD", forward)
					f.xt(ns, engine, "-t", "nat", "-A", "POSTROUTING", "-s", f.in("172.17.0.0/16"), "-j", "MASQUERADE") // somebody else's
				}
				f.leaveFlannel(t, ns, modes...)
				if texts, err := manager(ns).Check(context.Background(), f.single()); err != nil || !strings.Contains(strings.Join(texts, "\n"), "flannel") {
					t.Errorf("%s: Check says %q, %v", name, texts, err)
				}
				sync(t, manager(ns), f.single())
				all := ns.NFT() + f.xt(ns, engineNFT, "-t", "nat", "-S") + f.xt(ns, engineNFT, "-S") + f.xt(ns, engineLegacy, "-t", "nat", "-S") + f.xt(ns, engineLegacy, "-S")
				if strings.Contains(strings.ToLower(all), "flannel") {
					t.Errorf("%s: left behind:\n%s", name, all)
				}
				if strings.Count(all, f.in("-s 172.17.0.0/16")) != 2 || !strings.Contains(all, "masquerade fully-random") {
					t.Errorf("%s: too much was removed:\n%s", name, all)
				}
				if jumps := strings.Count(all, "-j "+chainName); (forward == "DROP") != (jumps == 2) {
					t.Errorf("%s, policy %s: %d jumps of ours", name, forward, jumps)
				}
				if err := differs(ns, f.single()); err != nil {
					t.Errorf("%s: %v", name, err)
				}
			}
		}
	})
}

func TestM15TurningMasqueradeAndForwardOffCleansFlannelsRulesToo(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		f.leaveFlannel(t, ns, flannelstate.IPTablesNFT)
		c := f.single()
		c.Masquerade, c.Forward = false, false
		sync(t, manager(ns), c)
		if left := f.xt(ns, engineNFT, "-t", "nat", "-S") + f.xt(ns, engineNFT, "-S"); strings.Contains(left, "FLANNEL") {
			t.Error(left)
		}
	})
}

// The way to weft and the way back, again and again, while pods talk to the outside: first ours are written and flannel's
// removed, then the other way round.
func TestM02M15TheTakeoverFromFlannelAndBackLeavesNoGap(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		for _, mode := range everyMode() {
			t.Run(string(mode), func(t *testing.T) {
				t.Parallel()
				w := newWorld(t)
				n := w.node[0]
				sync(t, manager(w.node[1]), nodeConfig(2))
				engine := engineNFT
				if mode == flannelstate.IPTablesLegacy {
					engine = engineLegacy
					f.xt(n, engine, "-t", "mangle", "-N", "KUBE-KUBELET-CANARY") // so that it is known which engine flannel will find
				}
				if mode != flannelstate.NFTables { // whose accept does not reach into iptables
					f.xt(n, engine, "-P", "FORWARD", "DROP")
				}
				f.leaveFlannel(t, n, mode)
				capture := w.outside.Capture("eth0")
				var stop atomic.Bool
				var wg stdsync.WaitGroup
				answered, lost := 0, 0
				wg.Go(func() {
					for !stop.Load() {
						if w.arrives("pod-a", netip.AddrPortFrom(addrs(f.Family)["outside"], echoPort)) {
							answered++
						} else {
							lost++
						}
					}
				})
				for range 4 {
					sync(t, manager(n), nodeConfig(1))
					if _, err := manager(n).HandOver(context.Background(), nodeConfig(1), mode == flannelstate.NFTables); err != nil {
						t.Fatal(err)
					}
					f.handedOver(t, n, mode)
					f.leaveFlannel(t, n, mode) // it starts
				}
				stop.Store(true)
				wg.Wait()
				pods := f.prefix("10.244.0.0/16")
				if naked := capture.Count(func(frame []byte) bool { return pods.Contains(source(frame)) }); naked > 0 || lost > 0 || answered < 4 {
					t.Errorf("%d flows answered, %d lost, %d packets left with a pod's source", answered, lost, naked)
				}
			})
		}
	})
}

// handedOver compares the rules with those that a flannel writes on an empty node.
func (f words) handedOver(t *testing.T, n *nstest.NS, mode flannelstate.Rules) {
	t.Helper()
	fresh := nstest.New(t)
	f.leaveFlannel(t, fresh, mode)
	dump := func(ns *nstest.NS) string {
		text := f.xt(ns, engineNFT, "-t", "nat", "-S") + f.xt(ns, engineLegacy, "-t", "nat", "-S") +
			f.xt(ns, engineNFT, "-S", "FORWARD") + f.xt(ns, engineLegacy, "-S", "FORWARD")
		if mode == flannelstate.NFTables {
			text = ns.Run("nft", "--stateless", "list", "table", families()[f.Family].Proto, families()[f.Family].FlannelNF)
		}
		return strings.ReplaceAll(text, "-P FORWARD DROP", "-P FORWARD ACCEPT")
	}
	if d := cmp.Diff(dump(fresh), dump(n)); d != "" {
		t.Errorf("%s: rules (-flannel's +handed over):\n%s", mode, d)
	}
	if all := n.NFT() + f.xt(n, engineLegacy, "-S"); strings.Contains(strings.ToLower(all), "weft") {
		t.Errorf("%s: of ours is left:\n%s", mode, all)
	}
}

func TestM19NoRuleOfAnOldNetworkSurvives(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		f.xt(ns, engineNFT, "-P", "FORWARD", "DROP")
		sync(t, manager(ns), f.single())
		c, old := f.single(), f.single().Nets[f.Family]
		c.Nets[f.Family] = Net{Network: f.prefix("10.40.0.0/14"), PodCIDR: f.prefix("10.40.1.0/24")}
		sync(t, manager(ns), c) // another process, which knows nothing of the first
		if all := ns.NFT() + f.xt(ns, engineNFT, "-S"); strings.Contains(all, old.Network.String()) ||
			strings.Contains(all, old.PodCIDR.String()) || !strings.Contains(all, c.Nets[f.Family].Network.String()) {
			t.Error(all)
		}
		c.Nets[f.Family].PodCIDR = f.prefix("10.40.2.0/24")
		if r := sync(t, manager(ns), c); len(r.Changes) == 0 || strings.Contains(ns.NFT(), f.prefix("10.40.1.0/24").String()) {
			t.Errorf("a new pod CIDR: %v", r.Changes)
		}
	})
}

func TestK07RemoveLeavesNothingOfOursAndAllOfOthers(t *testing.T) {
	ns := nstest.New(t)
	for _, engine := range engineNames {
		xt(ns, engine, "-P", "FORWARD", "DROP")
		xt(ns, engine, "-A", "FORWARD", "-i", "eth1", "-j", "DROP")
	}
	ns.SetNFT("table inet mine { chain c { }; }\n")
	before := ns.NFT() + xt(ns, engineLegacy, "-S")
	sync(t, manager(ns), cluster())
	words{subnet.IPv4}.leaveFlannel(t, ns, flannelstate.NFTables) // after a way back, flannel's rules are in use
	texts, err := manager(ns).Remove(context.Background())
	if err != nil || len(texts) != 3 {
		t.Errorf("got %q, %v", texts, err)
	}
	if !strings.Contains(ns.NFT(), "flannel-ipv4") {
		t.Error("flannel's table is gone")
	}
	ns.Run("nft", "delete", "table", "ip", "flannel-ipv4")
	ns.Run("nft", "delete", "table", "ip6", "flannel-ipv6")
	if after := ns.NFT() + xt(ns, engineLegacy, "-S"); after != before {
		t.Errorf("before:\n%s\nafter:\n%s", before, after)
	}
	if texts, err := manager(ns).Remove(context.Background()); err != nil || len(texts) > 0 {
		t.Errorf("a second Remove did %q, %v", texts, err)
	}
}

func TestAFamilyThatIsTurnedOffIsCleanAfterTheNextStart(t *testing.T) {
	ns := nstest.New(t)
	ns.Run("ip6tables-nft", "-P", "FORWARD", "DROP")
	sync(t, manager(ns), cluster())
	if !strings.Contains(ns.Run("ip6tables-nft", "-S"), chainName) {
		t.Fatal("no jump for IPv6")
	}
	m := manager(ns)
	sync(t, m, single())
	sync(t, m, cluster())
	sync(t, m, single()) // and so it is when that happens while we run
	if all := ns.NFT() + ns.Run("ip6tables-nft", "-S"); strings.Contains(all, "fd00:244") || strings.Contains(ns.Run("ip6tables-nft", "-S"), chainName) {
		t.Error(all)
	}
}
