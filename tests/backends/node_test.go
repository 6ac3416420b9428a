package backends

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/backend/wireguard"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// node is a host with a pod, and with an agent that may be stopped and started.
type node struct {
	*nstest.NS
	w     *world
	i     int
	name  string
	key   subnet.Secret
	conn  *kernel.Conn
	pod   *nstest.NS
	pokes chan struct{}
	stop  func()  // nil while no agent runs
	far   *caller // nil: what others announce is known at once

	mu      sync.Mutex // guards what follows, which tests look at while the agent runs
	setup   setup
	result  mesh.Result
	reached kernel.State // wanted by the last round without an error
	ops     []kernel.Op  // of all rounds since the agent started
	failure error        // of the last round
}

func (w *world) newNode(i int) *node {
	w.Helper()
	n := &node{NS: w.fabric.Nodes[i-1], w: w, i: i, name: fmt.Sprintf("n%d", i), key: newKey(), pokes: make(chan struct{}, 1)}
	n.IP("route add default via 192.168.50.254")
	n.IP("-6 route add default via fd00:50::fe")
	n.conn = w.conn(n.NS)
	n.pod = n.Pod(1280, n.podAddrs()...)
	return n
}

// newKey is a private key of WireGuard.
func newKey() (key subnet.Secret) {
	_, _ = rand.Read(key[:]) // never fails on Linux
	key[0] &= 248
	key[31] = key[31]&127 | 64
	return key
}

// podAddr is the pod's address in a family: the fifth of the node's range.
func (n *node) podAddr(f subnet.Family) netip.Prefix {
	cidr := lane.PodCIDR(f, n.i)
	return netip.PrefixFrom(plus(cidr.Addr(), 5), cidr.Bits())
}

func (n *node) podAddrs() []netip.Prefix {
	var out []netip.Prefix
	for _, f := range n.w.lane.Families() {
		out = append(out, n.podAddr(f))
	}
	return out
}

// public is the node's address on the underlay.
func (n *node) public(f subnet.Family) netip.Addr {
	return [2]netip.Addr{n.w.fabric.Addr(n.i), n.w.fabric.Addr6(n.i)}[f]
}

// reach waits until the node's pod reaches another's in all families.
func (n *node) reach(to *node) {
	n.w.Helper()
	for _, a := range to.podAddrs() {
		nstest.Eventually(n.w, patience, func() error { return n.pod.CanPing(a.Addr()) })
	}
}

// config is the plan's. What the node spoke before is what it has announced, and what its devices show.
func (n *node) config(s setup, self subnet.Self, host kernel.Host, have kernel.State) mesh.Config {
	nic := host.Links[slices.IndexFunc(host.Links, func(l kernel.HostLink) bool { return l.Name == "eth0" })]
	c := mesh.Config{
		Kind: s.kind, DirectRouting: s.direct, Former: formerKinds(s.kind, self, have),
		VXLAN: mesh.VXLAN{VNI: 1, Port: 4789}, WireGuard: mesh.WireGuard{Conf: s.wg, Key: n.key},
	}
	for _, f := range n.w.lane.Families() {
		c.Networks[f] = lane.Network(f)
		c.Ends[f] = mesh.End{
			PodCIDR: lane.PodCIDR(f, n.i), Local: n.public(f), Parent: nic.Index, ParentName: nic.Name, UnderlayMTU: nic.MTU,
		}
		c.VXLAN.MACs[f] = subnet.MAC{0x0a, 4 * byte(f), 0, 0, 0, byte(n.i)}
	}
	return c
}

func formerKinds(own string, self subnet.Self, have kernel.State) subnet.Kinds {
	kinds := append(self.Also.List(), self.BackendType)
	for _, l := range have.Links {
		kinds = append(kinds, kindOf(l))
	}
	return subnet.KindsOf(slices.DeleteFunc(kinds, func(k string) bool { return k == own })...)
}

// kindOf is the kind of backend that a device belongs to.
func kindOf(l kernel.Link) string {
	return map[string]string{
		kernel.KindVXLAN: subnet.VXLAN, kernel.KindWireGuard: subnet.WireGuard, kernel.KindIPIP: subnet.IPIP, kernel.KindIP6Tnl: subnet.IPIP,
	}[l.Kind]
}

// announcement is what the node says of itself after a round.
func (n *node) announcement(c mesh.Config, also subnet.Kinds) subnet.Peer {
	p := subnet.Peer{Name: n.name, UID: n.name, BackendType: c.Kind, Also: also}
	speaks := subnet.KindsOf(c.Kind) | also
	if speaks.Has(subnet.VXLAN) {
		p.VNI, p.Port = c.VXLAN.VNI, c.VXLAN.Port
	}
	if speaks.Has(subnet.WireGuard) {
		p.Key, p.WGPorts = wireguard.PublicKey(c.WireGuard.Key), c.WireGuard.Conf.Ports
	}
	for f, e := range c.Ends {
		if !e.IsZero() {
			p.Endpoints[f] = subnet.Endpoint{PodCIDR: e.PodCIDR, PublicIP: e.Local}
		}
		if !e.IsZero() && speaks.Has(subnet.VXLAN) {
			p.Endpoints[f].MAC = c.VXLAN.MACs[f]
		}
	}
	return p
}

