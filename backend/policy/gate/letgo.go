package gate

import (
	"context"
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/subnet/attach"
)

// letting is how far a pod is whose addresses are to be let go.
type letting struct {
	done  bool // they are
	asked bool // the plugin waits for it
}

// letGo lets the addresses of a pod go, unless it is gone and they may be the next one's already.
func (g *Gate) letGo(n attach.Note, l letting) (gone bool, err error) {
	if !l.done {
		if err := g.fresh.end(n.Name()); err != nil {
			return false, err
		}
	}
	if g.left(n, l.asked) {
		return true, nil
	}
	if l.done {
		return false, nil
	}
	if err := g.table.free(n.Addrs); err != nil {
		return false, err
	}
	if !g.left(n, l.asked) {
		return false, nil
	}
	next, err := g.claimed(n)
	if err == nil && len(next) > 0 {
		err = g.table.hold(next)
	}
	return true, err
}

// left tells whether a pod is gone, or has been attached anew, or its address is another's by now. What the plugin waits for need
// not be on disk: somebody may have tidied there.
func (g *Gate) left(n attach.Note, asked bool) bool {
	if now, err := g.notes.Read(n.Name()); err != nil && !asked || err == nil && !now.Equal(n) {
		return true
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	for _, next := range g.known {
		if next.At > n.At && slices.ContainsFunc(next.Addrs, func(a netip.Addr) bool { return slices.Contains(n.Addrs, a) }) {
			return true
		}
	}
	return false
}

// claimed are those addresses of a pod that is gone which another one has by now.
func (g *Gate) claimed(gone attach.Note) (out []netip.Addr, err error) {
	notes, err := (&folder{notes: g.notes, log: g.log}).look()
	for _, n := range notes {
		if n.Equal(gone) {
			continue
		}
		for _, a := range n.Addrs {
			if slices.Contains(gone.Addrs, a) {
				out = append(out, a)
			}
		}
	}
	return out, err
}

// loosen lets the addresses of a judged pod go once more: the plugin was slow, and held them when they had been let go.
func (g *Gate) loosen(n attach.Note) error {
	held, err := g.table.held(n.Addrs)
	if err == nil && len(held) > 0 {
		err = g.table.free(n.Addrs)
	}
	if err != nil || len(held) == 0 {
		return err
	}
	g.mu.Lock()
	defer g.mu.Unlock()
	g.release(n.Addrs)
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
