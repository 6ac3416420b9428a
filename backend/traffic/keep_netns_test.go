package traffic

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	stdsync "sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

const (
	pollEvery = 15 * time.Second
	// patience is less than pollEvery, so that only an event can have caused a repair within it. How long repairs take is
	// measured by the fault bench (tests/reliability); a busy machine must not fail this test.
	patience = 10 * time.Second
)

// keep runs a Manager as the daemon does: a Loop that its Watch pokes. It returns a function that tells whether the rules
// are as wanted now, asked of a Manager of its own.
func keep(t *testing.T, ns *nstest.NS, c Config) (right func() error) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	m := manager(ns)
	loop := &backend.Loop{Name: "traffic", Resync: pollEvery, Sync: func(ctx context.Context) error {
		_, err := m.Sync(ctx, c)
		return err
	}}
	var wg stdsync.WaitGroup
	wg.Go(func() {
		for range m.Watch(ctx) {
			loop.Poke()
		}
	})
	wg.Go(func() { _ = loop.Run(ctx) })
	t.Cleanup(func() { cancel(); wg.Wait() })
	look := manager(ns)
	right = func() error { // as Check, without what cannot change meanwhile: a slow look would count as a slow repair
		p := look.survey(ctx, c, scope{})
		if len(p.table.texts)+len(p.actions)+len(p.errs) > 0 {
			return fmt.Errorf("%v, %d actions, %w", p.table.texts, len(p.actions), errors.Join(p.errs...))
		}
		return nil
	}
	nstest.Eventually(t, 20*time.Second, right)
	nstest.Eventually(t, 20*time.Second, func() error { return listened(ns) })
	return right
}

// differs is an error that names what Check finds.
func differs(ns *nstest.NS, c Config) error {
	texts, err := manager(ns).Check(context.Background(), c)
	if err != nil || len(texts) > 0 {
		return fmt.Errorf("%v %w", texts, err)
	}
	return nil
}

// listened is nil once somebody listens to nftables events in the namespace: the socket shows in its own /proc.
func listened(ns *nstest.NS) error {
	return ns.Do(func() error {
		text, err := os.ReadFile("/proc/thread-self/net/netlink")
		if err != nil {
			return err
		}
		for line := range strings.Lines(string(text)) {
			// sk Eth Pid Groups ...: protocol 12 is netfilter, and who listens is a member of groups.
			if f := strings.Fields(line); len(f) > 3 && f[1] == "12" && f[3] != "00000000" {
				return nil
			}
		}
		return errors.New("nobody listens yet")
	})
}

