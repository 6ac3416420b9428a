package gate

import (
	"context"
	"maps"
	"net/netip"
	"slices"
	"time"
)

// slowest is how long the plugin may take from its note to its hold.
const slowest = time.Minute

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
	// Whoever was listed has a note by now, which need not have been read yet.
	if err := g.scan(&folder{notes: g.notes, log: g.log}); err != nil {
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
		// What came a moment ago may have been held after the sets were listed.
		old := time.Since(time.Unix(0, n.At)) > slowest
		if old && !slices.ContainsFunc(n.Addrs, func(a netip.Addr) bool { return stale[a] }) {
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
