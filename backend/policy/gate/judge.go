package gate

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

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
	var errs []error
	for _, n := range held {
		errs = append(errs, g.judge(n, in))
	}
	if !swept {
		errs = append(errs, g.sweep(ctx))
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
	if err := g.table.release(n.Addrs); err != nil {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	if now, there := g.known[n.Name()]; !there || !now.Equal(n) {
		return nil
	}
	g.free[n.Name()] = n
	if judged {
		g.answer(n.Name())
	}
	return nil
}

// inWorld gives the addresses of this node that a World knows; true for those whose pod it knows.
func inWorld(w policy.World) map[netip.Addr]bool {
	in := map[netip.Addr]bool{}
	for _, a := range w.Gated {
		in[a] = false
	}
	for _, p := range w.Pods {
		if !p.Local {
			continue
		}
		for _, a := range p.Addrs {
			if _, gated := in[a]; a.IsValid() && !gated {
				in[a] = true
			}
		}
	}
	return in
}

// sweep lets go the addresses that nobody has a note of: their pods went while no agent was there, and the plugin was
// stopped before it could release them.
func (g *Gate) sweep(ctx context.Context) error {
	held, err := g.table.list(ctx)
	if err != nil {
		return err
	}
	g.mu.Lock()
	noted := map[netip.Addr]bool{}
	for _, n := range g.known {
		for _, a := range n.Addrs {
			noted[a] = true
		}
	}
	g.mu.Unlock()
	var stale []netip.Addr
	for _, a := range held {
		if !noted[a] {
			stale = append(stale, a)
		}
	}
	if len(stale) > 0 {
		g.log.Info("addresses that no pod has are let go", "addresses", stale)
		if err := g.table.release(stale); err != nil {
			return err
		}
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.swept = true
	return nil
}

// ask is a question of the plugin: it blocks until the pod is judged.
func (g *Gate) ask(ctx context.Context, n attach.Note) error {
	g.mu.Lock()
	if !g.shut {
		g.mu.Unlock()
		return nil
	}
	done := make(chan struct{})
	g.known[n.Name()] = n // the note on disk is noticed a moment later
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