func TestM03RulesWipedBySomebodyElseAreBackWithinASecond(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		c := f.single()
		c.Mixed, c.AntiSpoof = []uint16{8472}, true
		c.Peers = []netip.AddrPort{f.at("192.168.50.2:8472")}
		c.Exclude = []netip.Prefix{f.prefix("192.0.2.0/24")}
		ns := nstest.New(t)
		ns.Run(f.in("iptables-nft"), "-P", "FORWARD", "DROP")
		ns.Run(f.in("iptables-legacy"), "-w", "-A", "FORWARD", "-j", "REJECT")
		right := keep(t, ns, c)
		wipes := [][]string{
			{f.in("iptables-nft"), "-F"},
			{f.in("iptables-nft"), "-t", "nat", "-F"},
			{f.in("iptables-legacy"), "-w", "-D", "FORWARD", "1"},
			{f.in("iptables-legacy"), "-w", "-F", chainName},
			{"nft", "delete", "table", "inet", "weft"},
			{"nft", "flush", "table", "inet", "weft"},
			{"nft", "insert", "rule", "inet", "weft", "postrouting", "accept"},
			{"nft", "add", "rule", "inet", "weft", "postrouting", families()[f.Family].Proto, "saddr", f.in("10.244.0.0/16"), "masquerade"},
			{"nft", "flush", "chain", "inet", "weft", "inbound"},
			{"nft", "delete", "element", "inet", "weft", f.in("peers-ipv4"), "{ " + f.in("192.168.50.2") + " }"},
			{"nft", "delete", "element", "inet", "weft", f.in("tunnels-ipv4"), "{ " + f.in("192.168.50.2") + " . 8472 }"},
			{"nft", "add", "element", "inet", "weft", f.in("tunnels-ipv4"), "{ " + f.in("192.168.50.2") + " . 53 }"},
			{"nft", "add", "element", "inet", "weft", f.in("exclude-ipv4"), f.in("{ 10.0.0.0/8 }")},
			{"nft", "add", "element", "inet", "weft", f.in("exclude-ipv4"), f.in("{ 10.0.0.1-10.0.0.7 }")},
			{"nft", "add", "set", "inet", "weft", "extra", "{ type ipv4_addr; }"},
			{"nft", "add", "chain", "inet", "weft", "extra"},
			{"nft", "add", "table", "inet", "weft", "{ flags dormant; }"},
		}
		for _, wipe := range wipes {
			ns.Run(wipe...)
			if wipe[0] != f.in("iptables-nft") || wipe[1] == "-F" { // the nat table has nothing of ours
				if right() == nil {
					t.Logf("%v: repaired before the test could look, or not noticed by Check", wipe)
				}
			}
			took := nstest.Eventually(t, patience, right)
			t.Logf("%s: back after %v", strings.Join(wipe, " "), took.Round(time.Millisecond))
		}
		// The whole ruleset takes FORWARD's policy with it; then there is nothing to open there any more.
		ns.Run("nft", "flush", "ruleset")
		took := nstest.Eventually(t, patience, right)
		t.Logf("nft flush ruleset: back after %v", took.Round(time.Millisecond))
		if !strings.Contains(ns.NFT(), "masquerade fully-random") {
			t.Errorf("no masquerade rule:\n%s", ns.NFT())
		}
	})
}

// The kernel decides on translation once for each connection: one that began in the gap would go out with its pod's address for as
// long as somebody sends.
func TestM03AFlowThatBeganWhileTheRulesWereAwayIsTranslatedOnceTheyAreBack(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		w := newWorld(t)
		// Somebody else translates, as kube-proxy does: so connections are tracked, and decided on, while ours are away.
		w.node[0].SetNFT("table inet others { chain c { type nat hook postrouting priority 110; meta mark 0x4000 masquerade; }; }\n")
		m := manager(w.node[0])
		sync(t, m, nodeConfig(1))
		silent := netip.AddrPortFrom(addrs(f.Family)["outside"], 7010)
		if err := w.outside.Do(func() error { // nobody answers, and nobody complains
			conn, err := net.ListenUDP("udp", net.UDPAddrFromAddrPort(silent))
			if err == nil {
				t.Cleanup(func() { conn.Close() })
			}
			return err
		}); err != nil {
			t.Fatal(err)
		}
		capture := w.outside.Capture("eth0")
		conn, err := w.pods["pod-a"].Dial("udp", silent, time.Second)
		if err != nil {
			t.Fatal(err)
		}
		defer conn.Close()
		sendsAs := func(place string) func() error {
			return func() error {
				_, _ = conn.Write([]byte("log"))
				from := addrs(f.Family)[place]
				if capture.Count(func(frame []byte) bool { return port(frame) == silent.Port() && source(frame) == from }) == 0 {
					return fmt.Errorf("no packet of the flow comes from %s", from)
				}
				return nil
			}
		}
		w.node[0].Run("nft", "delete", "table", "inet", TableName)
		nstest.Eventually(t, 20*time.Second, sendsAs("pod-a"))
		sync(t, m, nodeConfig(1))
		nstest.Eventually(t, 20*time.Second, sendsAs("node"))
	})
}

func TestADormantOrForeignTableIsNoticedByCheck(t *testing.T) {
	ns := nstest.New(t)
	c := single()
	for _, spoil := range [][]string{
		{"nft", "add", "table", "inet", "weft", "{ flags dormant; }"},
		{"nft", "insert", "rule", "inet", "weft", "postrouting", "accept"},
		{"nft", "add", "map", "inet", "weft", "m", "{ type ipv4_addr : verdict; }"},
		{"nft", "delete", "chain", "inet", "weft", "outbound"},
	} {
		sync(t, manager(ns), c)
		if err := differs(ns, c); err != nil {
			t.Fatal(err)
		}
		ns.Run("nft", "flush", "chain", "inet", "weft", "outbound") // so that it can be deleted
		sync(t, manager(ns), c)
		if spoil[1] == "delete" {
			ns.Run("nft", "flush", "chain", "inet", "weft", "outbound")
		}
		ns.Run(spoil...)
		if err := differs(ns, c); err == nil {
			t.Errorf("%v: not noticed", spoil)
		}
	}
}