// start starts the agent.
func (n *node) start(s setup) {
	n.w.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	changes, err := n.conn.Watch(ctx)
	if err != nil {
		n.w.Fatal(err)
	}
	n.mu.Lock()
	n.setup, n.result, n.reached, n.ops, n.failure = s, mesh.Result{}, kernel.State{}, nil, errors.New("no round yet")
	n.mu.Unlock()
	done := make(chan struct{})
	var follower sync.WaitGroup
	if n.far != nil {
		follower.Go(func() { n.far.follow(ctx, n.poke) })
	}
	n.stop = func() {
		cancel()
		<-done
		follower.Wait()
		n.stop = nil
	}
	n.w.Cleanup(func() {
		if n.stop != nil {
			n.stop()
		}
	})
	go func() {
		defer close(done)
		n.run(ctx, changes)
	}()
}

// restart ends the agent, and starts one with another setup.
func (n *node) restart(s setup) {
	n.w.Helper()
	if n.stop != nil {
		n.stop()
	}
	n.start(s)
}

func (n *node) poke() {
	select {
	case n.pokes <- struct{}{}:
	default:
	}
}

// run turns rounds until the end: whenever something changed, and when the plan or an error asks for it.
func (n *node) run(ctx context.Context, changes kernel.Changes) {
	for {
		again := n.round(ctx)
		var timer <-chan time.Time
		if again > 0 {
			timer = time.After(again)
		}
		select {
		case <-ctx.Done():
			return
		case <-changes.Ours:
		case <-changes.Host:
		case <-n.pokes:
		case <-timer:
		}
	}
}

// round is one turn of a daemon's loop; it returns when the next is due if nothing happens.
func (n *node) round(ctx context.Context) time.Duration {
	again, err := n.turn(ctx)
	n.mu.Lock()
	n.failure = err
	n.mu.Unlock()
	if err != nil {
		return 50 * time.Millisecond
	}
	return again
}

func (n *node) turn(ctx context.Context) (time.Duration, error) {
	host, err := n.conn.Host(ctx)
	if err != nil {
		return 0, err
	}
	have, err := n.conn.Dump(ctx)
	if err != nil {
		return 0, err
	}
	said := n.w.all
	if n.far != nil {
		said = n.far.peers
	}
	snap := snapshot(n.name, said())
	n.mu.Lock()
	s, last, reached := n.setup, n.result, n.reached
	n.mu.Unlock()
	cfg := n.config(s, snap.Self, host, have)
	r, err := mesh.Plan(mesh.Input{Config: cfg, Snapshot: snap, Host: host, Have: have, Last: last.Ways, Kept: last.Kept, Now: time.Now()})
	if err != nil {
		return 0, err
	}
	ops := kernel.DiffSince(reached, have, r.Want)
	var errs []error
	for _, op := range ops {
		if !op.Guard || len(errs) == 0 {
			errs = append(errs, n.conn.Apply(ctx, op))
		}
	}
	err = errors.Join(errs...)
	n.mu.Lock()
	n.result, n.ops = r, append(n.ops, ops...)
	if err == nil {
		n.reached = r.Want
	}
	n.mu.Unlock()
	switch {
	case err != nil || ctx.Err() != nil:
	case n.far != nil:
		err = n.far.announce(ctx, n.announcement(cfg, r.Also))
	default:
		n.w.announce(n.announcement(cfg, r.Also))
	}
	return r.Again, err
}

// look returns what the last round made, and its error.
func (n *node) look() (mesh.Result, error) {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.result, n.failure
}

// done lists the changes since the agent started.
func (n *node) done() []kernel.Op {
	n.mu.Lock()
	defer n.mu.Unlock()
	return slices.Clone(n.ops)
}

// atRest tells what keeps the node from being where it is going.
func (n *node) atRest() error {
	r, err := n.look()
	if err != nil {
		return fmt.Errorf("%s: %w", n.name, err)
	}
	also := subnet.Kinds(0)
	if n.setup.direct {
		also = subnet.KindsOf(subnet.HostGW)
	}
	if r.Also != also {
		return fmt.Errorf("%s still speaks %v", n.name, r.Also)
	}
	for name, ways := range r.Ways {
		for _, f := range n.w.lane.Families() {
			if kind := ways[f].Kind; kind != n.setup.kind && (!n.setup.direct || kind != subnet.HostGW) {
				return fmt.Errorf("%s reaches %s in %s by %q: %v", n.name, name, f, kind, r.Problems)
			}
		}
	}
	if len(r.Ways) != len(n.w.nodes)-1 {
		return fmt.Errorf("%s knows %d peers", n.name, len(r.Ways))
	}
	have, err := n.conn.Dump(context.Background())
	if err != nil {
		return err
	}
	if ops := kernel.Diff(have, r.Want); len(ops) > 0 {
		return fmt.Errorf("%s: %d changes are due, the first is %s", n.name, len(ops), ops[0])
	}
	return nil
}

// devices lists the node's devices by the kinds of backend.
func (n *node) devices() []string {
	have, err := n.conn.Dump(context.Background())
	if err != nil {
		n.w.Fatal(err)
	}
	var out []string
	for name := range have.Links {
		out = append(out, name)
	}
	slices.Sort(out)
	return out
}
