package gate_test

import (
	"context"
	"fmt"
	"log/slog"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/gate"
	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/tests/nstest"
)

// An address of a full range is the next pod's within milliseconds, and the World may be of before.
func TestN01APodIsNotLetGoForAnEarlierOneOfItsAddress(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	one := note("b", "10.244.1.2", "fd00::2")
	n.plugin(one)
	n.knows("b")
	earlier, sameName := note("a", "10.244.1.2", "fd00::2"), one
	sameName.UID = "of-the-last-one" // a StatefulSet's
	for _, w := range []policy.World{worldOf(earlier), worldOf(sameName), worldOf(note("a", "10.244.1.2"), note("c", "fd00::2"))} {
		n.judged(w)
		if got := n.set("held-ipv4") + n.set("held-ipv6") + n.set("free-ipv4") + n.set("free-ipv6"); got != "10.244.1.2fd00::2" {
			t.Fatalf("let go for another: %q", got)
		}
	}
	n.answered(n.ask(one), one, worldOf(earlier, one))
	n.until("it is let go", func() bool { return n.set("held-ipv4")+n.set("held-ipv6") == "" })
}

// The plugin holds a moment after its note, and the agent may have judged the pod by then.
func TestN03APodThatIsHeldAfterItWasJudgedIsLetGoWhenThePluginAsks(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	notes, _ := attach.Paths(n.file)
	for i, one := range []attach.Note{note("a", "10.244.1.2", "fd00::2"), note("b", "10.244.1.3")} {
		_, err := notes.Write(one)
		n.must(err)
		n.until("the note is known", func() bool { return len(n.gate.Notes()) == i+1 })
		if i == 0 {
			n.judged(worldOf(one))
		} else {
			n.judged(policy.World{Gated: one.Addrs}) // let go, and not judged
		}
		n.until("it is let go", func() bool { return n.set("held-ipv4")+n.set("free-ipv4")+n.set("held-ipv6")+n.set("free-ipv6") == "" })
		n.must(n.ns.Do(func() error { _, err := attach.Hold(one.Addrs); return err }))
		if n.set("held-ipv4") == "" {
			t.Fatal("it is not held: nothing is shown")
		}
		n.answered(n.ask(one), one, worldOf(one))
		n.until("it is let go again", func() bool { return n.set("held-ipv4")+n.set("held-ipv6") == "" })
	}
}

// slowList is nftables with something that happens while sets are listed.
type slowList struct {
	knftables.Interface
	meanwhile func()
}

func (s slowList) ListElements(ctx context.Context, kind, name string) ([]*knftables.Element, error) {
	out, err := s.Interface.ListElements(ctx, kind, name)
	if name == attach.HeldSet(0) {
		s.meanwhile()
	}
	return out, err
}

// An agent that starts lists what is held, and a pod may come right then.
func TestN19APodThatComesWhileAnAgentStartsIsLetGo(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	n.stop()
	one := note("a", "10.244.1.2")
	one.At = time.Now().UnixNano()
	came := false
	g := gate.New(gate.Config{SubnetFile: n.file, NetNS: n.ns.Path(), Log: slog.New(slog.DiscardHandler), Wrap: func(i knftables.Interface) knftables.Interface {
		return slowList{i, func() {
			if came {
				return
			}
			came = true
			n.plugin(one)
			n.knows("a")
		}}
	}})
	n.gate = g
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() { defer close(done); _ = g.Run(ctx) }()
	defer func() { cancel(); <-done }()
	<-g.Ready()
	n.shut(true)
	n.judged(policy.World{})
	if got := n.set("held-ipv4"); !came || got != "10.244.1.2" {
		t.Fatalf("held %q: nothing is shown", got)
	}
	n.judged(worldOf(one))
	n.until("it is let go", func() bool { return n.set("held-ipv4") == "" })
}

// Left over are addresses of which there is no note, and not those of which the agent has not read it.
func TestN19APodWhoseNoteWasNotReadYetIsNotTakenForALeftOver(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	n.stop() // it has read what there was, and reads no more
	n.plugin(note("a", "10.244.1.2", "fd00::2"))
	n.judged(policy.World{})
	if got := n.set("held-ipv4") + n.set("held-ipv6") + n.set("free-ipv4"); got != "10.244.1.2fd00::2" {
		t.Errorf("held and free: %q", got)
	}
}

