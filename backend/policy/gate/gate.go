// Package gate holds new pods back until their policies are in the kernel.
//
// A pod's address is known to the CNI plugin first, to this agent next, and to the API server a second later. A policy
// that had to wait for the API would miss the pod's first packets. So it goes like this, whenever there are policies:
//
//  1. When the address is reserved, and before any interface has it, the plugin writes a note (whose address it is) and
//     puts the address into a set of the table "inet weft-gate", which drops what is sent from and to it.
//  2. The plugin attaches the pod, and asks this agent on a socket whether the pod is judged.
//  3. The agent reads the note, the World gets the address, the policies are written. Then the address is let go out of
//     the set, the plugin gets its answer, and the pod's first container starts with its network open to what is allowed.
//
// The plugin itself writes to the kernel, in netlink messages of its own, for the case that there is no agent to ask: then
// the pod starts, held, and is judged when the agent is back, which finds the note. The other designs that were looked at
// leave something open. An agent that watches notes cannot hold an address while it is away. A rule that drops every
// address of the node's range that no policy knows would drop what is none of ours, for instance what another plugin
// attached, and the whole node with an agent that starts on empty tables. The nft program need not be on the host.
//
// The table stands beside the one of the policies because another hand writes to it: whoever keeps a table equal to a
// value must not find strange elements in it, nor lose them when it writes the table anew.
//
// Whether there are policies is asked of the kernel: the table stands, or it does not. A note is written in any case, so
// that the first policy of a cluster finds the addresses of pods that were attached a moment before.
package gate

import (
	"context"
	"errors"
	"log/slog"
	"maps"
	"net/netip"
	"slices"
	"sync"
	"sync/atomic"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/subnet/attach"
)

// Config says where a Gate stands.
type Config struct {
	SubnetFile string // beside which notes and socket are
	NetNS      string // path of a network namespace; empty means the process's own
	Log        *slog.Logger

	// Wrap stands between us and nftables; nil means that nothing does.
	Wrap func(knftables.Interface) knftables.Interface
}

// Gate is the gate of one node.
type Gate struct {
	cfg     Config
	log     *slog.Logger
	notes   attach.Notes
	socket  string
	table   table
	changed chan struct{} // holds one token when notes came or went
	ready   chan struct{} // closed when notes have been read once
	tidy    chan struct{} // holds one token when there is something in old

	reading sync.Mutex // whoever looks at the notes on disk: an older look must not be taken over after a newer one

	// mu protects the fields below: questions, the reader of notes and the policies' loop meet in them.
	mu      sync.Mutex
	shut    bool
	decided bool                   // whether it is shut: Shut was called
	lost    bool                   // the sets were, with the table, and who was in them is to be held again
	known   map[string]attach.Note // by name
	free    map[string]attach.Note // of these, the ones whose addresses are held no longer
	judged  map[string]attach.Note // of these, the ones whose pods are in the World, with rules in the kernel
	waiting map[string][]chan struct{}
	fresh   *newcomers
	swept   bool         // what an agent before us left in the sets has been looked through
	old     []netip.Addr // free, and to be taken out of the sets
}

// New makes a Gate. It touches nothing yet.
func New(cfg Config) *Gate {
	g := &Gate{
		cfg: cfg, log: cfg.Log, changed: make(chan struct{}, 1), ready: make(chan struct{}), tidy: make(chan struct{}, 1),
		known: map[string]attach.Note{}, free: map[string]attach.Note{}, judged: map[string]attach.Note{}, waiting: map[string][]chan struct{}{},
	}
	g.notes, g.socket = attach.Paths(cfg.SubnetFile)
	g.fresh = newNewcomers(netfilter.Host{NetNS: cfg.NetNS})
	g.table = table{host: g.fresh.host, wrap: cfg.Wrap, doubt: &atomic.Bool{}, heard: &atomic.Bool{}}
	return g
}

// Notes are the pods that are attached to this node by our plugin, by name of the note.
func (g *Gate) Notes() []attach.Note {
	g.mu.Lock()
	defer g.mu.Unlock()
	out := make([]attach.Note, 0, len(g.known))
	for _, name := range slices.Sorted(maps.Keys(g.known)) {
		out = append(out, g.known[name])
	}
	return out
}

// Changed has a value whenever Notes may say something new. One reader can use it.
func (g *Gate) Changed() <-chan struct{} { return g.changed }

// Ready is closed when Notes is complete for the first time.
func (g *Gate) Ready() <-chan struct{} { return g.ready }

// Shut puts up the table, or takes it away and lets all pods go. Shut(true) is cheap when all is as wanted, and restores
// what somebody else took away.
func (g *Gate) Shut(ctx context.Context, shut bool) error {
	if !shut {
		if err := g.table.remove(ctx); err != nil {
			return err
		}
		g.open()
		return nil
	}
	was, err := g.table.ensure(ctx)
	if err != nil {
		return err
	}
	if was.mended && !was.made {
		g.fresh.again()
	}
	return g.restore(g.close(was.made))
}

// restore holds the pods again that are to be held, when the sets were lost with the table.
func (g *Gate) restore(lost bool) error {
	if !lost {
		return nil
	}
	// Who was held a moment ago need not be known yet.
	errs := []error{g.scan(&folder{notes: g.notes, log: g.log})}
	for _, n := range g.held() {
		errs = append(errs, g.table.hold(n.Addrs))
	}
	if err := errors.Join(errs...); err != nil {
		return err
	}
	g.fresh.again()
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lost = false
	return nil
}

// Held tells whether an address is held, and those are ended before it is let go that are left of connections with an
// earlier pod.
func (g *Gate) Held(a netip.Addr) bool { return g.fresh.has(a) }

// Close ends what is kept up by this process. The table stays. It is not to be called beside Shut.
func (g *Gate) Close() { g.table.takeDownSign() }

// close notes that the gate is shut. Lost tells that it was before, and that the table had to be made anew.
func (g *Gate) close(made bool) (lost bool) {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.lost = g.lost || g.shut && made
	g.shut, g.decided = true, true
	return g.lost
}

// held are the pods that were not let go yet.
func (g *Gate) held() (held []attach.Note) {
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, n := range g.known {
		if free, there := g.free[name]; !there || !free.Equal(n) {
			held = append(held, n)
		}
	}
	return held
}

// open answers everybody.
func (g *Gate) open() {
	g.mu.Lock()
	defer g.mu.Unlock()
	g.shut, g.decided, g.lost = false, true, false
	g.fresh.reset()
	for name := range g.waiting {
		g.answer(name)
	}
}

// learn takes a note. Only of one that comes while new pods are held, and after what an earlier agent left was looked through,
// is it certain that nothing has passed since. The lock is held.
func (g *Gate) learn(n attach.Note) {
	g.known[n.Name()] = n
	g.fresh.drop(n.Name())
	if n.Held && g.shut && g.swept {
		g.fresh.add(n)
	}
}

// answer tells whoever waits for a pod that it is judged. The lock is held.
func (g *Gate) answer(name string) {
	for _, done := range g.waiting[name] {
		close(done)
	}
	delete(g.waiting, name)
}

// forget drops a question that is not waited for any more. The lock is held.
func (g *Gate) forget(name string, done chan struct{}) {
	left := slices.DeleteFunc(g.waiting[name], func(c chan struct{}) bool { return c == done })
	if g.waiting[name] = left; len(left) == 0 {
		delete(g.waiting, name)
	}
}

func (g *Gate) poke() {
	select {
	case g.changed <- struct{}{}:
	default:
	}
}

// retry is how long what failed is left alone.
const retry = time.Second
