package backends

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// TestABackendIsRolledOutNodeByNodeWithoutLoss changes the backend of a running cluster, one node after the other, there and
// back, while every pod talks to every other.
func TestABackendIsRolledOutNodeByNodeWithoutLoss(t *testing.T) {
	nstest.NeedRoot(t)
	direct := of(subnet.VXLAN)
	direct.direct = true
	for _, r := range []struct {
		name     string
		from, to setup
	}{
		{"vxlan and wireguard", of(subnet.VXLAN), of(subnet.WireGuard)},
		{"vxlan and wireguard of one device", of(subnet.VXLAN), of(subnet.WireGuard).mode(subnet.ModeAuto)},
		{"vxlan and ipip", of(subnet.VXLAN), of(subnet.IPIP)},
		{"host-gw and wireguard", of(subnet.HostGW), of(subnet.WireGuard)},
		{"DirectRouting and wireguard", direct, of(subnet.WireGuard)},
	} {
		t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
			needs(t, r.to.kind)
			r.from.wg = r.to.wg // an agent remembers on the way back what it had
			w := newWorld(t, 3, r.from)
			for _, next := range []setup{r.to, r.from} {
				streams := w.traffic()
				begin := time.Now()
				for _, n := range w.nodes {
					n.restart(next)
					w.quiet(n)
				}
				w.settle()
				t.Logf("all nodes have %s %v after the first restart", next.kind, time.Since(begin).Round(10*time.Millisecond))
				w.stop(streams)
				w.onlyDevicesOf(next)
			}
		})
	}
}

// quiet waits until a restarted node's kernel is as it plans, whatever the others still speak.
func (w *world) quiet(n *node) {
	w.Helper()
	nstest.Eventually(w, patience, func() error {
		_, err := n.look()
		return err
	})
	w.reachAll()
}

// onlyDevicesOf waits until nothing is left of any other backend: a node hears it until it knows that nobody speaks it.
func (w *world) onlyDevicesOf(s setup) {
	w.Helper()
	nstest.Eventually(w, patience, func() error {
		for _, n := range w.nodes {
			have, err := n.conn.Dump(w.Context())
			if err != nil {
				return err
			}
			for name, l := range have.Links {
				if kindOf(l) != s.kind {
					return fmt.Errorf("%s still has %s", n.name, name)
				}
			}
		}
		return nil
	})
}
