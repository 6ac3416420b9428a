package mesh_test

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// board is where nodes announce what they speak, in place of an API server.
type board struct {
	mu        sync.Mutex // guards what follows
	announced map[byte]announcement
	moved     map[byte][2]netip.Addr // nodes with other addresses
	gone      byte                   // a node that was taken out
	lacks     map[byte][2]bool       // families that a node has no part in
	listeners []chan struct{}
}

// listen gives a channel that has a value after each change.
func (b *board) listen() <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := make(chan struct{}, 1)
	b.listeners = append(b.listeners, c)
	return c
}

func (b *board) publish(i byte, a announcement) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if was, known := b.announced[i]; known && was == a || b.gone == i {
		return
	}
	b.announced[i] = a
	for _, c := range b.listeners {
		poke(c)
	}
}

func poke(c chan struct{}) {
	select {
	case c <- struct{}{}:
	default:
	}
}

// snapshot is the cluster as node i sees it.
func (b *board) snapshot(i byte) subnet.Snapshot {
	b.mu.Lock()
	defer b.mu.Unlock()
	var s subnet.Snapshot
	for j := byte(1); j < 250; j++ {
		a, ok := b.announced[j]
		switch {
		case !ok:
		case i == j:
			s.Self = subnet.Self{BackendType: a.Kind, Also: a.Also}
		default:
			p := peer(j, a.Kind)
			p.Also = a.Also
			for f := range p.Endpoints {
				if to := b.moved[j][f]; to.IsValid() {
					p.Endpoints[f].PublicIP = to
				}
				if b.lacks[j][f] {
					p.Endpoints[f] = subnet.Endpoint{}
				}
			}
			s.Peers = append(s.Peers, p)
		}
	}
	return s
}

// agent keeps one node's kernel as planned: what the daemon does, without Kubernetes.
type agent struct {
	*nstest.NS
	t     *testing.T
	board *board
	conn  *kernel.Conn
	pod   *nstest.NS
	poked chan struct{}

	mu   sync.Mutex // guards what follows, which the test and the loop share
	conf mesh.Config
	idle error     // what the last round left to do
	kept mesh.Kept // of the last round

	last mesh.Result // of the last good round; the loop's alone
}

func newAgent(t *testing.T, ns *nstest.NS, b *board, conf mesh.Config) *agent {
	t.Helper()
	conn, err := kernel.OpenAt(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	a := &agent{NS: ns, t: t, board: b, conn: conn, conf: conf, poked: make(chan struct{}, 1), idle: fmt.Errorf("no round yet")}
	for _, device := range []string{"default", "eth0"} {
		a.SetSysctl("net.ipv4.conf."+device+".rp_filter", "1") // strict, as some distributions have it
	}
	a.SetSysctl("net.ipv4.conf.all.rp_filter", "0")
	a.conf.Ends = a.ends(conf)
	a.pod = ns.Pod(1420, a.podAddrs()...)
	a.pod.SetSysctl("net.ipv4.conf.eth0.rp_filter", "0")
	return a
}

// ends fills in what only the namespace knows.
func (a *agent) ends(c mesh.Config) [2]mesh.End {
	var iface *net.Interface
	if err := a.Do(func() (err error) { iface, err = net.InterfaceByName("eth0"); return err }); err != nil {
		a.t.Fatal(err)
	}
	for f := range c.Ends {
		if !c.Ends[f].IsZero() {
			c.Ends[f].Parent = iface.Index
		}
	}
	return c.Ends
}

// podAddrs are the pod's addresses: the fifth of each range.
func (a *agent) podAddrs() []netip.Prefix {
	var out []netip.Prefix
	for _, e := range a.conf.Ends {
		if !e.IsZero() {
			addr := e.PodCIDR.Addr()
			for range 5 {
				addr = addr.Next()
			}
			out = append(out, netip.PrefixFrom(addr, e.PodCIDR.Bits()))
		}
	}
	return out
}

// configure is a new net-conf.json.
func (a *agent) configure(kind string, direct bool) {
	a.mu.Lock()
	a.conf.Kind, a.conf.DirectRouting, a.idle = kind, direct, fmt.Errorf("no round yet")
	a.mu.Unlock()
	poke(a.poked)
}

// run is the loop, until the test ends.
func (a *agent) run() {
	a.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	changes, err := a.conn.Watch(ctx)
	if err != nil {
		a.t.Fatal(err)
	}
	news, done := a.board.listen(), make(chan struct{})
	a.t.Cleanup(func() {
		cancel()
		<-done
	})
	go func() {
		defer close(done)
		for {
			again := time.Hour
			err := a.round(ctx)
			if err != nil {
				again = 50 * time.Millisecond
			} else if a.last.Again > 0 {
				again = a.last.Again
			}
			a.mu.Lock()
			a.idle, a.kept = err, a.last.Kept
			a.mu.Unlock()
			select {
			case <-ctx.Done():
				return
			case <-changes.Ours:
			case <-changes.Host:
			case <-news:
			case <-a.poked:
			case <-time.After(again):
			}
		}
	}()
}

// round is one round: plan, compare, apply, announce. An error says that there is more to do.
func (a *agent) round(ctx context.Context) error {
	host, err := a.conn.Host(ctx)
	if err != nil {
		return err
	}
	have, err := a.conn.Dump(ctx)
	if err != nil {
		return err
	}
	a.mu.Lock()
	conf := a.conf
	a.mu.Unlock()
	s := a.board.snapshot(byte(conf.VXLAN.MACs[0][5]))
	conf.Former = formerOf(conf.Kind, s.Self, have)
	plan, err := mesh.Plan(mesh.Input{Config: conf, Snapshot: s, Host: host, Have: have, Last: a.last.Ways, Kept: a.last.Kept, Now: time.Now()})
	if err != nil {
		return err
	}
	ops := kernel.DiffSince(a.last.Want, have, plan.Want)
	for _, op := range ops {
		if err := a.conn.Apply(ctx, op); err != nil {
			return err
		}
	}
	a.last = plan
	if err := a.loosen(plan); err != nil {
		return err
	}
	a.board.publish(byte(conf.VXLAN.MACs[0][5]), announcement{Kind: conf.Kind, Also: plan.Also})
	if len(ops) > 0 {
		return fmt.Errorf("%d changes were due, the first was %s", len(ops), ops[0])
	}
	return nil
}

// loosen sets rp_filter as the daemon does: packets of peers may come by another way than answers go.
func (a *agent) loosen(plan mesh.Result) error {
	return a.Do(func() error {
		for _, device := range append(slices.Clone(plan.Devices), "eth0") {
			value := "2"
			if device == "eth0" && !slices.Contains(plan.Plain, device) {
				value = "1"
			}
			path := "/proc/sys/net/ipv4/conf/" + device + "/rp_filter"
			if now, err := os.ReadFile(path); err == nil && strings.TrimSpace(string(now)) == value {
				continue
			}
			if err := os.WriteFile(path, []byte(value), 0o644); err != nil {
				return err
			}
		}
		return nil
	})
}

// speaks waits until a node announces nothing but a kind, and DirectRouting if it has that.
func (a *agent) speaks(kind string, also subnet.Kinds) error {
	a.mu.Lock()
	defer a.mu.Unlock()
	a.board.mu.Lock()
	defer a.board.mu.Unlock()
	if got := a.board.announced[a.conf.VXLAN.MACs[0][5]]; got.Kind != kind || got.Also != also {
		return fmt.Errorf("node %d announces %+v", a.conf.VXLAN.MACs[0][5], got)
	}
	return a.idle
}
