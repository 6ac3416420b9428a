package mesh_test

import (
	"cmp"
	"fmt"
	"os"
	"slices"
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

// others are clusters that have more than one peculiarity.
func others() []setting {
	four, six, both := []subnet.Family{subnet.IPv4}, []subnet.Family{subnet.IPv6}, []subnet.Family{subnet.IPv4, subnet.IPv6}
	tunnels, plain := [2]bool{}, [2]bool{true, true}
	return []setting{
		{from: subnet.VXLAN, to: subnet.WireGuard, mode: subnet.ModeSeparate, families: both},
		{from: subnet.VXLAN, to: subnet.WireGuard, mode: subnet.ModeAuto, families: both},
		{from: subnet.WireGuard, to: subnet.VXLAN, mode: subnet.ModeIPv6, families: both},
		{from: subnet.WireGuard, to: subnet.HostGW, mode: subnet.ModeAuto, families: six},
		{from: subnet.HostGW, to: subnet.WireGuard, mode: subnet.ModeSeparate, families: both},
		{from: subnet.VXLAN, to: subnet.HostGW, mode: subnet.ModeSeparate, families: both, directs: [2]bool{true, false}},
		{from: subnet.IPIP, to: subnet.VXLAN, mode: subnet.ModeSeparate, families: six},
		{from: subnet.VXLAN, to: subnet.WireGuard, mode: subnet.ModeSeparate, families: four, mute: true},
		{from: subnet.HostGW, to: subnet.WireGuard, mode: subnet.ModeAuto, families: both, mute: true},
		{from: subnet.VXLAN, to: subnet.WireGuard, mode: subnet.ModeSeparate, families: four, flannel: true},
		{from: subnet.VXLAN, to: subnet.HostGW, mode: subnet.ModeSeparate, families: both, flannel: true, directs: [2]bool{true, false}},
		{from: subnet.HostGW, to: subnet.VXLAN, mode: subnet.ModeSeparate, families: four, flannel: true},
		{from: subnet.IPIP, to: subnet.WireGuard, mode: subnet.ModeSeparate, families: four, flannel: true, directs: [2]bool{true, false}},
		{from: subnet.VXLAN, to: subnet.HostGW, mode: subnet.ModeSeparate, families: four, offLink: true, directs: tunnels},
		{from: subnet.VXLAN, to: subnet.IPIP, mode: subnet.ModeSeparate, families: both, offLink: true, directs: plain},
		{from: subnet.VXLAN, to: subnet.WireGuard, mode: subnet.ModeSeparate, families: four, offLink: true, directs: [2]bool{true, false}},
		{from: subnet.VXLAN, to: subnet.WireGuard, mode: subnet.ModeSeparate, families: four, death: true},
		{from: subnet.WireGuard, to: subnet.VXLAN, mode: subnet.ModeSeparate, families: four, death: true},
		{from: subnet.HostGW, to: subnet.IPIP, mode: subnet.ModeSeparate, families: both, death: true, directs: [2]bool{false, true}},
	}
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
	if n.flannel || other.flannel || n.dead {
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
		c.restart(n)
	case r < 94:
		c.reboot(n)
	case r < 95 && s.death && len(c.living()) > 2:
		c.tell("%d dies", n.i)
		n.dead = true
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

// restart makes a node forget what it remembers. It begins with a list of its own time.
func (c *cluster) restart(n *node) {
	n.last, n.kept, n.view = nil, nil, max(n.view, n.wrote)
}

func (c *cluster) living() []*node {
	return slices.DeleteFunc(slices.Clone(c.nodes), func(n *node) bool { return n.dead })
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
		c.restart(n)
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
	for _, n := range c.living() {
		if !n.flannel {
			c.configure(n, s, true, false)
			c.round(n)
			if err := c.check(); err != nil {
				return err
			}
		}
	}
	calm := 4
	if s.mute || s.death {
		calm = int(11 * time.Minute / (5 * time.Second))
	}
	c.settle(calm)
	if err := c.check(); err != nil {
		return fmt.Errorf("at the end: %w", err)
	}
	for _, n := range c.nodes {
		if last := c.announced[len(c.announced)-1][n.i]; n.flannel || s.offLink || n.dead && last.Kind != s.to {
			return nil // somebody still needs the backend of before
		}
	}
	for _, n := range c.living() {
		if err := n.isClean(s); err != nil {
			return fmt.Errorf("at the end %d %w", n.i, err)
		}
	}
	return nil
}

// isClean reports what is left on a node of the backend of before.
func (n *node) isClean(s setting) error {
	kind, also := s.to, subnet.Kinds(0)
	if s.directs[1] {
		kind, also = subnet.HostGW, subnet.KindsOf(subnet.HostGW)
	}
	if n.result.Also != also {
		return fmt.Errorf("announces %q besides", n.result.Also)
	}
	for name, l := range n.have.Links {
		if own := map[string]string{kernel.KindVXLAN: subnet.VXLAN, kernel.KindWireGuard: subnet.WireGuard}[l.Kind]; own != s.to && (own != "" || s.to != subnet.IPIP) {
			return fmt.Errorf("has %s", name)
		}
	}
	for name, way := range n.result.Ways {
		for _, f := range s.families {
			if way[f].Kind != kind {
				return fmt.Errorf("reaches %s by %q", name, way[f].Kind)
			}
		}
	}
	return nil
}

// walks is how many walks each setting takes: one in every run, and many in make soak, where WEFT_WALKS asks for them.
func walks(t *testing.T) uint64 {
	t.Helper()
	n, err := strconv.ParseUint(cmp.Or(os.Getenv("WEFT_WALKS"), "1"), 10, 64)
	if err != nil {
		t.Fatal(err)
	}
	return n
}

func TestNoPacketIsLostWhileAClusterChangesItsBackendNodeByNode(t *testing.T) {
	for _, s := range slices.Concat(settings(), others()) {
		t.Run(s.String(), func(t *testing.T) {
			for seed := range walks(t) {
				if err := walk(s, seed, false); err != nil {
					t.Fatalf("walk %d: %v", seed, walk(s, seed, true))
				}
			}
		})
	}
}
