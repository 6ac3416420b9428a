package backend

import (
	"bytes"
	"context"
	"errors"
	"log/slog"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// bench runs a Loop in a synctest bubble, where time passes only when everybody waits.
type bench struct {
	loop  *Loop
	mu    sync.Mutex // guards begun: a test looks at it while the loop goes on
	begun []time.Duration
	log   bytes.Buffer
	stop  context.CancelFunc
	done  chan error
}

// run starts the loop in the bubble that the caller is in. try gets the number of the turn, from 1.
func run(t *testing.T, l *Loop, try func(turn int) error) *bench {
	t.Helper()
	b := &bench{loop: l, done: make(chan error, 1)}
	start := time.Now()
	l.Name = "test"
	l.Log = slog.New(slog.NewTextHandler(&b.log, &slog.HandlerOptions{ReplaceAttr: withoutTime}))
	l.Sync = func(context.Context) error {
		b.mu.Lock()
		b.begun = append(b.begun, time.Since(start))
		n := len(b.begun)
		b.mu.Unlock()
		return try(n)
	}
	ctx, cancel := context.WithCancel(t.Context())
	b.stop = cancel
	go func() { b.done <- l.Run(ctx) }()
	synctest.Wait()
	return b
}

// turns are when each turn began, since the start.
func (b *bench) turns() []time.Duration {
	b.mu.Lock()
	defer b.mu.Unlock()
	return slices.Clone(b.begun)
}

func (b *bench) end(t *testing.T) {
	t.Helper()
	before := time.Now()
	b.stop()
	if err := <-b.done; err != nil {
		t.Errorf("Run returned %v, want nil", err)
	}
	if took := time.Since(before); took != 0 {
		t.Errorf("Run took %v to return after its context ended", took)
	}
}

// pause lets time pass, and everybody come to rest.
func pause(d time.Duration) {
	time.Sleep(d)
	synctest.Wait()
}

func withoutTime(_ []string, a slog.Attr) slog.Attr {
	if a.Key == slog.TimeKey || a.Key == "since" {
		return slog.Attr{}
	}
	return a
}

func pass(int) error { return nil }

func TestLoopTurnsAtOnceWithoutAPoke(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &Loop{Resync: time.Hour}, pass)
		if diff := cmp.Diff([]time.Duration{0}, b.turns()); diff != "" {
			t.Error(diff)
		}
		b.end(t)
	})
}

func TestPokeBeforeRunIsKept(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Loop{Resync: time.Hour}
		l.Poke()
		b := run(t, l, pass)
		pause(time.Second)
		if len(b.turns()) != 2 {
			t.Errorf("%d turns, want the first and the one poked for", len(b.turns()))
		}
		b.end(t)
	})
}

func TestAStormOfPokesIsOneTurnAfterItSettles(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &Loop{Settle: 100 * time.Millisecond, Resync: time.Hour}, pass)
		for range 5000 {
			b.loop.Poke()
		}
		pause(50 * time.Millisecond)
		b.loop.Poke()
		pause(time.Minute)
		want := []time.Duration{0, 150 * time.Millisecond}
		if diff := cmp.Diff(want, b.turns()); diff != "" {
			t.Error(diff)
		}
		b.end(t)
	})
}

func TestAnEndlessStormDelaysATurnByTenSettleTimesAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &Loop{Settle: 100 * time.Millisecond, Resync: time.Hour}, pass)
		for range 1000 { // 50 s without ever 100 ms of quiet
			b.loop.Poke()
			time.Sleep(50 * time.Millisecond)
		}
		synctest.Wait()
		last := time.Duration(0)
		for _, at := range b.turns()[1:] {
			if gap := at - last; gap > 1100*time.Millisecond {
				t.Errorf("turn at %v came %v after the one before", at, gap)
			}
			last = at
		}
		if n := len(b.turns()); n < 45 || n > 52 {
			t.Errorf("%d turns in 50 s, want about one a second", n)
		}
		b.end(t)
	})
}

func TestAPokeDuringATurnIsNotLost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &Loop{Resync: time.Hour}, func(turn int) error {
			time.Sleep(time.Second)
			return nil
		})
		b.loop.Poke() // the first turn is under way
		pause(5 * time.Second)
		want := []time.Duration{0, time.Second}
		if diff := cmp.Diff(want, b.turns()); diff != "" {
			t.Error(diff)
		}
		b.end(t)
	})
}

func TestErrorsAreRetriedWithADoublingWaitUpToTheResyncPeriod(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &Loop{Resync: 5 * time.Second}, func(int) error { return errors.New("busy") })
		pause(18 * time.Second)
		want := []time.Duration{0, 1 * time.Second, 3 * time.Second, 7 * time.Second, 12 * time.Second, 17 * time.Second}
		if diff := cmp.Diff(want, b.turns()); diff != "" {
			t.Error(diff)
		}
		b.end(t)
	})
}

