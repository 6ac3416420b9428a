// Package backend holds the engine that every arrow into the kernel is driven by: Loop runs one idempotent sync
// whenever something may have changed, retries it until it succeeds, and repeats it now and then all the same.
// What is synced lives in the packages below.
package backend

import (
	"context"
	"fmt"
	"log/slog"
	"math/rand/v2"
	"sync"
	"sync/atomic"
	"time"
)

// What a Loop uses where its field is zero.
const (
	DefaultRetry  = time.Second
	DefaultResync = 30 * time.Second
)

// A stream of pokes that never pauses delays a sync by at most this many settle times.
const maxSettles = 10

// Loop calls Sync until the world is as wanted, and again when somebody pokes. It carries no queue: Sync compares all
// that is with all that should be, so a thousand pokes are worth one turn, and a missed one costs at most Resync.
//
// A turn that fails is retried after Retry, doubling up to MaxRetry. A poke cuts that wait short, for it may bring the
// cure, but never below Retry: a sync that fails half-way changes the kernel, and so pokes itself.
type Loop struct {
	Name     string
	Sync     func(ctx context.Context) error
	Settle   time.Duration                       // how long it has to be quiet after a poke before Sync runs
	Retry    time.Duration                       // first wait after an error; 0 means DefaultRetry
	MaxRetry time.Duration                       // longest wait after an error; 0 means Resync
	Resync   time.Duration                       // longest time between two turns; 0 means DefaultResync
	Log      *slog.Logger                        // nil discards
	OnResult func(err error, took time.Duration) // called after each turn, may be nil

	once  sync.Once // makes poked, so that Poke may come before Run
	poked chan struct{}
	last  atomic.Pointer[time.Time]
}

// Poke says that something may have changed. It never blocks, and may be called from anywhere at any time.
func (l *Loop) Poke() {
	select {
	case l.pokes() <- struct{}{}:
	default: // one is waiting already, and one is enough
	}
}

// LastTurn is when Sync returned last, with or without an error; until then it is when Run began, and before that
// the zero time. A LastTurn that grows older than a few resync periods means that a sync hangs.
func (l *Loop) LastTurn() time.Time {
	if t := l.last.Load(); t != nil {
		return *t
	}
	return time.Time{}
}

// Run turns the loop until ctx ends, and then returns nil. The first turn comes at once.
func (l *Loop) Run(ctx context.Context) error {
	if l.Sync == nil {
		return fmt.Errorf("run loop %q: it has no Sync", l.Name)
	}
	l.turned()
	report := newReport(l.Log, l.Name, l.resync())
	for wait := l.retry(); ctx.Err() == nil; {
		err := l.turn(ctx)
		if ctx.Err() != nil {
			break // what failed because we stop is nobody's concern
		}
		report.result(err)
		if err == nil {
			wait = l.retry()
			l.rest(ctx, jitter(l.resync()))
			continue
		}
		l.backOff(ctx, wait)
		wait = min(2*wait, max(l.maxRetry(), l.retry()))
	}
	return nil
}

// turn runs Sync once and tells who wants to know.
func (l *Loop) turn(ctx context.Context) error {
	start := time.Now()
	err := l.Sync(ctx)
	l.turned()
	if l.OnResult != nil && ctx.Err() == nil {
		l.OnResult(err, time.Since(start))
	}
	return err
}

// rest waits for a poke and the quiet after it, or for d to pass.
func (l *Loop) rest(ctx context.Context, d time.Duration) {
	if !l.wait(ctx, d) {
		return
	}
	for end := time.Now().Add(maxSettles * l.Settle); ctx.Err() == nil; {
		quiet := min(l.Settle, time.Until(end))
		if quiet <= 0 || !l.wait(ctx, quiet) {
			return
		}
	}
}

// backOff waits for d after an error; a poke ends it once the shortest wait is over. That grows with d up to a second, so that
// quick first retries do not stay quick.
func (l *Loop) backOff(ctx context.Context, d time.Duration) {
	least := min(d, max(l.retry(), DefaultRetry))
	sleep(ctx, least)
	l.rest(ctx, d-least)
}

// wait reports whether a poke came before d had passed or ctx ended.
func (l *Loop) wait(ctx context.Context, d time.Duration) bool {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	case <-l.pokes():
		return true
	}
	return false
}

func (l *Loop) pokes() chan struct{} {
	l.once.Do(func() { l.poked = make(chan struct{}, 1) })
	return l.poked
}

func (l *Loop) turned() {
	now := time.Now()
	l.last.Store(&now)
}

func (l *Loop) retry() time.Duration {
	if l.Retry > 0 {
		return l.Retry
	}
	return DefaultRetry
}

func (l *Loop) maxRetry() time.Duration {
	if l.MaxRetry > 0 {
		return l.MaxRetry
	}
	return l.resync()
}

func (l *Loop) resync() time.Duration {
	if l.Resync > 0 {
		return l.Resync
	}
	return DefaultResync
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}

// jitter takes up to a tenth off, so that the nodes of a cluster that booted together do not resync together.
func jitter(d time.Duration) time.Duration {
	return d - rand.N(d/10+1)
}
