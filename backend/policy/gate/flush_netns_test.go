package gate_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/subnet/attach"
)

// flush has somebody flush nftables a while from now.
func (n *nursery) flush(after time.Duration) (wait func()) {
	done := make(chan error, 1)
	go func() {
		time.Sleep(after)
		_, err := n.ns.Input("flush ruleset", "nft", "-f", "-")
		done <- err
	}()
	return func() { n.Helper(); n.must(<-done) }
}

func (n *nursery) tables() (bool, error) {
	stands := false
	err := n.ns.Do(func() (err error) { stands, err = attach.Stands(); return err })
	return stands, err
}

// N-03, N-18: whoever flushes nftables while pods are born opens nothing to them.
func TestPodsAreBornUnderTheirPoliciesWhileSomebodyFlushes(t *testing.T) {
	n := newNursery(t)
	n.deny()
	n.enforce()
	n.until("new pods are held", func() bool { stands, err := n.tables(); return stands && err == nil })
	early := 0
	for i := range 10 {
		flushed := n.flush(time.Duration(i) * 10 * time.Millisecond) // at one point or another of an ADD, and of what follows
		b := n.birth(fmt.Sprintf("p%03d", i))
		atStart := counted(t, b.ns) // nothing of the pod runs yet
		early += atStart
		n.until("its question is answered", func() bool { return n.ask(b) == nil })
		flushed()
		if got := counted(t, b.ns) - atStart; got > 0 {
			t.Errorf("%s: %d packets came in that its policy forbids", b.name, got)
		}
		if i%3 == 0 {
			n.cni("DEL", b)
			n.must(n.api.CoreV1().Pods("x").Delete(t.Context(), b.name, metav1.DeleteOptions{}))
		}
	}
	t.Logf("%d packets came to pods that had not started", early)
	if got := counted(t, n.outside); got > 0 {
		t.Errorf("%d packets went out that the policy forbids", got)
	}
}

func TestTheSignSaysThatPodsAreHeldWhileTheTableIsFlushed(t *testing.T) {
	n := newNode(t)
	n.shut(true)
	ask := func() (enforced bool) {
		t.Helper()
		n.must(n.ns.Do(func() (err error) { enforced, err = attach.Enforced(); return err }))
		return enforced
	}
	n.ns.SetNFT("flush ruleset")
	if stands := strings.Contains(n.ns.NFT(), attach.TableName+" "); stands || !ask() {
		t.Fatalf("nobody would hold a new pod:\n%s", n.ns.NFT())
	}
	held := make(chan error, 1)
	go func() {
		held <- n.ns.Do(func() error { return attach.HoldWhileEnforced([]netip.Addr{netip.MustParseAddr("10.244.1.9")}) })
	}()
	select {
	case err := <-held:
		t.Fatalf("it does not wait for the table: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	n.shut(true)
	n.must(<-held)
	if text := n.ns.NFT(); !strings.Contains(text, "10.244.1.9") {
		t.Errorf("it is not held:\n%s", text)
	}
	n.ns.SetNFT("flush ruleset")
	if err := n.ns.Do(func() error { return attach.HoldWhileEnforced([]netip.Addr{netip.MustParseAddr("10.244.1.9")}) }); !errors.Is(err, attach.ErrFlushed) {
		t.Errorf("an agent that is stuck: %v", err)
	}
	n.gate.Close() // the agent dies
	if ask() {
		t.Error("the sign outlives the agent")
	}
	n.shut(true)
	n.shut(false)
	if text := n.ns.NFT(); text != "" {
		t.Errorf("left behind without policies:\n%s", text)
	}
}
