package mesh_test

import (
	"fmt"
	"net/netip"
	"slices"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// site is a few nodes on one link, each with a pod, all with one backend.
type site struct {
	t      *testing.T
	fabric *nstest.Fabric
	agents []*agent
	board  *board
}

// needs lists the devices that a backend takes.
func needs(kind string) []string {
	return map[string][]string{
		subnet.WireGuard: {kernel.KindWireGuard}, subnet.IPIP: {kernel.KindIPIP, kernel.KindIP6Tnl},
	}[kind]
}

func newSite(t *testing.T, n int, s setting) *site {
	t.Helper()
	fabric := nstest.NewFabric(t, n)
	c := &site{t: t, fabric: fabric, board: &board{announced: map[byte]announcement{}, lacks: map[byte][2]bool{}}}
	for i := range n {
		conf := config(byte(i+1), s.from)
		conf.DirectRouting, conf.WireGuard.Conf.Mode = s.directs[0], s.mode
		for _, f := range subnet.Families() {
			if lacks := i == 1 && slices.Contains(s.lacks, f); lacks || !lane.Of(t).Has(f) {
				conf.Ends[f] = mesh.End{}
				families := c.board.lacks[byte(i+1)]
				families[f] = true
				c.board.lacks[byte(i+1)] = families
			}
		}
		a := newAgent(t, fabric.Nodes[i], c.board, conf)
		if i == 0 {
			for _, feature := range a.conn.Probe(t.Context(), append(needs(s.from), needs(s.to)...)...) {
				if feature.Support != kernel.Supported {
					t.Skipf("this kernel has no %s (%v); `make test-vm` runs the test on one that has", feature.Name, feature.Err)
				}
			}
		}
		c.agents = append(c.agents, a)
	}
	for _, a := range c.agents {
		a.run()
	}
	c.rests(s.from, s.directs[0])
	return c
}

// rests waits until all nodes speak one kind and nothing is left to do, and every pod reaches every other.
func (c *site) rests(kind string, direct bool) {
	c.t.Helper()
	also := subnet.Kinds(0)
	if direct {
		also = subnet.KindsOf(subnet.HostGW)
	}
	for _, a := range c.agents {
		nstest.Eventually(c.t, 2*time.Minute, func() error { return a.speaks(kind, also) })
	}
	for _, a := range c.agents {
		c.reaches(a)
	}
}

// eachPod visits the addresses of the pods of all other nodes, in the families that both have.
func (c *site) eachPod(a *agent, visit func(from, to netip.Addr)) {
	for _, b := range c.agents {
		for _, from := range a.podAddrs() {
			for _, to := range b.podAddrs() {
				if a != b && subnet.FamilyOf(from.Addr()) == subnet.FamilyOf(to.Addr()) {
					visit(from.Addr(), to.Addr())
				}
			}
		}
	}
}

// traffic starts an echo stream from every pod to every other, and returns what ends them and counts.
func (c *site) traffic() (stop func()) {
	c.t.Helper()
	type stream struct {
		name string
		ping *nstest.Pinger
	}
	var streams []stream
	for _, a := range c.agents {
		c.eachPod(a, func(from, to netip.Addr) {
			streams = append(streams, stream{fmt.Sprintf("%s to %s", from, to), a.pod.StartPing(nstest.Ping{Dst: to, Interval: 20 * time.Millisecond})})
		})
	}
	return func() {
		c.t.Helper()
		sent := 0
		for _, s := range streams {
			r := s.ping.Stop()
			sent += r.Sent
			if len(r.Lost) > 0 || len(r.Errors) > 0 {
				c.t.Errorf("%s: %s", s.name, r)
			}
		}
		c.t.Logf("%d packets sent", sent)
	}
}

func TestARollOutNodeByNodeLosesNothingAndLeavesNothing(t *testing.T) {
	for _, s := range []setting{
		{from: subnet.VXLAN, to: subnet.HostGW},
		{from: subnet.HostGW, to: subnet.VXLAN},
		{from: subnet.VXLAN, to: subnet.VXLAN, directs: [2]bool{false, true}},
		{from: subnet.VXLAN, to: subnet.VXLAN, directs: [2]bool{true, false}},
		{from: subnet.VXLAN, to: subnet.WireGuard, mode: subnet.ModeSeparate},
		{from: subnet.WireGuard, to: subnet.VXLAN, mode: subnet.ModeAuto},
		{from: subnet.HostGW, to: subnet.WireGuard, mode: subnet.ModeAuto},
		{from: subnet.VXLAN, to: subnet.IPIP, directs: [2]bool{true, false}},
		{from: subnet.IPIP, to: subnet.WireGuard, mode: subnet.ModeSeparate},
	} {
		s.families = lane.Of(t).Families()
		t.Run(s.String(), func(t *testing.T) {
			c := newSite(t, 3, s)
			stop := c.traffic()
			for _, a := range c.agents {
				a.configure(s.to, s.directs[1])
				nstest.Eventually(t, time.Minute, func() error { return c.configured(a, s.to) })
			}
			start := time.Now()
			c.rests(s.to, s.directs[1])
			for _, a := range c.agents {
				nstest.Eventually(t, time.Minute, func() error { return a.hasOnly(s) })
			}
			t.Logf("nothing is left %v after the last node changed", time.Since(start))
			stop()
		})
	}
}

// configured reports whether a node announces what it was configured for.
func (c *site) configured(a *agent, kind string) error {
	c.board.mu.Lock()
	defer c.board.mu.Unlock()
	if got := c.board.announced[a.conf.VXLAN.MACs[0][5]]; got.Kind != kind {
		return fmt.Errorf("it announces %+v", got)
	}
	return nil
}

// hasOnly reports what is left of the backend of before.
func (a *agent) hasOnly(s setting) error {
	if err := a.keepsOnly(s); err != nil {
		return err
	}
	have, err := a.conn.Dump(a.t.Context())
	if err != nil {
		return err
	}
	for name, l := range have.Links {
		if formerOf(s.to, subnet.Self{}, kernel.State{Links: map[string]kernel.Link{name: l}}) != 0 {
			return fmt.Errorf("%s is left", name)
		}
	}
	return nil
}

// keepsOnly reports kinds that are heard although nobody sends by them any more.
func (a *agent) keepsOnly(s setting) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	for kind := range a.kept {
		plain := kind == subnet.HostGW && (s.directs[1] || s.to == subnet.IPIP) // heard for good
		if kind != s.to && !plain {
			return fmt.Errorf("%s is kept", kind)
		}
	}
	return nil
}