func TestM02NoPacketLeavesWithAPodsAddressWhileTheAgentRestarts(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		w := newWorld(t)
		c := nodeConfig(1)
		sync(t, manager(w.node[0]), c)
		sync(t, manager(w.node[1]), nodeConfig(2))
		capture := w.outside.Capture("eth0")
		var stop atomic.Bool
		var wg stdsync.WaitGroup
		var flows atomic.Int64
		wg.Go(func() {
			for !stop.Load() { // each datagram is a flow of its own
				if _, err := seen(w.pods["pod-a"], netip.Addr{}, netip.AddrPortFrom(addrs(f.Family)["outside"], echoPort)); err == nil {
					flows.Add(1)
				}
			}
		})
		restarts := 0
		start := time.Now()
		enough := func() bool { return time.Since(start) > 3*time.Second && restarts >= 5 && flows.Load() >= 20 }
		for ; !enough() && time.Since(start) < time.Minute; restarts++ {
			m := manager(w.node[0]) // a new daemon, which writes nothing when all is right,
			sync(t, m, c)
			c.RandomFully = !c.RandomFully // and one of another version, which writes all of it
			sync(t, m, c)
		}
		stop.Store(true)
		wg.Wait()
		pods := f.prefix("10.244.0.0/16")
		if n := capture.Count(func(frame []byte) bool { return pods.Contains(source(frame)) }); n > 0 {
			t.Errorf("%d packets left with a pod's source", n)
		}
		t.Logf("%d restarts with a rewrite each, %d flows", restarts, flows.Load())
		if !enough() {
			t.Errorf("only %d flows and %d restarts: the test shows nothing", flows.Load(), restarts)
		}
	})
}

// forks counts the programs that a Manager runs.
type forks struct {
	mu   stdsync.Mutex // guards runs
	runs []string
}

func (f *forks) note(argv []string) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.runs = append(f.runs, strings.Join(argv, " "))
}

// take returns what ran since the last take.
func (f *forks) take() []string {
	f.mu.Lock()
	defer f.mu.Unlock()
	runs := f.runs
	f.runs = nil
	return runs
}

func TestM06AQuietPeriodIsOneReadPerTableAndNoWrite(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		var ran forks
		m := New(Options{NetNS: ns.Path(), OnExec: ran.note})
		// 20,000 rules of kube-proxy's, in nat, which we have no business with.
		var rules strings.Builder
		rules.WriteString("*nat\n:KUBE-SERVICES - [0:0]\n")
		for i := range 20000 {
			rules.WriteString(f.in(fmt.Sprintf("-A KUBE-SERVICES -d 10.96.%d.%d/32 -p tcp -m tcp --dport 80 -j RETURN\n", i/256, i%256)))
		}
		rules.WriteString("COMMIT\n")
		if _, err := ns.Input(rules.String(), f.in("iptables-nft-restore")); err != nil {
			t.Fatal(err)
		}
		ns.Run(f.in("iptables-nft"), "-P", "FORWARD", "DROP")
		sync(t, m, f.single())
		ran.take()
		for range 3 {
			start := time.Now()
			if r := sync(t, m, f.single()); len(r.Changes) > 0 {
				t.Errorf("a quiet period changed %v", r.Changes)
			}
			want := []string{f.in("iptables-nft -S -t filter"), "nft -j list table inet weft"}
			if got := ran.take(); !slices.Equal(got, want) {
				t.Errorf("a quiet period ran %q, want %q", got, want)
			}
			t.Logf("a quiet period took %v", time.Since(start).Round(time.Millisecond))
		}
	})
}

