package daemon

import (
	"context"
	"log/slog"
	"maps"
	"slices"
	"strings"
	"sync"
	"time"
)

// board knows what stands between this node and a working pod network: one reason a part, none when all is well.
// Everything that tells a user about readiness (/readyz, weft.json, STATUS, the log) reads it from here.
type board struct {
	log *slog.Logger

	mu      sync.Mutex // guards what follows
	reasons map[string]string
	stale   time.Time // since when the API server has been away, while we run on
	notes   map[string]string
	since   time.Time // of the present verdict
	watch   []chan struct{}
}

// newBoard starts with every part not ready, so that readiness is earned and never assumed.
func newBoard(log *slog.Logger, parts ...string) *board {
	b := &board{log: log, reasons: map[string]string{}, notes: map[string]string{}, since: time.Now()}
	for _, p := range parts {
		b.reasons[p] = "starting"
	}
	return b
}

// set notes the part's result: nil means well.
func (b *board) set(part string, err error) {
	b.mu.Lock()
	defer b.mu.Unlock()
	before := len(b.reasons) == 0
	old, was := b.reasons[part]
	if err == nil {
		delete(b.reasons, part)
	} else {
		b.reasons[part] = oneLine(err.Error())
	}
	if now, is := b.reasons[part]; now == old && is == was {
		return
	}
	if ready := len(b.reasons) == 0; ready != before {
		b.since = time.Now()
		if ready {
			b.log.Info("ready")
		} else {
			b.log.Info("not ready", "part", part, "reason", b.reasons[part])
		}
	}
	b.poke()
}

// setStale notes since when the API server has been away; the zero time means it is there.
func (b *board) setStale(since time.Time) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.stale.Equal(since) {
		return
	}
	b.stale = since
	b.poke()
}

// note keeps what a person should know although the node works: one line a topic, none when it is empty. It is logged when it
// changes.
func (b *board) note(topic, text string) {
	b.mu.Lock()
	defer b.mu.Unlock()
	switch {
	case b.notes[topic] == text:
		return
	case text == "":
		delete(b.notes, topic)
		b.log.Info("no longer", "about", topic)
	default:
		b.notes[topic] = oneLine(text)
		b.log.Warn(topic, "text", b.notes[topic])
	}
}

func (b *board) poke() {
	for _, c := range b.watch {
		select {
		case c <- struct{}{}:
		default:
		}
	}
}

// changed gives a channel with a value whenever the board has changed since it was last read, until ctx ends.
func (b *board) changed(ctx context.Context) <-chan struct{} {
	b.mu.Lock()
	defer b.mu.Unlock()
	c := make(chan struct{}, 1)
	b.watch = append(b.watch, c)
	context.AfterFunc(ctx, func() {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.watch = slices.DeleteFunc(b.watch, func(other chan struct{}) bool { return other == c })
	})
	return c
}

// verdict is the board at one moment.
type verdict struct {
	Ready   bool
	Reasons []string // "part: reason", sorted
	Notes   []string // "topic: text", sorted
	Stale   time.Time
	Since   time.Time
}

// String is the reasons on one line.
func (v verdict) String() string { return strings.Join(v.Reasons, "; ") }

func (b *board) verdict() verdict { return b.verdictBut() }

// verdictBut leaves parts out: what a part must wait for is everything but itself.
func (b *board) verdictBut(parts ...string) verdict {
	b.mu.Lock()
	defer b.mu.Unlock()
	v := verdict{Stale: b.stale, Since: b.since}
	for _, part := range slices.Sorted(maps.Keys(b.reasons)) {
		if !slices.Contains(parts, part) {
			v.Reasons = append(v.Reasons, part+": "+b.reasons[part])
		}
	}
	for _, topic := range slices.Sorted(maps.Keys(b.notes)) {
		v.Notes = append(v.Notes, topic+": "+b.notes[topic])
	}
	v.Ready = len(v.Reasons) == 0
	return v
}

// oneLine keeps reasons fit for a log line and for the CNI error that quotes them.
func oneLine(s string) string { return strings.ReplaceAll(strings.TrimSpace(s), "\n", "; ") }
