package traffic

import (
	"context"
	"net/netip"
	"strings"
	stdsync "sync"
	"sync/atomic"
	"testing"

	"github.com/weft-cni/weft/tests/nstest"
)

// flannelIptables puts in what flannel's iptables mode leaves, with its own lines of nat and filter.
func flannelIptables(t *testing.T, ns *nstest.NS, engine string) {
	t.Helper()
	script := `*nat
:FLANNEL-POSTRTG - [0:0]
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
COMMIT
*filter
:FLANNEL-FWD - [0:0]
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD
-A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
COMMIT
`
	if _, err := ns.Input(script, "iptables-"+engine+"-restore", "-w", "--noflush"); err != nil {
		t.Fatal(err)
	}
}

// flannelNFT puts in what flannel's nftables mode leaves.
func flannelNFT(ns *nstest.NS) {
	ns.SetNFT(`table ip flannel-ipv4 {
		chain postrtg { type nat hook postrouting priority srcnat; ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random; }
		chain forward { type filter hook forward priority filter; ip saddr 10.244.0.0/16 accept; }
	}
	table ip6 flannel-ipv6 { comment "rules for flannel-ipv6"; }`)
}

func TestM15FlannelsRulesOfEveryModeAreGoneAfterTheFirstSync(t *testing.T) {
	t.Parallel()
	for name, leave := range map[string]func(*testing.T, *nstest.NS){
		"iptables-nft":    func(t *testing.T, ns *nstest.NS) { flannelIptables(t, ns, engineNFT) },
		"iptables-legacy": func(t *testing.T, ns *nstest.NS) { flannelIptables(t, ns, engineLegacy) },
		"nftables":        func(_ *testing.T, ns *nstest.NS) { flannelNFT(ns) },
		"all at once": func(t *testing.T, ns *nstest.NS) {
			flannelIptables(t, ns, engineNFT)
			flannelIptables(t, ns, engineLegacy)
			flannelNFT(ns)
		},
	} {
		for _, forward := range []string{"ACCEPT", "DROP"} {
			ns := nstest.New(t)
			for _, engine := range engineNames {
				xt(ns, engine, "-P", "FORWARD", forward)
				xt(ns, engine, "-t", "nat", "-A", "POSTROUTING", "-s", "172.17.0.0/16", "-j", "MASQUERADE") // somebody else's
			}
			leave(t, ns)
			if texts, err := manager(ns).Check(context.Background(), single()); err != nil || !strings.Contains(strings.Join(texts, "\n"), "flannel") {
				t.Errorf("%s: Check says %q, %v", name, texts, err)
			}
			sync(t, manager(ns), single())
			all := ns.NFT() + xt(ns, engineNFT, "-t", "nat", "-S") + xt(ns, engineNFT, "-S") + xt(ns, engineLegacy, "-t", "nat", "-S") + xt(ns, engineLegacy, "-S")
			if strings.Contains(strings.ToLower(all), "flannel") {
				t.Errorf("%s: left behind:\n%s", name, all)
			}
			if strings.Count(all, "-s 172.17.0.0/16") != 2 || !strings.Contains(all, "masquerade fully-random") {
				t.Errorf("%s: too much was removed:\n%s", name, all)
			}
			if jumps := strings.Count(all, "-j "+chainName); (forward == "DROP") != (jumps == 2) {
				t.Errorf("%s, policy %s: %d jumps of ours", name, forward, jumps)
			}
			if err := differs(ns, single()); err != nil {
				t.Errorf("%s: %v", name, err)
			}
		}
	}
}

func TestM15TurningMasqueradeAndForwardOffCleansFlannelsRulesToo(t *testing.T) {
	ns := nstest.New(t)
	flannelIptables(t, ns, engineNFT)
	c := single()
	c.Masquerade, c.Forward = false, false
	sync(t, manager(ns), c)
	if left := xt(ns, engineNFT, "-t", "nat", "-S") + xt(ns, engineNFT, "-S"); strings.Contains(left, "FLANNEL") {
		t.Error(left)
	}
}

func TestM02M15TheTakeoverFromFlannelLeavesNoGap(t *testing.T) {
	t.Parallel()
	for _, engine := range engineNames {
		w := newWorld(t)
		n := w.node[0]
		sync(t, manager(w.node[1]), nodeConfig(2))
		xt(n, engine, "-P", "FORWARD", "DROP")
		flannelIptables(t, n, engine)
		capture := w.outside.Capture("eth0")
		var stop atomic.Bool
		var wg stdsync.WaitGroup
		answered, lost := 0, 0
		wg.Go(func() {
			for !stop.Load() {
				if w.arrives("pod-a", netip.AddrPortFrom(addrs(0)["outside"], echoPort)) {
					answered++
				} else {
					lost++
				}
			}
		})
		for range 4 {
			sync(t, manager(n), nodeConfig(1))
			flannelIptables(t, n, engine) // and back, as a roll-back would
			if _, err := manager(n).Remove(context.Background()); err != nil {
				t.Fatal(err)
			}
		}
		stop.Store(true)
		wg.Wait()
		pods := netip.MustParsePrefix("10.244.0.0/16")
		if naked := capture.Count(func(f []byte) bool {
			return len(f) >= 34 && f[12] == 8 && f[13] == 0 && pods.Contains(netip.AddrFrom4([4]byte(f[26:30])))
		}); naked > 0 || lost > 0 || answered < 4 {
			t.Errorf("%s: %d flows answered, %d lost, %d packets left with a pod's source", engine, answered, lost, naked)
		}
	}
}

func TestM19NoRuleOfAnOldNetworkSurvives(t *testing.T) {
	ns := nstest.New(t)
	xt(ns, engineNFT, "-P", "FORWARD", "DROP")
	sync(t, manager(ns), single())
	c := single()
	c.Nets[0] = Net{netip.MustParsePrefix("10.40.0.0/14"), netip.MustParsePrefix("10.40.1.0/24")}
	sync(t, manager(ns), c) // another process, which knows nothing of the first
	if all := ns.NFT() + xt(ns, engineNFT, "-S"); strings.Contains(all, "10.244.") || !strings.Contains(all, "10.40.0.0/14") {
		t.Error(all)
	}
	c.Nets[0].PodCIDR = netip.MustParsePrefix("10.40.2.0/24")
	if r := sync(t, manager(ns), c); len(r.Changes) == 0 || strings.Contains(ns.NFT(), "10.40.1.0") {
		t.Errorf("a new pod CIDR: %v", r.Changes)
	}
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
	flannelNFT(ns) // after a way back, flannel's rules are in use
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