func TestM06AHeldLockDelaysOnlyTheLegacyRulesAndIsWaitedForWithABound(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f words) {
		ns := nstest.New(t)
		ns.Run(f.in("iptables-legacy"), "-w", "-P", "FORWARD", "DROP")
		lock := filepath.Join(t.TempDir(), "xtables.lock")
		t.Setenv("XTABLES_LOCKFILE", lock) // a lock of this test's own: the machine's is shared
		held, err := os.OpenFile(lock, os.O_CREATE, 0o600)
		if err != nil {
			t.Fatal(err)
		}
		defer held.Close()
		if err := unix.Flock(int(held.Fd()), unix.LOCK_EX|unix.LOCK_NB); err != nil {
			t.Fatal(err)
		}
		m := manager(ns)
		start := time.Now()
		if _, err = m.Sync(context.Background(), f.single()); err == nil || !strings.Contains(err.Error(), "xtables lock") {
			t.Fatalf("want the lock named, got %v", err)
		}
		if took := time.Since(start); took > 20*time.Second {
			t.Errorf("the wait has no bound: %v", took)
		}
		if !strings.Contains(ns.NFT(), "masquerade fully-random") {
			t.Error("the nft rules waited for a lock that is not theirs")
		}
		held.Close()
		sync(t, m, f.single())
		if err := differs(ns, f.single()); err != nil {
			t.Error(err)
		}
	})
}

func TestM08TheSourcePortIsKeptWhenRandomisingIsOff(t *testing.T) {
	t.Parallel()
	inEachFamily(t, func(t *testing.T, f words) {
		const flows = 500
		w := newWorld(t)
		c := nodeConfig(1)
		m := manager(w.node[0])
		for _, random := range []bool{false, true} {
			c.RandomFully = random
			sync(t, m, c)
			kept := w.manyFlows(f.Family, flows)
			t.Logf("random-fully %v: %d of %d flows kept their port", random, kept, flows)
			if !random && kept != flows {
				t.Errorf("random-fully off: only %d of %d flows kept their port", kept, flows)
			}
			if random && kept > flows/10 {
				t.Errorf("random-fully on: %d of %d flows kept their port", kept, flows)
			}
		}
		// nft's own statistics have no word about it, but a clash would show as insert_failed of a CPU.
		if text, err := exec.LookPath("conntrack"); err == nil {
			for line := range strings.Lines(w.node[0].Run(text, "-S")) {
				if strings.Contains(line, "insert_failed=") && !strings.Contains(line, "insert_failed=0 ") {
					t.Errorf("flows were lost to a port clash: %s", line)
				}
			}
		}
	})
}

// manyFlows opens n flows from one pod to one address outside at once and counts those that arrive with their own port.
func (w *world) manyFlows(f subnet.Family, n int) int {
	w.t.Helper()
	conns := make([]net.Conn, n)
	for i := range conns {
		var err error
		if conns[i], err = w.pods["pod-a"].Dial("udp", netip.AddrPortFrom(addrs(f)["outside"], echoPort), time.Second); err != nil {
			w.t.Fatal(err)
		}
	}
	var kept atomic.Int32
	var wg stdsync.WaitGroup
	for _, c := range conns {
		wg.Go(func() {
			buf := make([]byte, 100)
			for end := time.Now().Add(time.Minute); time.Now().Before(end); {
				_ = c.SetDeadline(time.Now().Add(500 * time.Millisecond))
				_, _ = c.Write([]byte("x"))
				if size, err := c.Read(buf); err == nil {
					text, _, _ := strings.Cut(string(buf[:size]), " ")
					if at, err := netip.ParseAddrPort(text); err == nil && int(at.Port()) == c.LocalAddr().(*net.UDPAddr).Port {
						kept.Add(1)
					}
					return
				}
			}
			w.t.Error("a flow got no answer")
		})
	}
	wg.Wait()
	return int(kept.Load())
}

// port is the UDP destination port of a captured frame; 0 for everything else.
func port(frame []byte) uint16 {
	header, proto := 20, 23
	if source(frame).Is6() {
		header, proto = 40, 20
	}
	if !source(frame).IsValid() || len(frame) < 14+header+4 || frame[proto] != unix.IPPROTO_UDP {
		return 0
	}
	return binary.BigEndian.Uint16(frame[14+header+2:])
}
