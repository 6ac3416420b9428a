package backend

import (
	"errors"
	"fmt"
	"log/slog"
	"strings"
	"time"
)

// maxJoined is how many errors of one round are told: a thousand peers behind one cause need no thousand lines.
const maxJoined = 10

// Join joins the errors of one round, nil ones left out: the first ten, and the number of the rest.
func Join(errs []error) error {
	var kept []error
	more := 0
	for _, err := range errs {
		switch {
		case err == nil:
		case len(kept) < maxJoined:
			kept = append(kept, err)
		default:
			more++
		}
	}
	if more > 0 {
		kept = append(kept, fmt.Errorf("and %d more errors", more))
	}
	return errors.Join(kept...)
}

// The log has at most one line in this time from one loop, whatever fails.
const linePeriod = time.Second

// An error that stays is told again after this time, or after a resync period when that is longer.
const repeatPeriod = time.Minute

// report turns the results of a loop into log lines: the first of equal errors at once, then a count now and then,
// and one line when it works again.
type report struct {
	log    *slog.Logger
	repeat time.Duration // how often an error that stays is told again

	failing time.Time // since when; zero while it works
	turns   int       // failed turns since then
	text    string    // the error told last
	untold  int       // failed turns since that line
	line    time.Time // when the last line was written
}

func newReport(log *slog.Logger, name string, resync time.Duration) *report {
	if log == nil {
		log = slog.New(slog.DiscardHandler)
	}
	return &report{log: log.With("loop", name), repeat: max(resync, repeatPeriod)}
}

// result takes the outcome of one turn.
func (r *report) result(err error) {
	now := time.Now()
	if err == nil {
		r.recovered(now)
		return
	}
	if r.failing.IsZero() {
		r.failing = now
	}
	r.turns++
	// Joined errors come on lines of their own; a log record is one line.
	text := strings.ReplaceAll(err.Error(), "\n", "; ")
	due := linePeriod
	if text == r.text {
		due = r.repeat
	}
	if !r.line.IsZero() && now.Sub(r.line) < due {
		r.untold++
		return
	}
	args := []any{"err", text}
	if r.untold > 0 {
		args = append(args, "failures", r.turns, "since", r.failing)
	}
	r.log.Error("sync failed", args...)
	r.text, r.untold, r.line = text, 0, now
}

// recovered ends a row of failures with one line. A failure that was never told, since it came within a second of the
// line before, needs no recovery line either.
func (r *report) recovered(now time.Time) {
	if r.failing.IsZero() {
		return
	}
	if r.turns > r.untold {
		r.log.Info("sync works again", "failures", r.turns, "after", now.Sub(r.failing).Round(time.Millisecond))
		r.line = now
	}
	r.failing, r.turns, r.untold, r.text = time.Time{}, 0, 0, ""
}
