package gate

import (
	"context"
	"errors"
	"fmt"
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
func (g *Gate) judge(n attach.Note, in places) error {
	there, judged := in.have(n)
	if !there {
		return nil
	}
	g.mu.Lock()
	was, done := g.free[n.Name()]
	done = done && was.Equal(n)
	asked := len(g.waiting[n.Name()]) > 0
	g.mu.Unlock()
	if done && asked { // one that is held and noted at one time may be let go before it is held
		held, err := g.table.held(n.Addrs)
		if err != nil {
			return err
		}
		done = len(held) == 0
	}
	if gone, err := g.letGo(n, letting{done: done, asked: asked}); gone || err != nil {
		return err
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

// places is whose the addresses of this node are in a World; nobody's where it only knows that nothing passes.
type places map[netip.Addr][]*policy.Pod

func inWorld(w policy.World) places {
	in := places{}
	for _, a := range w.Gated {
		in[a] = nil
	}
	for _, p := range w.OnThisNode() {
		for _, a := range p.Addrs {
			if pods, there := in[a]; a.IsValid() && (!there || pods != nil) {
				in[a] = append(pods, p)
			}
		}
	}
	return in
}

// have tells whether a World has all addresses of a note, and whether as its pod's. An earlier pod of such an address says nothing.
func (in places) have(n attach.Note) (there, judged bool) {
	judged = true
	for _, a := range n.Addrs {
		pods, known := in[a]
		if !known {
			return false, false
		}
		is := slices.ContainsFunc(pods, func(p *policy.Pod) bool {
			return p.Namespace == n.Namespace && p.Name == n.Pod && (n.UID == "" || n.UID == p.UID)
		})
		if pods != nil && !is {
			return false, false
		}
		judged = judged && is
	}
	return true, judged
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
		return g.loosen(n)
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
