package traffic

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"os/exec"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// reaches tells which of the flows that a node forwards arrive: pods of one node, pods of two, a pod and the outside.
// Those that are expected not to arrive are named, since only they are not waited for.
func (w *world) reaches(f subnet.Family, closed ...string) map[string]bool {
	a := addrs(f)
	got := map[string]bool{}
	for name, to := range map[string]string{"same node": "pod-a2", "cross node": "pod-b", "outside": "outside"} {
		try := w.arrives
		if slices.Contains(closed, name) {
			try = w.quick
		}
		got[name] = try("pod-a", netip.AddrPortFrom(a[to], echoPort))
	}
	return got
}

// arrives tells whether an answer comes back, and waits as long as a loaded machine may need.
func (w *world) arrives(pod string, to netip.AddrPort) bool { return w.answered(pod, to, 40) }

// quick tells whether an answer comes back soon; what is dropped never comes.
func (w *world) quick(pod string, to netip.AddrPort) bool { return w.answered(pod, to, 4) }

func (w *world) answered(pod string, to netip.AddrPort, tries int) bool {
	conn, err := w.pods[pod].Dial("udp", to, time.Second)
	if err != nil {
		return false
	}
	defer conn.Close()
	buf := make([]byte, 100)
	for range tries {
		_ = conn.SetDeadline(time.Now().Add(150 * time.Millisecond))
		if _, err = conn.Write([]byte("x")); err == nil {
			_, err = conn.Read(buf)
		}
		if err == nil {
			return true
		}
		if !errors.Is(err, os.ErrDeadlineExceeded) { // a reject comes at once
			time.Sleep(5 * time.Millisecond)
		}
	}
	return false
}

// passesBy tells whether the first node forwards between two hosts that are no pods.
func (w *world) passesBy(f words) bool {
	w.t.Helper()
	far := f.at("203.0.113.9:7007")
	w.node[1].IP(f.in("addr add 203.0.113.9/32 dev lo") + []string{"", " nodad"}[f.Family])
	w.node[1].UDPEcho(far)
	w.node[0].IP(f.in("route add 203.0.113.9 via 192.168.50.2"))
	w.outside.IP(f.in("route add 203.0.113.9 via 192.168.50.1"))
	w.pods["outside"] = w.outside
	return w.quick("outside", far)
}

// engineNames are both flavours of iptables.
var engineNames = []string{engineNFT, engineLegacy}

// xt runs iptables of one flavour.
func xt(ns *nstest.NS, engine string, args ...string) string {
	return words{subnet.IPv4}.xt(ns, engine, args...)
}

// xt runs the family's iptables of one flavour.
func (f words) xt(ns *nstest.NS, engine string, args ...string) string {
	argv := []string{f.in("iptables-" + engine)}
	if engine == engineLegacy {
		argv = append(argv, "-w")
	}
	return ns.Run(append(argv, args...)...)
}

// rulesOf lists the rules of FORWARD without the policy.
func rulesOf(ns *nstest.NS, engine string) []string { return words{subnet.IPv4}.rulesOf(ns, engine) }

func (f words) rulesOf(ns *nstest.NS, engine string) []string {
	var rules []string
	for line := range strings.Lines(f.xt(ns, engine, "-S", "FORWARD")) {
		if spec, ok := strings.CutPrefix(strings.TrimSpace(line), "-A FORWARD "); ok {
			rules = append(rules, spec)
		}
	}
	return rules
}

func TestM04PodTrafficPassesAClosedForwardChain(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		closed := map[string][][]string{
			"policy drop":     {{"-P", "FORWARD", "DROP"}},
			"terminal reject": {{"-A", "FORWARD", "-i", "lo", "-j", "ACCEPT"}, {"-A", "FORWARD", "-j", "REJECT"}},
			"terminal reject in a chain": {
				{"-N", "END"}, {"-A", "END", "-j", "REJECT"}, {"-A", "FORWARD", "-j", "END"},
			},
		}
		for name, commands := range closed {
			for _, engine := range engineNames {
				t.Run(name+" "+engine, func(t *testing.T) {
					t.Parallel()
					w := newWorld(t)
					n := w.node[0]
					sync(t, manager(w.node[1]), nodeConfig(2))
					n.SetSysctl([2]string{"net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"}[f.Family], "1") // pods of one node meet FORWARD, too
					for _, c := range commands {
						f.xt(n, engine, c...)
					}
					c := nodeConfig(1)
					c.Forward = false
					m := manager(n)
					sync(t, m, c)
					for flow, ok := range w.reaches(f.Family, "same node", "cross node", "outside") {
						if ok {
							t.Errorf("%s passes without our rule: the test shows nothing", flow)
						}
					}
					c.Forward = true
					sync(t, m, c)
					for flow, ok := range w.reaches(f.Family) {
						if !ok {
							t.Errorf("%s does not pass:\n%s", flow, f.xt(n, engine, "-S", "FORWARD"))
						}
					}
					if w.passesBy(f) {
						t.Error("our rule lets traffic through that is none of the pods'")
					}
					c.Forward = false
					sync(t, m, c)
					if left := f.xt(n, engine, "-S"); strings.Contains(left, chainName) {
						t.Errorf("turned off, it is still there:\n%s", left)
					}
				})
			}
		}
	})
}

