package daemon

import (
	"context"
	"net/netip"
	"sync/atomic"
	"time"
)

// moved notices that a running node was given other pod CIDRs, as one is whose Node was deleted and made anew. The pods' bridge keeps
// the address of the old range for as long as one of its pods lives, and no new pod starts meanwhile; so after a move the
// collection looks far more often than every minute for the end of the last one.
type moved struct {
	last atomic.Pointer[[2]netip.Prefix]
}

const (
	movedPeriod = 2 * time.Second
	movedLong   = 5 * time.Minute // a pod that is deleted has gone by then, whatever its grace period
)

// to reports whether these are other ranges than the last time.
func (m *moved) to(now [2]netip.Prefix) bool {
	old := m.last.Swap(&now)
	return old != nil && *old != now
}

// chase pokes again and again for a while.
func chase(ctx context.Context, poke func()) {
	ctx, cancel := context.WithTimeout(ctx, movedLong)
	defer cancel()
	tick := time.NewTicker(movedPeriod)
	defer tick.Stop()
	for {
		poke()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
