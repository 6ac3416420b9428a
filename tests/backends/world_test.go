package backends

import (
	"cmp"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// patience bounds what is waited for, on a machine that emulates another one under load.
const patience = 90 * time.Second

// world is a cluster: nodes on one underlay that leads to the rest of the world, too, and what they have announced.
type world struct {
	*testing.T
	lane   lane.Lane
	fabric *nstest.Fabric
	nodes  []*node

	mu   sync.Mutex // guards said
	said map[string]subnet.Peer
}

// setup is how a node is configured: what net-conf.json says.
type setup struct {
	kind   string
	direct bool
	wg     subnet.WireGuardConf
}

// of is the setup of a kind with the defaults of net-conf.json.
func of(kind string) setup {
	return setup{kind: kind, wg: subnet.WireGuardConf{Ports: [2]uint16{51820, 51821}, Mode: subnet.ModeSeparate}}
}

func (s setup) mode(mode string) setup {
	s.wg.Mode = mode
	return s
}

// newWorld makes a cluster whose nodes run.
func newWorld(t *testing.T, n int, s setup) *world {
	t.Helper()
	w := build(t, n, s)
	for _, n := range w.nodes {
		n.start(s)
	}
	w.settle()
	return w
}

// build makes a cluster whose nodes have no agent yet.
func build(t *testing.T, n int, s setup) *world {
	t.Helper()
	w := &world{T: t, lane: lane.Of(t), fabric: nstest.NewFabric(t, n), said: map[string]subnet.Peer{}}
	needs(t, s.kind)
	// The way to the rest of the world, which packets for pods must not take.
	w.fabric.Switch.IP("addr add 192.168.50.254/24 dev br0")
	w.fabric.Switch.IP("addr add fd00:50::fe/64 dev br0 nodad")
	for i := range n {
		w.nodes = append(w.nodes, w.newNode(i+1))
	}
	w.Cleanup(w.explain)
	return w
}

// explain shows what a test that has failed has left.
func (w *world) explain() {
	for _, n := range w.nodes {
		if !w.Failed() {
			return
		}
		r, err := n.look()
		w.Logf("%s: %v %v\n%v\n%s%s%s", n.name, err, r.Problems, r.Ways, n.IP("route"), n.IP("-6 route"), n.IP("-d neigh"))
	}
}

// needs skips a test where the kernel lacks a backend's device. The virtual machine's has all of them.
func needs(t *testing.T, kind string) {
	t.Helper()
	commands := map[string]string{
		subnet.WireGuard: "link add x type wireguard",
		subnet.IPIP:      "link add x type ipip local 192.0.2.1 remote 192.0.2.2",
	}
	if c, ok := commands[kind]; ok {
		if _, err := nstest.New(t).Try(append([]string{"ip"}, strings.Fields(c)...)...); err != nil {
			t.Skipf("this kernel has no %s; make test-vm runs it on one that has (%v)", kind, err)
		}
	}
}

// announce is what the API server does: everybody hears it.
func (w *world) announce(p subnet.Peer) {
	w.mu.Lock()
	before, known := w.said[p.Name]
	w.said[p.Name] = p
	w.mu.Unlock()
	if known && before == p {
		return
	}
	for _, n := range w.nodes {
		n.poke()
	}
}

// all is what everybody has announced.
func (w *world) all() map[string]subnet.Peer {
	w.mu.Lock()
	defer w.mu.Unlock()
	return maps.Clone(w.said)
}

// snapshot is a cluster as one of its nodes sees it.
func snapshot(name string, said map[string]subnet.Peer) subnet.Snapshot {
	var s subnet.Snapshot
	for _, p := range said {
		if p.Name != name {
			s.Peers = append(s.Peers, p)
			continue
		}
		s.Self = subnet.Self{Name: name, BackendType: p.BackendType, Also: p.Also}
	}
	slices.SortFunc(s.Peers, func(a, b subnet.Peer) int { return cmp.Compare(a.Name, b.Name) })
	return s
}

// settle waits until every node's kernel is as its plan says, nobody speaks anything besides its own kind, and every pod
// reaches every other.
func (w *world) settle() time.Duration {
	w.Helper()
	begin := time.Now()
	nstest.Eventually(w, patience, func() error {
		for _, n := range w.nodes {
			if err := n.atRest(); err != nil {
				return err
			}
		}
		return nil
	})
	w.reachAll()
	return time.Since(begin)
}

// reachAll waits until every pod reaches every other, in all families.
func (w *world) reachAll() {
	w.Helper()
	for _, from := range w.nodes {
		for _, to := range w.nodes {
			if from != to {
				from.reach(to)
			}
		}
	}
}

// stream is packets from one node's pod to another's.
type stream struct {
	name string
	*nstest.Pinger
}

// traffic sends from every pod to every other, in all families, until it is stopped.
func (w *world) traffic() []stream {
	w.Helper()
	var out []stream
	for _, from := range w.nodes {
		for _, to := range w.nodes {
			for _, f := range w.lane.Families() {
				if from != to {
					out = append(out, stream{fmt.Sprintf("%s > %s %s", from.name, to.name, f),
						from.pod.StartPing(nstest.Ping{Dst: to.podAddr(f).Addr(), Interval: 20 * time.Millisecond})})
				}
			}
		}
	}
	return out
}

// stop stops streams, and wants nothing of them lost.
func (w *world) stop(streams []stream) {
	w.Helper()
	sent := 0
	for _, s := range streams {
		r := s.Stop()
		sent += r.Sent
		if len(r.Lost) > 0 || len(r.Errors) > 0 {
			w.Errorf("%s: %s", s.name, r)
		}
	}
	w.Logf("%d packets and their answers, of %d streams", sent, len(streams))
}

// plus is the address n further on.
func plus(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}

// conn opens a namespace's kernel.
func (w *world) conn(ns *nstest.NS) *kernel.Conn {
	w.Helper()
	c, err := kernel.OpenAt(ns.FD())
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(c.Close)
	return c
}