func TestM04X08AnOperatorsGuardRuleStaysFirst(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		for _, engine := range engineNames {
			w := newWorld(t)
			n := w.node[0]
			sync(t, manager(w.node[1]), nodeConfig(2))
			guard := strings.Replace(f.in("-d 192.168.50.3/32 -i cni0 -j REJECT --reject-with icmp-port-unreachable"), "icmp", []string{"icmp", "icmp6"}[f.Family], 1)
			f.xt(n, engine, append([]string{"-A", "FORWARD"}, strings.Fields(guard)...)...)
			f.xt(n, engine, "-A", "FORWARD", "-j", "DROP")
			sync(t, manager(n), nodeConfig(1))
			rules := f.rulesOf(n, engine)
			if len(rules) != 3 || rules[0] != guard || rules[1] != jumpSpec {
				t.Errorf("%s: FORWARD is %q", engine, rules)
			}
			if got := w.reaches(f.Family, "outside"); got["outside"] || !got["cross node"] {
				t.Errorf("%s: the guard guards no more, or too much: %v", engine, got)
			}
		}
	})
}

func TestM05APolicyEnginesDropWinsInWhateverOrderItComes(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		for _, engine := range engineNames {
			w := newWorld(t)
			n := w.node[0]
			sync(t, manager(w.node[1]), nodeConfig(2))
			f.xt(n, engine, "-P", "FORWARD", "DROP")
			for _, place := range []Place{PlaceAuto, PlaceFirst, PlaceLast} {
				c := nodeConfig(1)
				c.ForwardPlace = place
				m := manager(n)
				sync(t, m, c)
				// The engine starts after us and appends its chain: default deny towards the outside.
				f.xt(n, engine, "-N", "KUBE-ROUTER-FORWARD")
				f.xt(n, engine, "-A", "KUBE-ROUTER-FORWARD", "-d", f.in("192.168.50.3"), "-j", "DROP")
				f.xt(n, engine, "-A", "FORWARD", "-j", "KUBE-ROUTER-FORWARD")
				sync(t, m, c)
				if got := w.reaches(f.Family, "outside"); got["outside"] || !got["cross node"] {
					t.Errorf("%s, place %s: %v\n%s", engine, place, got, f.xt(n, engine, "-S", "FORWARD"))
				}
				f.xt(n, engine, "-F")
				f.xt(n, engine, "-X", "KUBE-ROUTER-FORWARD")
				n.Run("conntrack", "-F")
			}
		}
	})
}

func TestM14EachFlavourThatDropsGetsAWholeJumpAndTheOtherIsNotTouched(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		for _, engine := range engineNames {
			ns := nstest.New(t)
			// The kubelet's hint says which one the host uses; what counts is which one drops.
			f.xt(ns, engine, "-t", "mangle", "-N", "KUBE-IPTABLES-HINT")
			f.xt(ns, engine, "-P", "FORWARD", "DROP")
			sync(t, manager(ns), f.single())
			if got := f.rulesOf(ns, engine); len(got) != 1 || got[0] != jumpSpec {
				t.Errorf("%s: FORWARD is %q", engine, got)
			}
			if engine == engineNFT {
				if loaded := New(Options{NetNS: ns.Path()}).host.legacyTables(families()[f.Family]); len(loaded) > 0 {
					t.Errorf("legacy tables %v were loaded by looking", loaded)
				}
			} else if strings.Contains(ns.NFT(), "table "+families()[f.Family].Proto+" ") {
				t.Errorf("tables of iptables-nft were made:\n%s", ns.NFT())
			}
		}
	})
}

