package gate

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/subnet/attach"
)

// Judged says that a World is in the kernel: it lets go the addresses that the World knows, and answers for the pods among
// them. An address that is in the World only as gated is dropped there, and need not be dropped here too, but its pod is
// not judged.
func (g *Gate) Judged(ctx context.Context, w policy.World) error {
	g.mu.Lock()
	var held []attach.Note
	for name, n := range g.known {
		if free, there := g.free[name]; !there || !free.Equal(n) || len(g.waiting[name]) > 0 {
			held = append(held, n)
		}
	}
	swept := g.swept
	g.mu.Unlock()
	if len(held) == 0 && swept {
		return nil
	}
	in := inWorld(w)
	errs := []error{nil}
	if !swept {
		errs[0] = g.sweep(ctx)
	}
	for _, n := range held {
		errs = append(errs, g.judge(n, in))
	}
	return errors.Join(errs...)
}

// judge lets one go, if the World has it.
func (g *Gate) judge(n attach.Note, in map[netip.Addr]bool) error {
	judged := true
	for _, a := range n.Addrs {
		pod, there := in[a]
		if !there {
			return nil
		}
		judged = judged && pod
	}
	g.mu.Lock()
	was, done := g.free[n.Name()]
	done = done && was.Equal(n)
	asked := len(g.waiting[n.Name()]) > 0
	g.mu.Unlock()
	if _, err := g.notes.Read(n.Name()); err != nil && !asked {
		return nil // the pod is gone, and its address may be the next one's already
	}
	if !done {
		if err := g.fresh.end(); err != nil {
			return err
		}
		if err := g.table.free(n.Addrs); err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now, there := g.known[n.Name()]; !there || !now.Equal(n) {
		return nil
	}
	if !done {
		g.free[n.Name()] = n
		g.fresh.drop(n.Name())
		g.release(n.Addrs)
	}
	if judged {
		g.judged[n.Name()] = n
		g.answer(n.Name())
	}
	return nil
}

// release has addresses that are free taken out of the sets, some time soon. The lock is held.
func (g *Gate) release(addrs []netip.Addr) {
	g.old = append(g.old, addrs...)
	select {
	case g.tidy <- struct{}{}:
	default:
	}
}

// clean takes free addresses out of the sets. It has a goroutine of its own, since the kernel takes ten milliseconds for
// each.
func (g *Gate) clean(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-g.tidy:
		}
		g.mu.Lock()
		old := g.old
		g.old = nil
		g.mu.Unlock()
		if err := g.table.release(old); err != nil {
			return err
		}
	}
}

// inWorld gives the addresses of this node that a World knows; true for those whose pod it knows.
func inWorld(w policy.World) map[netip.Addr]bool {
	in := map[netip.Addr]bool{}
	for _, a := range w.Gated {
		in[a] = false
	}
	for _, p := range w.OnThisNode() {
		for _, a := range p.Addrs {
			if _, gated := in[a]; a.IsValid() && !gated {
				in[a] = true
			}
		}
	}
	return in
}

// sweep looks through the sets once: pods whose addresses are not held need not be let go, and addresses that nobody has a
// note of are let go, since their pods went while no agent was there.
func (g *Gate) sweep(ctx context.Context) error {
	select {
	case <-g.ready:
	default:
		return nil // what is noted is not known yet
	}
	held, err := g.table.list(ctx)
	if err != nil {
		return err
	}
	stale := g.unnoted(held)
	if len(stale) > 0 {
		g.log.Info("addresses that no pod has are let go", "addresses", stale)
		if err := g.table.free(stale); err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.swept = true
	g.release(stale)
	return nil
}

// unnoted picks the addresses that nobody has a note of, and marks the pods that are not held.
func (g *Gate) unnoted(held []netip.Addr) []netip.Addr {
	stale := map[netip.Addr]bool{}
	for _, a := range held {
		stale[a] = true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for name, n := range g.known {
		if !slices.ContainsFunc(n.Addrs, func(a netip.Addr) bool { return stale[a] }) {
			g.free[name] = n
		}
	}
	for _, n := range g.known {
		for _, a := range n.Addrs {
			delete(stale, a)
		}
	}
	return slices.SortedFunc(maps.Keys(stale), netip.Addr.Compare)
}

// ask is a question of the plugin: it blocks until the pod is judged.
func (g *Gate) ask(ctx context.Context, n attach.Note) error {
	stands, err := g.table.stands() // an agent that has just started does not know yet whether there are policies
	if err != nil {
		return err
	}
	g.mu.Lock()
	if !g.shut && (g.decided || !stands) {
		g.mu.Unlock()
		return nil
	}
	// The note is mostly noticed, and its pod judged, before the plugin asks. Then there is no news for anybody to act upon.
	if seen, there := g.judged[n.Name()]; there && seen.Equal(n) {
		g.mu.Unlock()
		return nil
	}
	done := make(chan struct{})
	if old, there := g.known[n.Name()]; !there || !old.Equal(n) {
		g.learn(n) // the note on disk is noticed a moment later
	}
	g.waiting[n.Name()] = append(g.waiting[n.Name()], done)
	g.mu.Unlock()
	g.poke()
	select {
	case <-done:
		return nil
	case <-ctx.Done():
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.forget(n.Name(), done)
	return fmt.Errorf("the API server has not told of pod %s/%s, or the kernel does not take its policies: see this agent's log", n.Namespace, n.Pod)
}
