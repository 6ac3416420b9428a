package backend

import (
	"bytes"
	"fmt"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"
)

// page is what was logged. A timer of BoundLog writes on it beside the test.
type page struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (p *page) Write(b []byte) (int, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.Write(b)
}

func (p *page) String() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.text.String()
}

func (p *page) Reset() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.text.Reset()
}

func TestAStormOfLinesComesToOneASecondAndEndsWithTheLastOne(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out page
		log := slog.New(BoundLog(slog.NewTextHandler(&out, nil))).With("loop", "data plane")
		for i := range 6000 { // a minute of a hundred lines a second
			log.Info("kernel changed", "n", i)
			time.Sleep(10 * time.Millisecond)
		}
		time.Sleep(2 * time.Second)
		synctest.Wait()
		lines := strings.Split(strings.TrimSpace(out.String()), "\n")
		if most := 60 + lineBurst + 1; len(lines) > most {
			t.Errorf("%d lines in a minute, want at most %d", len(lines), most)
		}
		if last := lines[len(lines)-1]; !strings.Contains(last, "n=5999") || !strings.Contains(last, "leftOut=") {
			t.Errorf("the last line is %q", last)
		}
		told := 0
		for _, line := range lines {
			told++
			if _, count, ok := strings.Cut(line, "leftOut="); ok {
				var n int
				if _, err := fmt.Sscan(count, &n); err != nil {
					t.Fatal(err)
				}
				told += n
			}
		}
		if told != 6000 {
			t.Errorf("lines and counts come to %d, want 6000", told)
		}
	})
}

func TestOneLoopsStormLeavesTheOthersLinesAlone(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out page
		log := slog.New(BoundLog(slog.NewTextHandler(&out, &slog.HandlerOptions{Level: slog.LevelDebug})))
		for range 100 {
			log.Error("sync failed", "loop", "rules")
		}
		out.Reset()
		log.With("loop", "files").Warn("a")
		log.Info("b")
		for range 100 {
			log.With("loop", "rules").Debug("c")
		}
		got := out.String()
		if !strings.Contains(got, "msg=a") || !strings.Contains(got, "msg=b") || strings.Count(got, "msg=c") != 100 {
			t.Errorf("got %s", got)
		}
		time.Sleep(time.Minute)
		synctest.Wait()
		out.Reset()
		for range lineBurst {
			log.Error("sync failed", "loop", "rules")
		}
		if n := strings.Count(out.String(), "\n"); n != lineBurst {
			t.Errorf("%d lines after a quiet minute, want %d", n, lineBurst)
		}
	})
}

func TestLinesOfNoLoopAreBoundedByTheirMessage(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var out page
		log := slog.New(BoundLog(slog.NewTextHandler(&out, nil)))
		for range 100 {
			log.Info("underlay IPv4")
		}
		log.Info("ready")
		if got := out.String(); strings.Count(got, "underlay") != lineBurst || !strings.Contains(got, "ready") {
			t.Errorf("got %s", got)
		}
		for i := range 10 * mostNames {
			log.Info(fmt.Sprint("a message that is never the same ", i))
		}
		if n := strings.Count(out.String(), "never the same"); n > mostNames+lineBurst {
			t.Errorf("%d lines at once", n)
		}
		time.Sleep(time.Minute) // the last lines are written
	})
}
