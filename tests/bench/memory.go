package bench

import (
	"fmt"
	"strings"
	"time"
)

// mostMemory is what an agent may have in the largest cluster, mostWatch what it may cost that there could be policies.
const mostMemory, mostWatch = 250 << 20, 10 << 20

// idleMemory starts the agent n times with policies switched off and as often with them on, while there are none.
func (w *town) idleMemory(c crowd, n int) Figure {
	w.t.Helper()
	var off, on []float64
	for range n {
		off = append(off, w.settled("--network-policy=off"))
		on = append(on, w.settled())
	}
	a, b := quantile(off, 0.5), quantile(on, 0.5)
	w.t.Logf("off %.0f, on %.0f", off, on)
	return Figure{
		What: fmt.Sprintf("the agent's memory (RSS), %d pods in the cluster, no policy", c.pods),
		Got:  mebi(b), Beside: "`--network-policy=off`", Base: mebi(a), Difference: mebi(b - a), Limit: "< " + mebi(mostWatch), Kept: b-a < mostWatch,
	}
}

// settled starts the agent and tells its memory when that has not changed for two seconds.
func (w *town) settled(args ...string) (now float64) {
	w.t.Helper()
	w.restart(w.on, args...)
	since := time.Now()
	w.soon("memory stays as it is", func() error {
		have, _, err := w.on.resident()
		switch {
		case err != nil:
			return err
		case have != now:
			now, since = have, time.Now()
		}
		if time.Since(since) < 2*time.Second {
			return fmt.Errorf("%s for %v", mebi(now), time.Since(since))
		}
		time.Sleep(50 * time.Millisecond)
		return nil
	})
	return now
}

// fullMemory starts the agent in a cluster of policies.
func (w *town) fullMemory(c crowd) []Figure {
	w.t.Helper()
	began := time.Now()
	w.restart(w.on)
	w.guarded(c)
	ready := time.Since(began)
	w.settledAgain()
	out := []Figure{{
		What: fmt.Sprintf("from the start of the agent until it has all pods and policies and has looked at its rules; %d pods, %d policies, %d pods here", c.pods, c.policies, c.local),
		Got:  short(ready),
	}}
	return append(out, w.memoryNow(c, "after its start"))
}

// settledAgain waits until the agent has written nothing for a while.
func (w *town) settledAgain() {
	w.t.Helper()
	last, since := "", time.Now()
	w.soon("the agent rests", func() error {
		text, err := w.on.NS.Try("nft", "list", "chains", "inet")
		if err != nil {
			return err
		}
		if n := fmt.Sprint(strings.Count(text, "\n")); n != last {
			last, since = n, time.Now()
		}
		if time.Since(since) < time.Second {
			return fmt.Errorf("%s chains", last)
		}
		return nil
	})
}

// memoryNow is what the running agent has, and has had at most.
func (w *town) memoryNow(c crowd, when string) Figure {
	w.t.Helper()
	now, most, err := w.on.resident()
	w.must(err)
	var heap float64
	w.soon("the agent tells its heap", func() (err error) {
		heap, err = w.on.metric("go_memstats_heap_alloc_bytes")
		return err
	})
	return Figure{
		What: fmt.Sprintf("the agent's memory %s: most RSS ever, RSS, Go heap; %d pods, %d policies, %d pods here", when, c.pods, c.policies, c.local),
		Got:  fmt.Sprintf("%s, %s, %s", mebi(most), mebi(now), mebi(heap)), Limit: "< " + mebi(mostMemory), Kept: most < mostMemory,
	}
}
