package vxlan_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/vxlan"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
	"github.com/weft-cni/weft/tests/terms"
)

// cluster is a few nodes on one fabric, each with a pod, whose kernels are brought to the plan by hand: what the
// daemon does, without Kubernetes.
type cluster struct {
	t      *testing.T
	fabric *nstest.Fabric
	nodes  []*host
}

// host is one node.
type host struct {
	*nstest.NS
	t    *testing.T
	i    byte
	conn *kernel.Conn
	pod  *nstest.NS
	cfg  vxlan.Config

	mu    sync.Mutex // guards peers: tests change them while a keeper runs
	peers []subnet.Peer
}

// families chooses which of the families a cluster has.
type families func(vxlan.Config) vxlan.Config

func v6(c vxlan.Config) vxlan.Config {
	c.VTEPs[subnet.IPv4] = vxlan.VTEP{}
	return c
}

func dual(c vxlan.Config) vxlan.Config { return c }

// family is the only one of a cluster. Tests speak of IPv4; in, addr and prefix put that into the family's terms.
type family struct {
	subnet.Family
	only families
}

func (f family) in(text string) string           { return terms.In(f.Family, text) }
func (f family) addr(text string) netip.Addr     { return netip.MustParseAddr(f.in(text)) }
func (f family) prefix(text string) netip.Prefix { return netip.MustParsePrefix(f.in(text)) }

// overhead is what the family's tunnels add to a packet.
func (f family) overhead() int { return [2]int{50, 70}[f.Family] }

// plain takes out of ip's output what every line of IPv6 has, and what the kernel adds by itself.
func plain(text string) string {
	var out strings.Builder
	for line := range strings.Lines(text) {
		words := slices.DeleteFunc(strings.Fields(line), func(w string) bool { return strings.HasPrefix(w, "fe80") })
		line = usualMetric.ReplaceAllString(strings.ReplaceAll(strings.Join(words, " "), " pref medium", ""), "")
		if !strings.Contains(line, "proto kernel") {
			out.WriteString(line + "\n")
		}
	}
	return out.String()
}

// usualMetric is that of IPv6 routes: 1024, and one less for each time that a route has moved.
var usualMetric = regexp.MustCompile(` metric 10[0-2][0-9]`)

// inEachFamily runs a test with clusters of one family, for each family of the lane.
func inEachFamily(t *testing.T, test func(t *testing.T, f family)) {
	t.Helper()
	for _, f := range lane.Of(t).Families() {
		t.Run(f.String(), func(t *testing.T) { test(t, family{f, [2]families{v4, v6}[f]}) })
	}
}

// widest has both families, unless the lane has IPv6 alone.
func widest(t *testing.T) families {
	if lane.Of(t) == lane.IPv6 {
		return v6
	}
	return dual
}

// newCluster makes n nodes that know each other, and brings their kernels to the plan.
func newCluster(t *testing.T, n int, fam families) *cluster {
	t.Helper()
	c := &cluster{t: t, fabric: nstest.NewFabric(t, n)}
	for i := range n {
		c.nodes = append(c.nodes, newHost(t, c.fabric.Nodes[i], byte(i+1), fam))
	}
	for _, h := range c.nodes {
		for _, other := range c.nodes {
			if other != h {
				h.peers = append(h.peers, other.announced())
			}
		}
		h.sync()
	}
	return c
}

