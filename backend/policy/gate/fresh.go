package gate

import (
	"context"
	"net/netip"
	"slices"
	"sync"

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
	for _, p := range c.pods {
		p.done = false
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

// end ends the connections of earlier pods. When it returns without an error there are none.
func (c *newcomers) end() error {
	c.turn.Lock()
	defer c.turn.Unlock()
	pods, addrs := c.left()
	if len(pods) == 0 {
		return nil
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
	for _, p := range pods {
		p.done = true
	}
	return nil
}

// run does it as soon as there is something to do; Judged does it again if that fails.
func (c *newcomers) run(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-c.due:
		}
		if err := c.end(); err != nil {
			return err
		}
	}
}