func TestSuccessResetsTheBackoff(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		good := map[int]bool{4: true}
		b := run(t, &Loop{Resync: 10 * time.Second}, func(turn int) error {
			if good[turn] {
				return nil
			}
			return errors.New("busy")
		})
		pause(8 * time.Second) // turns at 0, 1, 3 and 7 s; the fourth is good
		b.loop.Poke()
		pause(1500 * time.Millisecond)
		want := []time.Duration{0, 1 * time.Second, 3 * time.Second, 7 * time.Second, 8 * time.Second, 9 * time.Second}
		if diff := cmp.Diff(want, b.turns()); diff != "" {
			t.Error(diff)
		}
		b.end(t)
	})
}

func TestAPokeCutsTheBackoffShort(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &Loop{Resync: time.Hour}, func(int) error { return errors.New("no such interface") })
		pause(20 * time.Second) // turns at 0, 1, 3, 7, 15 s; the next would be at 31 s
		b.loop.Poke()
		pause(time.Second)
		if got := b.turns()[len(b.turns())-1]; got != 20*time.Second {
			t.Errorf("last turn at %v, want 20s, when it was poked", got)
		}
		b.end(t)
	})
}

func TestASyncThatFailsAndPokesItselfDoesNotSpin(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Loop{Resync: time.Minute}
		b := run(t, l, func(int) error { l.Poke(); return errors.New("half done") })
		pause(10*time.Second + time.Millisecond)
		if n := len(b.turns()); n != 11 {
			t.Errorf("%d turns in 10 s, want one a second", n)
		}
		b.end(t)
	})
}

func TestResyncComesWithJitterButNeverLate(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &Loop{Resync: 30 * time.Second}, pass)
		pause(time.Hour)
		var gaps []time.Duration
		for i := 1; i < len(b.turns()); i++ {
			gap := b.turns()[i] - b.turns()[i-1]
			if gap < 27*time.Second || gap > 30*time.Second {
				t.Errorf("resync after %v, want 27 to 30 s", gap)
			}
			gaps = append(gaps, gap)
		}
		if slices.Min(gaps) == slices.Max(gaps) {
			t.Errorf("%d resyncs without any jitter", len(gaps))
		}
		b.end(t)
	})
}

func TestRunEndsAtOnceWhateverItWaitsFor(t *testing.T) {
	tests := map[string]struct {
		settle, retry, resync time.Duration
		err                   error
		poke                  bool
	}{
		"resync":   {resync: time.Hour},
		"settle":   {settle: time.Hour, resync: time.Hour, poke: true},
		"backoff":  {retry: time.Hour, resync: time.Hour, err: errors.New("busy")},
		"defaults": {err: errors.New("busy")},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				l := &Loop{Settle: tt.settle, Retry: tt.retry, Resync: tt.resync}
				b := run(t, l, func(int) error { return tt.err })
				if tt.poke {
					l.Poke()
				}
				pause(100 * time.Millisecond)
				b.end(t) // which fails when it takes any time
				if len(b.turns()) != 1 {
					t.Errorf("%d turns, want 1", len(b.turns()))
				}
			})
		})
	}
}

func TestRunEndsInTheMiddleOfASyncThatHeedsItsContext(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		ctx, cancel := context.WithCancel(t.Context())
		results := 0
		var log bytes.Buffer
		l := &Loop{
			Log:      slog.New(slog.NewTextHandler(&log, nil)),
			Sync:     func(ctx context.Context) error { <-ctx.Done(); return ctx.Err() },
			OnResult: func(error, time.Duration) { results++ },
		}
		done := make(chan error)
		go func() { done <- l.Run(ctx) }()
		synctest.Wait()
		cancel()
		if err := <-done; err != nil || results != 0 || log.Len() != 0 {
			t.Errorf("Run returned %v, %d results, log %q; want nil, none, empty", err, results, log.String())
		}
	})
}

func TestRunRefusesALoopWithoutSync(t *testing.T) {
	if err := (&Loop{Name: "x"}).Run(t.Context()); err == nil {
		t.Error("no error")
	}
}

func TestLastTurnFollowsTheTurns(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Loop{Resync: time.Hour}
		if !l.LastTurn().IsZero() {
			t.Error("LastTurn before Run is not zero")
		}
		start := time.Now()
		b := run(t, l, func(turn int) error {
			time.Sleep(3 * time.Second)
			return nil
		})
		if got := l.LastTurn(); !got.Equal(start) {
			t.Errorf("LastTurn in the first turn is %v after the start, want the start", got.Sub(start))
		}
		pause(time.Minute)
		if got := l.LastTurn().Sub(start); got != 3*time.Second {
			t.Errorf("LastTurn after the first turn is %v after the start, want 3s", got)
		}
		b.end(t)
	})
}