func newHost(t *testing.T, ns *nstest.NS, i byte, fam families) *host {
	t.Helper()
	conn, err := kernel.OpenAt(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	h := &host{NS: ns, t: t, i: i, conn: conn, cfg: config()}
	p := peer(i)
	for _, f := range subnet.Families() {
		v := &h.cfg.VTEPs[f]
		v.PodCIDR, v.Local, v.MAC = p.Endpoints[f].PodCIDR, p.Endpoints[f].PublicIP, p.Endpoints[f].MAC
		v.Parent = h.index("eth0")
	}
	h.cfg = fam(h.cfg)
	h.pod = ns.Pod(h.cfg.PodMTU(), h.podAddrs()...)
	return h
}

// podAddrs are the pod's addresses: the fifth of each range.
func (h *host) podAddrs() []netip.Prefix {
	var addrs []netip.Prefix
	for _, f := range subnet.Families() {
		if v := h.cfg.VTEPs[f]; !v.IsZero() {
			addrs = append(addrs, netip.PrefixFrom(plus(v.PodCIDR.Addr(), 5), v.PodCIDR.Bits()))
		}
	}
	return addrs
}

func plus(a netip.Addr, n int) netip.Addr {
	for range n {
		a = a.Next()
	}
	return a
}

func (h *host) index(device string) int {
	h.t.Helper()
	var iface *net.Interface
	err := h.Do(func() (err error) {
		iface, err = net.InterfaceByName(device)
		return err
	})
	if err != nil {
		h.t.Fatal(err)
	}
	return iface.Index
}

// announced is how the others see a node.
func (h *host) announced() subnet.Peer {
	p := peer(h.i)
	p.VNI, p.Port = h.cfg.VNI, h.cfg.Port
	for _, f := range subnet.Families() {
		if h.cfg.VTEPs[f].IsZero() {
			p.Endpoints[f] = subnet.Endpoint{}
		}
	}
	return p
}

// know replaces what a node knows about others.
func (h *host) know(peers ...subnet.Peer) {
	h.mu.Lock()
	defer h.mu.Unlock()
	for _, p := range peers {
		h.peers = slices.DeleteFunc(h.peers, func(o subnet.Peer) bool { return o.Name == p.Name })
		h.peers = append(h.peers, p)
	}
}

// forget takes a node out of what h knows.
func (h *host) forget(name string) {
	h.mu.Lock()
	defer h.mu.Unlock()
	h.peers = slices.DeleteFunc(h.peers, func(o subnet.Peer) bool { return o.Name == name })
}

func (h *host) plan() (kernel.State, error) {
	h.mu.Lock()
	defer h.mu.Unlock()
	return vxlan.Plan(h.cfg, subnet.Snapshot{Peers: slices.Clone(h.peers)})
}

// round is one turn of a daemon's loop: it returns what it did, or tried.
func (h *host) round() ([]kernel.Op, error) {
	want, err := h.plan()
	if err != nil {
		return nil, err
	}
	have, err := h.conn.Dump(context.Background())
	if err != nil {
		return nil, err
	}
	ops := kernel.Diff(have, want)
	var errs []error
	for _, op := range ops {
		errs = append(errs, h.conn.Apply(context.Background(), op))
	}
	return ops, errors.Join(errs...)
}

// sync is a round that must succeed and leave nothing to do.
func (h *host) sync() []kernel.Op {
	h.t.Helper()
	ops, err := h.round()
	if err != nil {
		h.t.Fatalf("node %d: %v", h.i, err)
	}
	if again, err := h.round(); err != nil || len(again) > 0 {
		h.t.Fatalf("node %d: a second round is not idle: %v %v", h.i, again, err)
	}
	return ops
}

// keep syncs the node whenever its kernel changes, as the daemon does, until the test ends. Failed rounds are tried
// again after 50 ms.
func (h *host) keep() {
	h.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	changes, err := h.conn.Watch(ctx)
	if err != nil {
		h.t.Fatal(err)
	}
	done := make(chan struct{})
	h.t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		for {
			var retry <-chan time.Time
			if _, err := h.round(); err != nil {
				retry = time.After(50 * time.Millisecond)
			}
			select {
			case <-ctx.Done():
				return
			case <-changes.Ours:
			case <-retry:
			}
		}
	}()
}

// inSync reports whether the kernel is as planned.
func (h *host) inSync() error {
	want, err := h.plan()
	if err != nil {
		return err
	}
	have, err := h.conn.Dump(context.Background())
	if err != nil {
		return err
	}
	if ops := kernel.Diff(have, want); len(ops) > 0 {
		return fmt.Errorf("node %d: %d changes are due, the first is %s", h.i, len(ops), ops[0])
	}
	return nil
}

// reach waits until a node's pod reaches the pods of all others, in all families.
func (c *cluster) reach(from *host, within time.Duration) {
	c.t.Helper()
	for _, to := range c.nodes {
		if to == from {
			continue
		}
		for _, a := range to.podAddrs() {
			nstest.Eventually(c.t, within, func() error { return from.pod.CanPing(a.Addr()) })
		}
	}
}

// reachAll checks all pairs.
func (c *cluster) reachAll(within time.Duration) {
	c.t.Helper()
	for _, h := range c.nodes {
		c.reach(h, within)
	}
}
