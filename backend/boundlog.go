package backend

import (
	"cmp"
	"context"
	"log/slog"
	"sync"
	"time"
)

// A loop may write this many lines at once, and one a second in the long run.
const (
	lineBurst  = 10
	lineRefill = time.Second
	mostNames  = 200 // of loops and messages
)

// BoundLog bounds what a loop writes into the log, whatever goes wrong and however often: ten lines at once, then one a
// second. The last line of a storm is always written, with the number of those that were left out before it, so that the log
// ends with what is true. Lines below Info are for people who asked for all of them, and pass.
//
// The attribute "loop" names the loop; lines without it are bounded by their message, which is a constant of the program's.
func BoundLog(next slog.Handler) slog.Handler {
	return boundLog{next: next, lines: &lines{buckets: map[string]*bucket{}}}
}

type boundLog struct {
	next  slog.Handler
	lines *lines
	loop  string
}

// Enabled implements slog.Handler.
func (h boundLog) Enabled(ctx context.Context, level slog.Level) bool {
	return h.next.Enabled(ctx, level)
}

// WithAttrs implements slog.Handler.
func (h boundLog) WithAttrs(attrs []slog.Attr) slog.Handler {
	for _, a := range attrs {
		h.learn(a)
	}
	h.next = h.next.WithAttrs(attrs)
	return h
}

// WithGroup implements slog.Handler.
func (h boundLog) WithGroup(name string) slog.Handler {
	h.next = h.next.WithGroup(name)
	return h
}

// Handle implements slog.Handler.
func (h boundLog) Handle(ctx context.Context, r slog.Record) error {
	if r.Level < slog.LevelInfo {
		return h.next.Handle(ctx, r)
	}
	r.Attrs(h.learn)
	ctx = context.WithoutCancel(ctx) // the line may be written later
	return h.lines.take(cmp.Or(h.loop, r.Message), func(leftOut int) error {
		line := r.Clone()
		if leftOut > 0 {
			line.AddAttrs(slog.Int("leftOut", leftOut))
		}
		return h.next.Handle(ctx, line)
	})
}

// learn takes the loop's name out of an attribute; it always returns true, which goes on with the next one.
func (h *boundLog) learn(a slog.Attr) bool {
	if a.Key == "loop" {
		h.loop = a.Value.String()
	}
	return true
}

// lines knows how much each loop has written.
type lines struct {
	mu      sync.Mutex // guards buckets and what is in them, and keeps lines in order
	buckets map[string]*bucket
}

// bucket is what one loop may still write: a token a line.
type bucket struct {
	tokens  int
	filled  time.Time               // when the last token was put in
	leftOut int                     // lines since the last one that was written, the waiting one included
	waiting func(leftOut int) error // the newest of them
	timer   *time.Timer             // runs while one is waiting
}

// take writes a line now, or keeps it until there is a token again or a newer line takes its place.
func (l *lines) take(name string, write func(leftOut int) error) error {
	l.mu.Lock()
	defer l.mu.Unlock()
	b := l.buckets[name]
	if b == nil && len(l.buckets) >= mostNames {
		name = "" // messages are no constants after all: what is left shares one
		b = l.buckets[name]
	}
	if b == nil {
		b = &bucket{tokens: lineBurst, filled: time.Now()}
		l.buckets[name] = b
	}
	if b.refill(); b.tokens > 0 {
		return b.write(write, b.leftOut)
	}
	b.leftOut++
	b.waiting = write
	if b.timer == nil {
		b.timer = time.AfterFunc(time.Until(b.filled.Add(lineRefill)), func() { l.flush(b) })
	}
	return nil
}

// flush writes the line that waits.
func (l *lines) flush(b *bucket) {
	l.mu.Lock()
	defer l.mu.Unlock()
	b.timer = nil
	if b.waiting == nil {
		return // a newer line was written meanwhile
	}
	b.refill()
	_ = b.write(b.waiting, b.leftOut-1) // nobody is left to hear of an error
}

func (b *bucket) write(write func(leftOut int) error, leftOut int) error {
	b.tokens--
	b.leftOut, b.waiting = 0, nil
	return write(leftOut)
}

func (b *bucket) refill() {
	n := int(time.Since(b.filled) / lineRefill)
	if b.tokens += n; b.tokens >= lineBurst {
		b.tokens, b.filled = lineBurst, time.Now()
		return
	}
	b.filled = b.filled.Add(time.Duration(n) * lineRefill)
}
