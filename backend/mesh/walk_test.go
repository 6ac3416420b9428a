package mesh_test

import (
	"cmp"
	"fmt"
	"os"
	"strconv"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// settings are all the ways from one backend to another.
func settings() []setting {
	kinds := []string{subnet.VXLAN, subnet.HostGW, subnet.WireGuard, subnet.IPIP}
	var out []setting
	tunnels := func(kind string) bool { return kind == subnet.VXLAN || kind == subnet.IPIP }
	for _, from := range kinds {
		for _, to := range kinds {
			for direct := range 4 {
				before, after := direct&1 != 0, direct&2 != 0
				if before && !tunnels(from) || after && !tunnels(to) || from == to && before == after {
					continue
				}
				out = append(out, setting{from: from, to: to, directs: [2]bool{before, after}, mode: subnet.ModeSeparate, families: []subnet.Family{subnet.IPv4}})
			}
		}
	}
	return out
}

// walk lets a cluster change its backend node by node, with everything in any order, and returns the first fault.
func walk(s setting, seed uint64, loud bool) (err error) {
	c := newWalk(s, seed, 2+int(seed%3))
	c.loud = loud
	if err := c.check(); err != nil {
		return fmt.Errorf("at rest: %w", err)
	}
	defer func() {
		if err != nil {
			err = fmt.Errorf("%w\n%s", err, c.text())
		}
	}()
	for range 120 {
		c.step(s)
		if err := c.check(); err != nil {
			return err
		}
	}
	return c.finish(s)
}

// step is one thing that happens to one node.
func (c *cluster) step(s setting) {
	n := c.nodes[c.rand.IntN(len(c.nodes))]
	other := c.nodes[c.rand.IntN(len(c.nodes))]
	if n.flannel || other.flannel {
		return
	}
	switch r := c.rand.IntN(100); {
	case r < 5:
		c.configure(n, s, c.rand.IntN(10) < 8, c.rand.IntN(2) == 0)
	case r < 30:
		n.view += c.rand.IntN(len(c.announced) - n.view)
	case r < 60:
		c.round(n)
		if c.loud {
			c.tell("%d plans at version %d: %v", n.i, n.view, describe(n))
		}
	case r < 75:
		c.publish(n)
	case r < 90 && n != other:
		c.shake(n, other, c.rand.IntN(2) == 0)
	case r < 93:
		c.tell("%d restarts", n.i)
		n.last, n.kept = nil, nil
	default:
		c.pass(time.Duration(c.rand.IntN(20)) * time.Second)
	}
}

// pass lets time go by. A node may not know for long what others announce, but it soon sees what it has announced itself.
func (c *cluster) pass(d time.Duration) {
	c.now = c.now.Add(d)
	for _, n := range c.nodes {
		if c.now.Sub(n.at) > 5*time.Second {
			n.view = max(n.view, n.wrote)
		}
	}
	c.renew()
}

// renew keeps sessions alive that are used, or wanted: WireGuard does so every two minutes.
func (c *cluster) renew() {
	for p := range c.sessions {
		c.shake(c.nodes[p[0]], c.nodes[p[1]], true)
	}
}

// configure changes net-conf.json on a node, which restarts or takes it over while it runs.
func (c *cluster) configure(n *node, s setting, forward, restart bool) {
	n.c.Kind, n.c.DirectRouting = s.from, s.directs[0]
	if forward {
		n.c.Kind, n.c.DirectRouting = s.to, s.directs[1]
	}
	if n.c.Kind != subnet.WireGuard {
		for _, other := range c.nodes {
			delete(c.sealed, direction{n.i, other.i})
		}
	}
	if restart {
		n.last, n.kept = nil, nil
	}
	n.result.Ways = nil // nothing is announced before the first round
	c.tell("%d is configured for %s", n.i, n.c.Kind)
}

func describe(n *node) string {
	out := fmt.Sprintf("also %q, devices %v, plain %v:", n.result.Also, n.result.Devices, n.result.Plain)
	for name, way := range n.result.Ways {
		for f, w := range way {
			if w.Kind != "" {
				out += fmt.Sprintf(" %s/%v by %s", name, subnet.Family(f), w.Kind)
			}
		}
	}
	return out
}

// finish lets the rest follow, and looks for what is left of the backend of before.
func (c *cluster) finish(s setting) error {
	for _, n := range c.nodes {
		if !n.flannel && !n.dead {
			c.configure(n, s, true, false)
			c.round(n)
			if err := c.check(); err != nil {
				return err
			}
		}
	}
	c.settle()
	if err := c.check(); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	if s.flannel || s.offLink {
		return nil
	}
	for _, n := range c.nodes {
		also := subnet.Kinds(0)
		if s.directs[1] {
			also = subnet.KindsOf(subnet.HostGW)
		}
		if n.result.Also != also {
			return fmt.Errorf("at the end %d announces %q besides", n.i, n.result.Also)
		}
		for name, l := range n.have.Links {
			if own := map[string]string{kernel.KindVXLAN: subnet.VXLAN, kernel.KindWireGuard: subnet.WireGuard}[l.Kind]; own != s.to && (own != "" || s.to != subnet.IPIP) {
				return fmt.Errorf("at the end %d has %s", n.i, name)
			}
		}
		for name, way := range n.result.Ways {
			for _, f := range s.families {
				want := s.to
				if s.directs[1] {
					want = subnet.HostGW
				}
				if way[f].Kind != want {
					return fmt.Errorf("at the end %d reaches %s by %q", n.i, name, way[f].Kind)
				}
			}
		}
	}
	return nil
}

// walks is how many walks each setting takes: some in every run, and many where WEFT_WALKS asks for them.
func walks(t *testing.T) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(cmp.Or(os.Getenv("WEFT_WALKS"), "8"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNoPacketIsLostWhileAClusterChangesItsBackendNodeByNode(t *testing.T) {
	for _, s := range settings() {
		t.Run(s.String(), func(t *testing.T) {
			for seed := range walks(t) {
				if err := walk(s, seed, false); err != nil {
					t.Fatalf("walk %d: %v", seed, walk(s, seed, true))
				}
			}
		})
	}
}