func TestM17WithoutAnyIptablesTheRulesStand(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		look := func(name string) (string, error) {
			if strings.Contains(name, "tables") {
				return "", errors.New("no such program")
			}
			return exec.LookPath(name)
		}
		m := New(Options{NetNS: ns.Path(), LookPath: look})
		if r := sync(t, m, f.single()); len(r.Problems) > 0 {
			t.Errorf("problems on a host without iptables: %q", r.Problems)
		}
		if !strings.Contains(ns.NFT(), "masquerade fully-random") {
			t.Error("no masquerade rule")
		}
		// A host that has iptables tables all the same may drop. What nft can tell of them is said, and where it cannot, that.
		ns.Run(f.in("iptables-nft"), "-P", "FORWARD", "DROP")
		const cure = "chain FORWARD stops forwarded packets of 10.244.0.0/16, and no other table can override that: nft insert rule ip filter FORWARD ip daddr 10.244.0.0/16 accept"
		if r := sync(t, m, f.single()); len(r.Problems) != 1 || !strings.Contains(r.Problems[0], f.in(cure)) {
			t.Errorf("got %q, want %q", r.Problems, f.in(cure))
		}
		ns.Run(f.in("iptables-nft"), "-A", "FORWARD", "-m", "statistic", "--mode", "random", "--probability", "0.5", "-j", "ACCEPT")
		if r := sync(t, m, f.single()); len(r.Problems) != 1 || !strings.Contains(r.Problems[0], f.in("no iptables-nft is installed")) {
			t.Errorf("got %q", r.Problems)
		}
		// Without nft there is nothing to stand on: the error names it.
		none := New(Options{NetNS: ns.Path(), LookPath: func(string) (string, error) { return "", errors.New("none") }})
		if _, err := none.Sync(context.Background(), f.single()); !errors.Is(err, netfilter.ErrNoTool) || !strings.Contains(err.Error(), "nft") {
			t.Errorf("got %v", err)
		}
	})
}

func TestIptablesWithoutLongNamesIsRecognisedByItsVersion(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		look := func(name string) (string, error) {
			if strings.Contains(name, "-nft") || strings.Contains(name, "-legacy") {
				return "", errors.New("no such program")
			}
			return exec.LookPath(name)
		}
		ns.Run(f.in("iptables-nft"), "-P", "FORWARD", "DROP")
		sync(t, New(Options{NetNS: ns.Path(), LookPath: look}), f.single())
		if got := f.rulesOf(ns, engineNFT); len(got) != 1 || got[0] != jumpSpec {
			t.Errorf("FORWARD is %q", got)
		}
	})
}

func TestM18AChainThatChangedMeanwhileCostsARetryAndNoForeignRule(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		for _, engine := range engineNames {
			ns := nstest.New(t)
			f.xt(ns, engine, "-P", "FORWARD", "DROP")
			m := manager(ns)
			sync(t, m, f.single())
			f.xt(ns, engine, "-A", "FORWARD", "-i", "eth1", "-j", "DROP") // ours has to move behind it
			p := m.survey(context.Background(), f.single(), scope{})
			f.xt(ns, engine, "-D", "FORWARD", "1") // somebody removes our jump between our look and our write
			f.xt(ns, engine, "-I", "FORWARD", "1", "-i", "eth2", "-j", "DROP")
			if _, err := m.apply(context.Background(), p); err == nil {
				t.Errorf("%s: a plan for another chain was carried out", engine)
			}
			sync(t, m, f.single())
			if got := strings.Join(f.rulesOf(ns, engine), "\n"); got != "-i eth2 -j DROP\n-i eth1 -j DROP\n"+jumpSpec {
				t.Errorf("%s: FORWARD is\n%s", engine, got)
			}
		}
	})
}

func TestATableOfNFTChainsThatIptablesCannotReadIsNamed(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		ns.SetNFT(f.in("table ip filter { chain FORWARD { type filter hook forward priority 5; policy drop; }; }\n"))
		r := sync(t, manager(ns), f.single())
		if len(r.Problems) != 1 || !strings.Contains(r.Problems[0], f.in("nft insert rule ip filter FORWARD ip daddr 10.244.0.0/16 accept")) {
			t.Errorf("got %q", r.Problems)
		}
	})
}

func TestATableFilterThatWasWrittenByHandIsNamedAndKeepsNoRuleFromBeingMade(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		m := manager(ns)
		if !slices.ContainsFunc(m.host.flavours(context.Background()), func(f flavour) bool { return f.engine == engineNFT }) {
			t.Skip("no iptables-nft on this machine; make deps installs it")
		}
		ns.SetNFT(f.in("table ip filter {\n chain FORWARD { type filter hook forward priority filter; policy drop; ct state established,related accept; }\n}\n"))
		r, err := m.Sync(context.Background(), f.single())
		if err != nil || !slices.ContainsFunc(r.Problems, func(p string) bool {
			return strings.Contains(p, f.in("nft insert rule ip filter FORWARD ip daddr 10.244.0.0/16 accept"))
		}) {
			t.Errorf("problems %q, %v", r.Problems, err)
		}
		if !strings.Contains(ns.NFT(), "masquerade") {
			t.Errorf("our own rules were not made:\n%s", ns.NFT())
		}
	})
}
