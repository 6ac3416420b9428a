package gate_test

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/gate"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/tests/nstest"
)

// node is a gate in a namespace.
type node struct {
	*testing.T
	ns   *nstest.NS
	file string // subnet.env
	gate *gate.Gate
	stop func()
}

func newNode(t *testing.T) *node {
	t.Helper()
	n := &node{T: t, ns: nstest.New(t), file: filepath.Join(t.TempDir(), "subnet.env")}
	n.start()
	return n
}

// start is the agent's start.
func (n *node) start() {
	n.Helper()
	n.gate = gate.New(gate.Config{SubnetFile: n.file, NetNS: n.ns.Path(), Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() { defer close(done); _ = n.gate.Run(ctx) }()
	n.stop = func() { cancel(); <-done }
	n.Cleanup(func() { n.stop() })
	select {
	case <-n.gate.Ready():
	case <-time.After(20 * time.Second):
		n.Fatal("the notes are not read")
	}
	_, socket := attach.Paths(n.file)
	n.until("the agent listens", func() bool {
		c, err := net.Dial("unix", socket)
		return err == nil && c.Close() == nil
	})
}

func (n *node) must(err error) {
	n.Helper()
	if err != nil {
		n.Fatal(err)
	}
}

func (n *node) shut(shut bool)        { n.Helper(); n.must(n.gate.Shut(n.Context(), shut)) }
func (n *node) judged(w policy.World) { n.Helper(); n.must(n.gate.Judged(n.Context(), w)) }

// plugin does what the CNI plugin does before it asks.
func (n *node) plugin(note attach.Note) {
	n.Helper()
	notes, _ := attach.Paths(n.file)
	if there, err := notes.Write(note); !there || err != nil {
		n.Fatalf("%t, %v", there, err)
	}
	n.must(n.ns.Do(func() error { _, err := attach.Hold(note.Addrs); return err }))
}

// ask is the plugin's question; the answer comes on the channel.
func (n *node) ask(note attach.Note) <-chan error {
	_, socket := attach.Paths(n.file)
	answer := make(chan error, 1)
	go func() { answer <- attach.Ask(context.Background(), socket, note) }()
	return answer
}

// answered waits for a good answer. A machine can be so busy that the plugin's patience ends first; then it asks again.
func (n *node) answered(answer <-chan error, note attach.Note, w policy.World) {
	n.Helper()
	for end := time.Now().Add(30 * time.Second); time.Now().Before(end); {
		select {
		case err := <-answer:
			if err == nil {
				return
			}
			if !errors.Is(err, context.DeadlineExceeded) {
				n.Fatal(err)
			}
			answer = n.ask(note)
		case <-time.After(10 * time.Millisecond):
			n.judged(w)
		}
	}
	n.Fatal("no answer")
}

// set lists what is held or free.
func (n *node) set(name string) string {
	n.Helper()
	text := n.ns.Run("nft", "list", "set", "inet", attach.TableName, name)
	_, after, found := strings.Cut(text, "elements = {")
	if !found {
		return ""
	}
	in, _, _ := strings.Cut(after, "}")
	return strings.Join(strings.Fields(in), " ")
}

func (n *node) until(what string, ok func() bool) {
	n.Helper()
	nstest.Eventually(n.T, 20*time.Second, func() error {
		if !ok() {
			return errors.New(what)
		}
		return nil
	})
}

func (n *node) knows(names ...string) {
	n.Helper()
	n.until(fmt.Sprintf("knows %v", names), func() bool {
		var got []string
		for _, note := range n.gate.Notes() {
			got = append(got, note.Pod)
		}
		return strings.Join(got, " ") == strings.Join(names, " ")
	})
}

func note(pod string, addrs ...string) attach.Note {
	out := attach.Note{ContainerID: "c-" + pod, IfName: "eth0", Namespace: "x", Pod: pod, UID: "uid-" + pod, At: 1}
	for _, a := range addrs {
		out.Addrs = append(out.Addrs, netip.MustParseAddr(a))
	}
	return out
}

// worldOf has the pods of notes.
func worldOf(notes ...attach.Note) (w policy.World) {
	for _, n := range notes {
		p := &policy.Pod{Namespace: n.Namespace, Name: n.Pod, UID: n.UID, Local: true}
		for _, a := range n.Addrs {
			p.Addrs[subnet.FamilyOf(a)] = a
		}
		w.Pods = append(w.Pods, p)
	}
	return w
}

func TestAPodIsAnsweredWhenItsPoliciesAreInTheKernel(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	one := note("a", "10.244.1.2", "fd00::2")
	n.plugin(one)
	answer := n.ask(one)
	n.knows("a")
	n.judged(policy.World{}) // one that was made before
	select {
	case err := <-answer:
		if !errors.Is(err, context.DeadlineExceeded) {
			t.Fatalf("answered: %v", err)
		}
		answer = n.ask(one)
	default:
	}
	if got := n.set("held-ipv4") + n.set("held-ipv6") + n.set("free-ipv4"); got != "10.244.1.2fd00::2" {
		t.Errorf("held %q", got)
	}
	n.judged(worldOf(one))
	n.answered(answer, one, worldOf(one))
	n.until("both sets are tidied", func() bool {
		return n.set("held-ipv4")+n.set("held-ipv6")+n.set("free-ipv4")+n.set("free-ipv6") == ""
	})
}

func TestAnAddressWhosePodIsNotKnownIsLetGoToTheGatedSetAndNotAnswered(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	one := note("a", "10.244.1.2")
	n.plugin(one)
	answer := n.ask(one)
	n.knows("a")
	n.judged(policy.World{Gated: one.Addrs})
	n.until("let go", func() bool { return n.set("held-ipv4") == "" })
	if err := <-answer; !errors.Is(err, attach.ErrNotJudged) {
		t.Errorf("answered: %v", err)
	}
	n.judged(worldOf(one))
}

func TestWithoutPoliciesEverybodyIsAnsweredAtOnce(t *testing.T) {
	n := newNode(t)
	n.answered(n.ask(note("a", "10.244.1.2")), note("a", "10.244.1.2"), policy.World{})
	n.shut(true)
	one := note("b", "10.244.1.3")
	n.plugin(one)
	answer := n.ask(one)
	n.knows("b")
	n.shut(false)
	n.answered(answer, one, policy.World{})
	if text := n.ns.NFT(); strings.Contains(text, attach.TableName) {
		t.Errorf("left:\n%s", text)
	}
	n.shut(false)
}

func TestAPodThatWasHeldWithoutAnAgentIsJudgedWhenOneComes(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	n.judged(policy.World{})
	n.stop()
	one, gone := note("a", "10.244.1.2"), note("gone", "10.244.1.9")
	n.plugin(one)
	n.plugin(gone)
	notes, _ := attach.Paths(n.file)
	_, err := notes.Remove(gone.ContainerID, gone.IfName)
	n.must(err)
	n.start()
	n.knows("a")
	n.shut(true)
	n.judged(worldOf(one))
	n.until("nothing is held, of the pod that went neither", func() bool { return n.set("held-ipv4")+n.set("free-ipv4") == "" })
}

func TestNotesComeAndGo(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	notes, _ := attach.Paths(n.file)
	for range 3 {
		n.plugin(note("a", "10.244.1.2"))
		n.plugin(note("b", "10.244.1.3"))
		n.knows("a", "b")
		_, err := notes.Remove("c-a", "eth0")
		n.must(err)
		n.knows("b")
	}
	n.must(os.RemoveAll(notes.Dir)) // by somebody who tidies /run
	n.knows()
	n.until("the folder is made anew", func() bool { _, err := os.Stat(notes.Dir); return err == nil })
	n.plugin(note("c", "10.244.1.4"))
	n.knows("c")
}

func TestWhatSomebodyElseTakesAwayComesBack(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	want := n.ns.NFT()
	one := note("a", "10.244.1.2")
	n.plugin(one)
	n.knows("a")
	for _, how := range []string{"flush ruleset", "delete table inet weft-gate"} {
		n.ns.SetNFT(how)
		n.shut(true)
		if got := n.set("held-ipv4"); got != "10.244.1.2" {
			t.Errorf("%s: held %q", how, got)
		}
	}
	for _, how := range []string{"flush chain inet weft-gate forward", "delete chain inet weft-gate forward"} {
		n.ns.SetNFT(how)
		n.until(how+" is repaired, and nobody is let go", func() bool {
			n.shut(true)
			return strings.Count(n.ns.NFT(), "drop") == strings.Count(want, "drop") && n.set("held-ipv4") == "10.244.1.2"
		})
	}
	n.judged(worldOf(one))
	n.until("let go", func() bool { return n.set("held-ipv4") == "" })
	n.ns.SetNFT("flush ruleset")
	n.shut(true)
	if got := n.set("held-ipv4"); got != "" {
		t.Errorf("held again although it is judged: %q", got)
	}
}

func TestAShutGateThatIsAsItShouldBeIsNotWritten(t *testing.T) {
	n := newNode(t)
	writes := 0
	g := gate.New(gate.Config{SubnetFile: n.file, NetNS: n.ns.Path(), Log: slog.New(slog.DiscardHandler), Wrap: func(i knftables.Interface) knftables.Interface {
		return counting{i, &writes}
	}})
	for range 5 {
		n.must(g.Shut(t.Context(), true))
	}
	if writes != 1 {
		t.Errorf("written %d times", writes)
	}
	n.must(g.Remove(t.Context()))
	notes, socket := attach.Paths(n.file)
	for _, path := range []string{notes.Dir, socket} {
		if _, err := os.Stat(path); path == notes.Dir && err == nil {
			t.Errorf("%s is left", path)
		}
	}
}

type counting struct {
	knftables.Interface
	writes *int
}

func (c counting) Run(ctx context.Context, tx *knftables.Transaction) error {
	*c.writes++
	return c.Interface.Run(ctx, tx)
}

// Held means that nothing comes through to the pod and nothing from it, on the node's bridge and through it, and that
// neighbours are found all the same.
func TestPacketsOfHeldAddressesAreDropped(t *testing.T) {
	n := newNode(t)
	pod := n.ns.Pod(1500, netip.MustParsePrefix("10.244.1.2/24"), netip.MustParsePrefix("fd00:244:1::2/64"))
	other := nstest.New(t)
	nstest.Veth(t, n.ns, "out", other, "eth0")
	for _, l := range []struct {
		at   *nstest.NS
		args string
	}{
		{n.ns, "addr add 10.9.0.1/24 dev out"}, {n.ns, "addr add fd09::1/64 dev out nodad"}, {n.ns, "link set out up"},
		{other, "addr add 10.9.0.2/24 dev eth0"}, {other, "addr add fd09::2/64 dev eth0 nodad"}, {other, "link set eth0 up"},
		{other, "route add 10.244.0.0/16 via 10.9.0.1"}, {other, "-6 route add fd00:244::/32 via fd09::1"},
	} {
		l.at.IP(l.args)
	}
	for _, s := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding"} {
		n.ns.SetSysctl(s, "1")
	}
	reach := func(want bool) {
		t.Helper()
		for _, c := range []struct {
			from *nstest.NS
			to   string
		}{{other, "10.244.1.2"}, {other, "fd00:244:1::2"}, {pod, "10.9.0.2"}, {pod, "fd09::2"}} {
			to := netip.MustParseAddr(c.to)
			if want {
				n.until("reach "+c.to, func() bool { return c.from.CanPing(to) == nil })
			} else if c.from.CanPing(to) == nil {
				t.Errorf("%s is reached", to)
			}
		}
		for _, a := range []string{"10.244.1.2", "fd00:244:1::2"} { // the own node always
			n.must(n.ns.CanPing(netip.MustParseAddr(a)))
		}
	}
	reach(true)
	n.shut(true)
	reach(true)
	one := note("a", "10.244.1.2", "fd00:244:1::2")
	n.plugin(one)
	reach(false)
	n.knows("a")
	n.judged(worldOf(one))
	reach(true)
}

func TestAnAgentThatHasJustStartedAnswersNobodyBeforeItHasLookedForPolicies(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	n.stop()
	n.start()
	a := note("web", "10.244.1.2")
	n.plugin(a)
	n.knows("web")
	if err := <-n.ask(a); !errors.Is(err, attach.ErrNotJudged) {
		t.Fatalf("answered %v by an agent that does not know", err)
	}
	n.shut(true)
	n.answered(n.ask(a), a, worldOf(a))
}

func TestATableThatSomebodyChangedIsToldAndRepaired(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	poked := n.gate.Watch(t.Context())
	whole := n.ns.Run("nft", "--stateless", "list", "table", "inet", attach.TableName)
	for _, hurt := range []string{"flush table inet weft-gate", "delete table inet weft-gate", "flush ruleset"} {
		n.ns.Run(append([]string{"nft"}, strings.Fields(hurt)...)...)
		n.until(hurt, func() bool {
			select {
			case <-poked:
				n.shut(true)
			default:
			}
			text, _ := n.ns.Try("nft", "--stateless", "list", "table", "inet", attach.TableName)
			return text == whole
		})
	}
}

func TestAQuestionThatComesAfterTheVerdictIsAnsweredAtOnce(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	a := note("web", "10.244.1.2")
	n.plugin(a)
	n.knows("web")
	n.judged(worldOf(a))
	if err := <-n.ask(a); err != nil { // nobody judges once more: nothing has changed
		t.Errorf("answered: %v", err)
	}
}

// reading counts the runs of nft that read rules.
type reading struct {
	knftables.Interface
	lists *atomic.Int32
}

func (c reading) ListRules(ctx context.Context, chain string) ([]*knftables.Rule, error) {
	c.lists.Add(1)
	return c.Interface.ListRules(ctx, chain)
}

// A pod waits for the round that lets it in, so a round runs nft for nothing but what it has to write.
func TestWhileChangesAreHeardTheRulesAreNotReadForEveryPod(t *testing.T) {
	ns, lists := nstest.New(t), &atomic.Int32{}
	g := gate.New(gate.Config{
		SubnetFile: filepath.Join(t.TempDir(), "subnet.env"), NetNS: ns.Path(), Log: slog.New(slog.DiscardHandler),
		Wrap: func(i knftables.Interface) knftables.Interface { return reading{i, lists} },
	})
	heard := g.Watch(t.Context())
	shut := func() {
		t.Helper()
		if err := g.Shut(t.Context(), true); err != nil {
			t.Fatal(err)
		}
	}
	shut()
	<-heard // that it listens, or what was just written
	quiet := func() bool {
		before := lists.Load()
		shut()
		return lists.Load() == before
	}
	nstest.Eventually(t, 20*time.Second, func() error {
		for range 5 {
			if !quiet() {
				return errors.New("the rules are read")
			}
		}
		return nil
	})
	before := lists.Load()
	for end := time.Now().Add(1500 * time.Millisecond); time.Now().Before(end); time.Sleep(20 * time.Millisecond) {
		shut()
	}
	if n := lists.Load() - before; n > 0 {
		t.Errorf("the rules were read %d times though nobody changed them", n)
	}
	ns.Run("nft", "flush", "chain", "inet", attach.TableName, "forward")
	nstest.Eventually(t, 20*time.Second, func() error {
		shut()
		if out := ns.Run("nft", "list", "table", "inet", attach.TableName); !strings.Contains(out, "drop") {
			return errors.New("the rules are gone")
		}
		return nil
	})
}