// A flush takes along whom the plugin held a moment ago, and of whom the agent does not know yet.
func TestN18AFlushLetsNobodyGoWhoseNoteWasNotReadYet(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	n.stop()
	g := gate.New(gate.Config{SubnetFile: n.file, NetNS: n.ns.Path(), Log: slog.New(slog.DiscardHandler)}) // reads notes for nobody
	n.gate = g
	n.shut(true)
	n.plugin(note("a", "10.244.1.2", "fd00::2"))
	n.ns.SetNFT("flush ruleset")
	n.shut(true)
	if got := n.set("held-ipv4") + n.set("held-ipv6"); got != "10.244.1.2fd00::2" {
		t.Errorf("held %q", got)
	}
}

// tracked lists the connections of an address that the node tracks.
func (n *node) tracked(a netip.Addr) []netfilter.Connection {
	n.Helper()
	list, err := netfilter.Host{NetNS: n.ns.Path()}.Connections(func(c netfilter.Connection) bool { return c.Original.Dst == a })
	n.must(err)
	return list
}

// stranger makes connections with an address that nobody has.
func (n *node) stranger(addr string) (begin func()) {
	n.Helper()
	nstest.Veth(n.T, n.ns, "out", nstest.New(n.T), "eth0")
	n.ns.IP("addr add 10.9.0.1/24 dev out")
	n.ns.IP("route add 10.244.1.0/24 via 10.9.0.2")
	n.ns.SetNFT("table inet tracking { chain out { type filter hook output priority 0; ct state new counter; }; }")
	var conn net.Conn
	n.must(n.ns.Do(func() (err error) { conn, err = net.Dial("udp", addr+":7777"); return err }))
	n.Cleanup(func() { _ = conn.Close() })
	return func() {
		n.Helper()
		_, err := conn.Write([]byte("are you there"))
		n.must(err)
		n.until("it is tracked", func() bool { return len(n.tracked(netip.MustParseAddr(addr))) > 0 })
	}
}

// Somebody outside may send to an address from before the pod is there until after, and what is tracked of it then lets the pod answer
// whatever its policies say. The look for such connections counts only if none can begin after it.
func TestN03AConnectionThatBeginsBetweenNoteAndHoldIsEnded(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	n.judged(policy.World{}) // what an earlier agent left has been looked through
	begin := n.stranger("10.244.1.2")
	one := note("a", "10.244.1.2")
	one.Held = true
	begin()
	notes, _ := attach.Paths(n.file)
	_, err := notes.Write(one)
	n.must(err)
	n.until("the first look is over", func() bool { return len(n.tracked(one.Addrs[0])) == 0 })
	begin()
	n.must(n.ns.Do(func() error { _, err := attach.Hold(one.Addrs); return err }))
	if !n.gate.Held(one.Addrs[0]) {
		t.Error("the policies' own look is not spared")
	}
	n.judged(worldOf(one))
	n.until("it is let go", func() bool { return n.set("held-ipv4") == "" })
	if left := n.tracked(one.Addrs[0]); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
	if n.gate.Held(one.Addrs[0]) {
		t.Error("held although it was let go")
	}
}

// A pod that is attached anew by a plugin that finds no policies, or by an older one that does not say that it holds, is none of those
// whose connections the gate ends.
func TestAPodThatIsAttachedAnewWithoutAHoldIsNotTakenForHeld(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	n.judged(policy.World{})
	one := note("a", "10.244.1.2")
	one.Held = true
	n.plugin(one)
	n.until("it is held", func() bool { return n.gate.Held(one.Addrs[0]) })
	again := one
	again.Held, again.At = false, one.At+1
	n.plugin(again)
	n.until("it is not taken for held", func() bool { return !n.gate.Held(one.Addrs[0]) })
	n.plugin(one)
	n.until("it is held again", func() bool { return n.gate.Held(one.Addrs[0]) })
	notes, _ := attach.Paths(n.file)
	_, err := notes.Remove(one.ContainerID, one.IfName)
	n.must(err)
	n.until("it is gone", func() bool { return !n.gate.Held(one.Addrs[0]) })
}

