package gate

import (
	"context"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/subnet/attach"
)

// newcomers are the pods that are held, from when their note is seen until they are let go. An address may have been another
// pod's, with connections that the kernel still tracks and whose packets no rule would judge again. They are ended here, while
// the pod's policies are on their way, and for all pods at once: to look for them takes the kernel 10 ms, however few there are.
type newcomers struct {
	host netfilter.Host
	due  chan struct{} // holds one token when there is something to do

	turn sync.Mutex // whoever looks through the kernel's table

	mu   sync.Mutex // of what is below
	pods map[string]*newcomer
}

// newcomer is one of them.
type newcomer struct {
	note attach.Note
	done bool // there are no connections of an earlier pod
}

func newNewcomers(h netfilter.Host) *newcomers {
	return &newcomers{host: h, due: make(chan struct{}, 1), pods: map[string]*newcomer{}}
}

// add takes a pod whose addresses are held, or will be before any interface has them.
func (c *newcomers) add(n attach.Note) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if old := c.pods[n.Name()]; old == nil || !old.note.Equal(n) {
		c.pods[n.Name()] = &newcomer{note: n}
		c.poke()
	}
}

func (c *newcomers) poke() {
	select {
	case c.due <- struct{}{}:
	default:
	}
}

// drop forgets a pod that was let go, or is gone.
func (c *newcomers) drop(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.pods, name)
}

// reset forgets all.
func (c *newcomers) reset() {
	c.mu.Lock()
	defer c.mu.Unlock()
	clear(c.pods)
}

// again has everybody looked after anew, for the addresses were not held for a moment.
func (c *newcomers) again() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for name, p := range c.pods { // a new one: whoever looks through the kernel's table just now began before
		c.pods[name] = &newcomer{note: p.note}
		c.poke()
	}
}

// has tells whether an address is one of theirs.
func (c *newcomers) has(a netip.Addr) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range c.pods {
		if slices.Contains(p.note.Addrs, a) {
			return true
		}
	}
	return false
}

// left are those who may have connections of an earlier pod.
func (c *newcomers) left() (pods []*newcomer, addrs map[netip.Addr]bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	addrs = map[netip.Addr]bool{}
	for _, p := range c.pods {
		if p.done {
			continue
		}
		pods = append(pods, p)
		for _, a := range p.note.Addrs {
			addrs[a] = true
		}
	}
	return pods, addrs
}

// end ends the connections of earlier pods. Those of a pod are over for good if nothing could begin while they were looked for: its
// addresses were held, or it is the one that is named, whose rules are in force.
func (c *newcomers) end(ruled string) error {
	c.turn.Lock()
	defer c.turn.Unlock()
	pods, addrs := c.left()
	if ruled != "" && !slices.ContainsFunc(pods, func(p *newcomer) bool { return p.note.Name() == ruled }) {
		return nil
	}
	over, err := c.heldOf(pods, ruled)
	if len(pods) == 0 || err != nil {
		return err
	}
	old, err := c.host.Connections(func(x netfilter.Connection) bool {
		return addrs[x.Original.Src] || addrs[x.Original.Dst] || addrs[x.Reply.Src] || addrs[x.Reply.Dst]
	})
	if err == nil {
		err = c.host.Forget(old)
	}
	if err != nil {
		return err
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, p := range over {
		p.done = true
	}
	return nil
}

// heldOf picks the pods all of whose addresses are held by now, and the one of a name: the plugin writes the note first, and holds
// them then.
func (c *newcomers) heldOf(pods []*newcomer, name string) (held []*newcomer, err error) {
	for _, p := range pods {
		if p.note.Name() == name {
			held = append(held, p)
			continue
		}
		var addrs []netip.Addr
		err := c.host.Inside(func() (err error) { addrs, err = attach.Held(p.note.Addrs); return err })
		if err != nil {
			return nil, err
		}
		if len(addrs) == len(p.note.Addrs) {
			held = append(held, p)
		}
	}
	return held, nil
}

// await gives the plugin a moment between its note and its hold.
func (c *newcomers) await(ctx context.Context) {
	for range 20 {
		pods, _ := c.left()
		if held, err := c.heldOf(pods, ""); err != nil || len(held) == len(pods) {
			return
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(time.Millisecond):
		}
	}
}

// run does it as soon as there is something to do; Judged does it again if that fails, or is too early.
func (c *newcomers) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.due:
		}
		c.await(ctx)
		if err := c.end(""); err != nil {
			return err
		}
	}
}
