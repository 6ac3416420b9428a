package backends

import (
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/wireguard"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

func TestNothingOfThePodsCanBeReadOnTheUnderlay(t *testing.T) {
	nstest.NeedRoot(t)
	plain := newWorld(t, 2, of(subnet.VXLAN))
	seen := plain.watchTheClear()
	plain.reachAll()
	if readable, all := seen.count(); readable == 0 {
		t.Fatalf("of %d VXLAN packets none can be read: the test shows nothing", all)
	}
	w := newWorld(t, 2, of(subnet.WireGuard))
	seen = w.watchTheClear()
	streams := w.traffic()
	nstest.Eventually(t, patience, func() error { return seen.atLeast(100) })
	w.stop(streams)
	seen.none(100)
}

func (c *eavesdropper) atLeast(n int) error {
	if _, all := c.count(); all < n {
		return fmt.Errorf("%d packets so far", all)
	}
	return nil
}

// The device is the kernel's: sessions, keys and peers outlive the agent, and its next start changes nothing.
func TestWireGuardOutlivesItsAgent(t *testing.T) {
	nstest.NeedRoot(t)
	w := newWorld(t, 2, of(subnet.WireGuard))
	a := w.nodes[0]
	streams := w.traffic()
	before := a.handshakes()
	for range 3 {
		a.restart(of(subnet.WireGuard))
		nstest.Eventually(t, patience, a.atRest)
	}
	w.stop(streams)
	if ops := a.done(); len(ops) > 0 {
		t.Errorf("a restarted agent writes %v", ops)
	}
	after := a.handshakes()
	if d := cmp.Diff(before, after); d != "" {
		if sinceFirst := time.Since(oldest(before)); sinceFirst < 110*time.Second { // sessions are renewed after two minutes
			t.Errorf("other handshakes (-before +after):\n%s", d)
		}
	}
}

func oldest(h map[kernel.WGKey]time.Time) time.Time {
	out := time.Now()
	for _, at := range h {
		if at.Before(out) {
			out = at
		}
	}
	return out
}

// A node that was set up anew has another key. Its peers take it, and let go of the old one.
func TestAPeerWithANewKeyTakesThePlaceOfTheOldOne(t *testing.T) {
	nstest.NeedRoot(t)
	for _, mode := range []string{subnet.ModeSeparate, subnet.ModeAuto} {
		t.Run(mode, func(t *testing.T) {
			s := of(subnet.WireGuard).mode(mode)
			w := newWorld(t, 3, s)
			seen := w.watchTheClear()
			moved := w.nodes[1]
			old := wireguard.PublicKey(moved.key)
			moved.stop()
			moved.key = newKey()
			begin := time.Now()
			moved.start(s)
			nstest.Eventually(t, patience, func() error {
				for _, n := range []*node{w.nodes[0], w.nodes[2]} {
					if err := n.hasPeer(wireguard.PublicKey(moved.key), old); err != nil {
						return err
					}
				}
				return nil
			})
			w.settle()
			t.Logf("all pods reach each other %v after the start with another key", time.Since(begin).Round(10*time.Millisecond))
			seen.none(1)
		})
	}
}

// hasPeer wants one key and not another, on all of the node's devices.
func (n *node) hasPeer(want, gone subnet.Key) error {
	have, err := n.conn.Dump(n.w.Context())
	if err != nil {
		return err
	}
	found := false
	for k := range have.Peers {
		if k.Key == gone {
			return fmt.Errorf("%s still has the old key on %s", n.name, k.Link)
		}
		found = found || k.Key == want
	}
	if !found {
		return fmt.Errorf("%s has no peer with the new key", n.name)
	}
	return nil
}

// The key file and the devices are gone, and with them all sessions. Until the others have the new key, packets for pods have
// no way, and never that by the default route in the clear.
func TestALostKeyNeverMeansClearText(t *testing.T) {
	nstest.NeedRoot(t)
	s := of(subnet.WireGuard)
	w := newWorld(t, 2, s)
	seen := w.watchTheClear()
	streams := w.traffic()
	lost := w.nodes[0]
	lost.stop()
	for _, device := range lost.devices() {
		lost.IP("link del " + device)
	}
	// Meanwhile pods go on sending, with no agent and no device.
	leaving := lost.pod.Capture("eth0")
	nstest.Eventually(t, patience, func() error {
		if n := len(leaving.Frames()); n < 50 {
			return fmt.Errorf("%d packets sent", n)
		}
		return nil
	})
	lost.key = newKey()
	begin := time.Now()
	lost.start(s)
	w.settle()
	t.Logf("healed %v after the agent's start", time.Since(begin).Round(10*time.Millisecond))
	missing := 0
	for _, s := range streams {
		missing += len(s.Stop().Lost)
	}
	if missing == 0 {
		t.Error("nothing was lost without a device: the test shows nothing")
	}
	seen.none(10)
}

func TestPeersThatShareNoPSKDoNotTalk(t *testing.T) {
	nstest.NeedRoot(t)
	s := of(subnet.WireGuard)
	s.wg.PSK = newKey()
	w := newWorld(t, 2, s)
	a := w.nodes[0]
	a.stop()
	// Sessions end with their peer: a device without is made, so that no old one carries on.
	for _, device := range a.devices() {
		a.IP("link del " + device)
	}
	other := s
	other.wg.PSK = newKey()
	a.start(other)
	nstest.Eventually(t, patience, func() error {
		if r, err := a.look(); err != nil || len(r.Ways) != 1 {
			return errors.Join(err, fmt.Errorf("%d ways", len(r.Ways)))
		}
		return nil
	})
	for _, f := range w.lane.Families() {
		if err := a.pod.CanPing(w.nodes[1].podAddr(f).Addr()); err == nil {
			t.Errorf("%s passes with different keys shared beforehand", f)
		}
	}
	a.restart(s)
	w.settle()
}

func TestAKeepaliveIsSentWithoutTraffic(t *testing.T) {
	nstest.NeedRoot(t)
	s := of(subnet.WireGuard)
	s.wg.Keepalive = time.Second
	w := newWorld(t, 2, s)
	capture := w.nodes[0].Capture("eth0")
	nstest.Eventually(t, patience, func() error {
		if n := capture.Count(isKeepalive); n < 3 {
			return fmt.Errorf("%d keepalives", n)
		}
		return nil
	})
	have, err := w.nodes[0].conn.Dump(t.Context())
	if err != nil || len(have.Peers) == 0 {
		t.Fatal(errors.Join(err, errors.New("no peers")))
	}
	for k, p := range have.Peers {
		if p.Keepalive != s.wg.Keepalive {
			t.Errorf("%s: keepalive %v", k.Link, p.Keepalive)
		}
	}
}

// isKeepalive recognises a data message of WireGuard (type 4) around nothing: 32 bytes.
func isKeepalive(frame []byte) bool {
	for _, header := range []int{20, 40} {
		udp := 14 + header
		if len(frame) == udp+8+32 && frame[udp+8] == 4 {
			return true
		}
	}
	return false
}
