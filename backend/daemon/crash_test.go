package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"os"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// dying is a kernel whose agent dies before the n-th change: from there on nothing is made any more.
type dying struct {
	Kernel
	left int
	each func() // called after each change
}

var errDead = errors.New("the agent is dead")

func (d *dying) Apply(ctx context.Context, op kernel.Op) error {
	if d.left == 0 {
		return errDead
	}
	d.left--
	err := d.Kernel.Apply(ctx, op)
	d.each()
	return err
}

// crashCase is a world and what an agent finds in it.
type crashCase struct {
	name  string
	peers int
	spoil func(*kernel.State)
}

func crashCases() []crashCase {
	return []crashCase{
		{"an empty node", 5, nil},
		{"a node without peers", 0, nil},
		{"peers' entries gone", 8, func(s *kernel.State) {
			for k := range s.Routes {
				if k.Dst.Addr().As4()[2]%2 == 1 { // the known peers have even numbers
					delete(s.Routes, k)
				}
			}
		}},
		{"strangers", 4, func(s *kernel.State) {
			for n := byte(200); n < 210; n++ {
				p := peer("stranger", n).Endpoints[subnet.IPv4]
				s.Neighs[kernel.Neigh{Link: "flannel.1", IP: p.PodCIDR.Addr()}] = p.MAC
				s.FDB[kernel.FDBKey{Link: "flannel.1", MAC: p.MAC}] = kernel.FDBDest{Dst: p.PublicIP}
				s.Routes[kernel.RouteKey{Dst: p.PodCIDR}] = kernel.Route{Link: "flannel.1", Via: p.PodCIDR.Addr(), Onlink: true, Ours: true, Type: "unicast"}
			}
		}},
		{"a peer's MAC and address of yesterday", 6, func(s *kernel.State) {
			p := peer("b", 3).Endpoints[subnet.IPv4]
			s.Neighs[kernel.Neigh{Link: "flannel.1", IP: p.PodCIDR.Addr()}] = subnet.MAC{2, 9, 9, 9, 9, 9}
			delete(s.FDB, kernel.FDBKey{Link: "flannel.1", MAC: p.MAC})
			s.FDB[kernel.FDBKey{Link: "flannel.1", MAC: subnet.MAC{2, 9, 9, 9, 9, 9}}] = kernel.FDBDest{Dst: p.PublicIP}
		}},
		{"another MTU", 3, func(s *kernel.State) {
			l := s.Links["flannel.1"]
			l.MTU = 1300
			s.Links["flannel.1"] = l
		}},
	}
}

// world makes a node whose agent knows some peers, numbered from 2.
func (c crashCase) world(t *testing.T, fake *kernel.Fake) *ground {
	t.Helper()
	g := newGround(t, plainConf)
	if fake != nil {
		g.fake, g.kernel = fake, fake
	}
	g.in.snap.Peers = nil
	for n := range c.peers {
		g.in.snap.Peers = append(g.in.snap.Peers, peer(fmt.Sprintf("n%02d", n), byte(n+2)))
	}
	g.in.snap.Self.MAC[subnet.IPv4] = subnet.MAC{2, 0, 0, 0, 0, 1}
	return g
}

func (g *ground) text(t *testing.T) string {
	t.Helper()
	s, err := g.fake.Dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	return s.String()
}

// known reports what a peer with an even number lacks that was whole before.
func (g *ground) known(t *testing.T) error {
	t.Helper()
	s, err := g.fake.Dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, p := range g.in.snap.Peers {
		e := p.Endpoints[subnet.IPv4]
		if e.PodCIDR.Addr().As4()[2]%2 == 1 {
			continue
		}
		_, route := s.Routes[kernel.RouteKey{Dst: e.PodCIDR}]
		mac := s.Neighs[kernel.Neigh{Link: "flannel.1", IP: e.PodCIDR.Addr()}]
		dest := s.FDB[kernel.FDBKey{Link: "flannel.1", MAC: e.MAC}]
		if !route || mac != e.MAC || dest.Dst != e.PublicIP {
			return fmt.Errorf("%s: route %v, MAC %s, destination %v", p.Name, route, mac, dest)
		}
	}
	return nil
}

func TestAnAgentThatDiesBeforeAnyChangeLeavesTheRestToTheNextOneAndKnownPeersAlone(t *testing.T) {
	for _, c := range crashCases() {
		whole := c.world(t, nil)
		whole.mustSync(t)
		want := whole.text(t)
		deaths := 0
		for n := 0; ; n++ {
			g := c.world(t, nil)
			if c.spoil != nil {
				g.mustSync(t)
				g.fake.Edit(c.spoil)
			}
			fake := g.fake
			first := c.world(t, fake)
			d := &dying{Kernel: fake, left: n, each: func() {
				if err := first.known(t); err != nil && c.spoil != nil {
					t.Errorf("%s, change %d: a peer that was whole is not: %v", c.name, n, err)
				}
			}}
			first.kernel = d
			own, peers := first.sync(t.Context(), first.in)
			next := c.world(t, fake)
			next.mustSync(t)
			if diff := cmp.Diff(want, next.text(t)); diff != "" {
				t.Errorf("%s: dead before change %d, and then (-want +got):\n%s", c.name, n, diff)
			}
			if own == nil && peers == nil {
				break
			}
			deaths++
		}
		if deaths == 0 {
			t.Errorf("%s: nobody died", c.name)
		}
		t.Logf("%s: %d deaths", c.name, deaths)
	}
}

func TestAnyRowOfDeathsEndsInTheSameState(t *testing.T) {
	seed := rand.Uint64()
	random := rand.New(rand.NewPCG(seed, 0))
	for _, c := range crashCases() {
		whole := c.world(t, nil)
		whole.mustSync(t)
		fake := kernel.NewFake()
		for range 20 { // agents that die sooner or later, each over what the last one left
			g := c.world(t, fake)
			g.kernel = &dying{Kernel: fake, left: random.IntN(10), each: func() {}}
			_, _ = g.sync(t.Context(), g.in) // it dies of it
		}
		last := c.world(t, fake)
		last.mustSync(t)
		if diff := cmp.Diff(whole.text(t), last.text(t)); diff != "" {
			t.Errorf("%s, seed %d (-want +got):\n%s", c.name, seed, diff)
		}
	}
}

func TestD09ADiskThatRefusesPluginsKeepsNoAgentFromStarting(t *testing.T) {
	dir := t.TempDir()
	w := &crashWorld{t: t}
	cfg := Config{Paths: Paths{CNISource: dir + "/source", CNIBin: dir + "/file/bin", CNIConf: dir + "/net.d", SubnetFile: dir + "/run/subnet.env"}}
	if err := InstallCNI(t.Context(), cfg, slog.New(slog.DiscardHandler)); err == nil {
		t.Error("an image without plugins is no error")
	}
	if err := os.Mkdir(cfg.Paths.CNISource, 0o755); err != nil {
		t.Fatal(err)
	}
	w.plugin(cfg.Paths.CNISource, "bridge", "v1.10.0")
	w.write(dir+"/file", "")
	var log crashLog
	if err := InstallCNI(t.Context(), cfg, slog.New(slog.NewTextHandler(&log, nil))); err != nil {
		t.Errorf("the init container would start again and again, and the agent never: %v", err)
	}
	if text := log.String(); !strings.Contains(text, cfg.Paths.CNIBin+"/bridge") || !strings.Contains(text, "a file is in the place of the directory") {
		t.Errorf("log: %s", text)
	}
	if !exists(cfg.Paths.CNIConf) {
		t.Error("the agent would find no place for the conflist, and write none")
	}
}
