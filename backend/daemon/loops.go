package daemon

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"sync"
	"time"

	"github.com/weft-cni/weft/backend"
)

const (
	settle     = 20 * time.Millisecond  // quiet after a poke
	diskSettle = 500 * time.Millisecond // the same, where a turn writes a file as long as the cluster is large
	waitRetry  = 750 * time.Millisecond // for what only somebody else can cure: seen within a second
	quickRetry = 100 * time.Millisecond // the first retry of what pods' packets depend on
	slowResync = 30 * time.Second
	// sysctlPeriod keeps a switch that somebody turns off from being off for a second: the kernel tells nobody of most of them,
	// and a look costs a few reads of a file without a disk.
	sysctlPeriod = 400 * time.Millisecond
	stuckAfter   = 5 * time.Minute // a loop that has not turned for so long fails the liveness probe
)

// errWaiting marks what is no failure: another part of the daemon has to come first, and its loop says what is missing.
var errWaiting = errors.New("waiting for")

// What parts wait for.
var (
	errWaitingConf  = fmt.Errorf("%w a valid net-conf.json", errWaiting)
	errWaitingAPI   = fmt.Errorf("%w the API server", errWaiting)
	errWaitingPlane = fmt.Errorf("%w the data plane", errWaiting)
)

// gate makes a loop whose result decides on readiness.
func (d *daemon) gate(part string, resync time.Duration, sync func(context.Context) error) *backend.Loop {
	return d.side(part, resync, func(ctx context.Context) error {
		err := sync(ctx)
		if ctx.Err() == nil {
			d.board.set(part, err)
		}
		return err
	})
}

// side makes a loop whose failure is logged and measured, but keeps no node from being ready. Waiting is no failure to
// the loop: it neither logs nor backs off, so that the poke which ends the wait is answered at once.
func (d *daemon) side(name string, resync time.Duration, sync func(context.Context) error) *backend.Loop {
	return &backend.Loop{
		Name: name, Settle: settle, Retry: waitRetry, Resync: resync, Log: d.log,
		Sync: func(ctx context.Context) error {
			start := time.Now()
			err := sync(ctx)
			if errors.Is(err, errWaiting) || ctx.Err() != nil {
				return nil
			}
			d.metrics.round(name, err, time.Since(start))
			return err
		},
	}
}

// disk makes of a loop one that writes files: a disk that is full or read-only is good again without anybody poking, and
// then the files have to follow within two seconds.
func disk(l *backend.Loop) *backend.Loop {
	l.MaxRetry = waitRetry
	return l
}

// run runs a loop under the eyes of the liveness probe.
func (d *daemon) run(ctx context.Context, l *backend.Loop) error {
	d.turning.add(l)
	defer d.turning.remove(l)
	return l.Run(ctx)
}

// until tries something again and again until it works; false means that ctx ended first.
func (d *daemon) until(ctx context.Context, part string, try func(context.Context) error) bool {
	inner, done := context.WithCancel(ctx)
	defer done()
	worked := false
	_ = d.run(inner, d.gate(part, waitRetry, func(ctx context.Context) error {
		err := try(ctx)
		if err == nil {
			worked = true
			done()
		}
		return err
	})) // a loop ends without error when its ctx does
	if worked {
		d.board.set(part, nil)
	}
	return worked
}

// turning knows the loops that run.
type turning struct {
	mu    sync.Mutex // guards loops
	loops []*backend.Loop
}

func (t *turning) add(l *backend.Loop) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loops = append(t.loops, l)
}

func (t *turning) remove(l *backend.Loop) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.loops = slices.DeleteFunc(t.loops, func(o *backend.Loop) bool { return o == l })
}

// alive names a loop that hangs, or returns nil.
func (t *turning) alive() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	for _, l := range t.loops {
		if last := l.LastTurn(); !last.IsZero() && time.Since(last) > max(stuckAfter, 3*l.Resync) {
			return fmt.Errorf("loop %q has not turned since %s", l.Name, last.UTC().Format(time.RFC3339))
		}
	}
	return nil
}

// poke fills a channel of one place.
func poke(c chan<- struct{}) {
	select {
	case c <- struct{}{}:
	default: // one is waiting already, and one is enough
	}
}

// ticks makes pokes of a timer that is set anew again and again.
func ticks(ctx context.Context, timer *time.Timer) <-chan struct{} {
	out := make(chan struct{}, 1)
	go func() {
		for {
			select {
			case <-ctx.Done():
				return
			case <-timer.C:
				poke(out)
			}
		}
	}()
	return out
}

// pokeOn passes pokes on until ctx ends or the channel is closed.
func pokeOn(ctx context.Context, from <-chan struct{}, to ...func()) {
	for {
		select {
		case <-ctx.Done():
			return
		case _, open := <-from:
			if !open {
				return
			}
			for _, f := range to {
				f()
			}
		}
	}
}