func TestOnResultHearsEachTurnAndItsTime(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		busy := errors.New("busy")
		type result struct {
			Err  string
			Took time.Duration
		}
		var got []result
		l := &Loop{Resync: time.Hour, OnResult: func(err error, took time.Duration) {
			r := result{Took: took}
			if err != nil {
				r.Err = err.Error()
			}
			got = append(got, r)
		}}
		b := run(t, l, func(turn int) error {
			time.Sleep(time.Duration(turn) * time.Second)
			if turn == 1 {
				return busy
			}
			return nil
		})
		pause(time.Minute)
		want := []result{{"busy", time.Second}, {"", 2 * time.Second}}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Error(diff)
		}
		b.end(t)
	})
}

func TestTheLogTellsTheFirstOfEqualErrorsACountAndTheRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &Loop{Resync: 20 * time.Second}, func(turn int) error {
			switch {
			case turn <= 8: // at 0, 1, 3, 7, 15, 31, 51, 71 s
				return errors.Join(errors.New("peer n2: busy"), errors.New("peer n3: busy"))
			case turn <= 9: // at 91 s
				return errors.New("no device")
			}
			return nil
		})
		pause(5 * time.Minute)
		want := `level=ERROR msg="sync failed" loop=test err="peer n2: busy; peer n3: busy"
level=ERROR msg="sync failed" loop=test err="peer n2: busy; peer n3: busy" failures=8
level=ERROR msg="sync failed" loop=test err="no device"
level=INFO msg="sync works again" loop=test failures=9 after=1m51s
`
		if diff := cmp.Diff(want, b.log.String()); diff != "" {
			t.Error(diff)
		}
		b.end(t)
	})
}

func TestALoopThatTurnsEverySecondDoesNotLogEverySecond(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		b := run(t, &Loop{Resync: time.Second}, func(int) error { return errors.New("API server is away") })
		pause(10 * time.Minute)
		if lines := strings.Count(b.log.String(), "\n"); lines != 11 {
			t.Errorf("%d lines in ten minutes, want one and one each minute:\n%s", lines, b.log.String())
		}
		b.end(t)
	})
}

func TestTheLogHasOneLineASecondAtMost(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Loop{Retry: 10 * time.Millisecond, Resync: 10 * time.Millisecond}
		b := run(t, l, func(turn int) error { return errors.New(strings.Repeat("x", turn%7+1)) })
		pause(10*time.Second + time.Millisecond)
		if lines := strings.Count(b.log.String(), "\n"); lines < 9 || lines > 11 {
			t.Errorf("%d lines in 10 s:\n%s", lines, b.log.String())
		}
		b.end(t)
	})
}

func TestAFailureThatWasNeverToldNeedsNoRecovery(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Loop{Retry: 10 * time.Millisecond, Resync: 100 * time.Millisecond}
		b := run(t, l, func(turn int) error { // told, well, failed within the same second, well for good
			if turn == 1 || turn == 3 {
				return errors.New("busy")
			}
			return nil
		})
		pause(time.Minute)
		want := `level=ERROR msg="sync failed" loop=test err=busy
level=INFO msg="sync works again" loop=test failures=1 after=10ms
`
		if diff := cmp.Diff(want, b.log.String()); diff != "" {
			t.Error(diff)
		}
		b.end(t)
	})
}

func TestJoinKeepsTenErrorsAndCountsTheRest(t *testing.T) {
	busy := errors.New("busy")
	tests := map[string]struct {
		errs []error
		want string
	}{
		"none":   {nil, "<nil>"},
		"nils":   {[]error{nil, nil}, "<nil>"},
		"one":    {[]error{nil, busy, nil}, "busy"},
		"ten":    {slices.Repeat([]error{busy}, 10), strings.Repeat("busy\n", 9) + "busy"},
		"twelve": {slices.Repeat([]error{busy, nil}, 12), strings.Repeat("busy\n", 10) + "and 2 more errors"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			got := Join(tt.errs)
			text := "<nil>"
			if got != nil {
				text = got.Error()
				if !errors.Is(got, busy) {
					t.Error("the joined error is not what it was made of")
				}
			}
			if diff := cmp.Diff(tt.want, text); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestQuickFirstRetriesDoNotStayQuickHoweverOftenItIsPoked(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := &Loop{Retry: 100 * time.Millisecond, Resync: 5 * time.Second}
		b := run(t, l, func(int) error {
			l.Poke() // what fails half-way changes the kernel, and so pokes itself
			return errors.New("busy")
		})
		pause(time.Second)
		if n := len(b.turns()); n < 4 || n > 5 {
			t.Errorf("%d turns in the first second, want them after 0.1, 0.3 and 0.7 s", n)
		}
		pause(time.Minute)
		if n := len(b.turns()); n > 65 {
			t.Errorf("%d turns in a minute, want one a second", n)
		}
		b.end(t)
	})
}