// A runtime that gives up on a pod and starts the next: whatever the agent is doing just then, the next one is held until it is judged.
func TestAPodThatGoesWhileItIsLetGoLeavesTheNextOneHeld(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	n.judged(policy.World{})
	notes, _ := attach.Paths(n.file)
	for i := range 20 { // the address goes from one pod to the next at every moment of a verdict
		old, next := note(fmt.Sprintf("old%d", i), "10.244.1.2"), note(fmt.Sprintf("next%d", i), "10.244.1.2")
		old.At, next.At = int64(2*i+1), int64(2*i+2)
		n.plugin(old)
		n.until("the first is known", func() bool { return len(n.gate.Notes()) > 0 && n.gate.Notes()[0].Pod == old.Pod })
		done := make(chan error, 1)
		go func() { done <- n.gate.Judged(context.Background(), worldOf(old)) }()
		time.Sleep(time.Duration(i) * 100 * time.Microsecond)
		_, err := notes.Remove(old.ContainerID, old.IfName)
		n.must(err)
		n.plugin(next)
		n.must(<-done)
		n.judged(worldOf(old)) // of before
		if got, free := n.set("held-ipv4"), n.set("free-ipv4"); got != "10.244.1.2" || free != "" {
			t.Fatalf("turn %d: held %q, free %q", i, got, free)
		}
		n.answered(n.ask(next), next, worldOf(next))
		n.until("the next one is let go", func() bool { return n.set("held-ipv4") == "" })
		_, err = notes.Remove(next.ContainerID, next.IfName)
		n.must(err)
		n.until("it is gone", func() bool { return len(n.gate.Notes()) == 0 })
	}
}

// A note that cannot be read is no sign that the pod is gone: without it the pod would have no policies until the API tells its address.
func TestAPodWhoseNoteIsSpoiltIsStillKnown(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	a := note("a", "10.244.1.2")
	n.plugin(a)
	n.knows("a")
	notes, _ := attach.Paths(n.file)
	path := filepath.Join(notes.Dir, a.Name())
	n.must(os.WriteFile(path+".new", []byte("{"), 0o600))
	n.must(os.Rename(path+".new", path))
	n.plugin(note("b", "10.244.1.3"))
	n.knows("a", "b")
	a.At = 2
	n.plugin(a) // and well again
	n.until("the new one is known", func() bool { return len(n.gate.Notes()) == 2 && n.gate.Notes()[0].At == 2 })
	n.must(os.Remove(path))
	n.knows("b")
}

// Rules can be as they should and do nothing: whoever makes a table dormant leaves them alone.
func TestN18ATableThatSleepsIsWokenUp(t *testing.T) {
	n := newNode(t)
	n.ns.SetSysctl("net.ipv4.ip_forward", "1")
	pod, other := n.ns.Pod(1500, netip.MustParsePrefix("10.244.1.2/24")), nstest.New(t)
	nstest.Veth(t, n.ns, "out", other, "eth0")
	n.ns.IP("addr add 10.9.0.1/24 dev out")
	other.IP("addr add 10.9.0.2/24 dev eth0")
	other.IP("route add 10.244.0.0/16 via 10.9.0.1")
	to := netip.MustParseAddr("10.9.0.2")
	poked := n.gate.Watch(t.Context())
	n.shut(true)
	n.plugin(note("a", "10.244.1.2"))
	if pod.CanPing(to) == nil {
		t.Fatal("it is not held")
	}
	n.ns.SetNFT("add table inet weft-gate { flags dormant; }")
	if err := pod.CanPing(to); err != nil {
		t.Fatalf("the table does not sleep: nothing is shown: %v", err)
	}
	n.until("it is held again", func() bool {
		select {
		case <-poked:
			n.shut(true)
		default:
		}
		return pod.CanPing(to) != nil
	})
}

// While somebody has taken the rules away, and left the table, what is held is not, and connections begin.
func TestN18AConnectionThatBeginsWhileTheRulesAreGoneIsEnded(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	n.judged(policy.World{})
	begin := n.stranger("10.244.1.2")
	one := note("a", "10.244.1.2")
	one.Held = true
	begin()
	n.plugin(one)
	n.until("the first look is over", func() bool { return len(n.tracked(one.Addrs[0])) == 0 })
	n.ns.SetNFT("flush chain inet weft-gate forward")
	begin()
	n.until("it is repaired", func() bool {
		n.shut(true)
		return strings.Contains(n.ns.Run("nft", "list", "chain", "inet", attach.TableName, "forward"), "drop")
	})
	n.judged(worldOf(one))
	n.until("it is let go", func() bool { return n.set("held-ipv4") == "" })
	if left := n.tracked(one.Addrs[0]); len(left) > 0 {
		t.Errorf("left: %v", left)
	}
}
