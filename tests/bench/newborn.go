package bench

import (
	"fmt"
	"time"
)

// mostGate is what policies may add to ADD.
const mostGate = 20 * time.Millisecond

// births measures ADD on both nodes in turns: on one the gate holds the pod until its policies are in the kernel, on the
// other there are no policies. A chain of the API's own, the same on both, is beside what is timed: the pod is known before,
// as the kubelet's is.
func (w *town) births(c crowd, pods, n int) Figure {
	w.t.Helper()
	for _, h := range []*home{w.on, w.off} {
		w.stays(h, pods-1-h.stay)
		h.stay = pods - 1
	}
	var off, on []time.Duration
	for range n {
		for h, into := range map[*home]*[]time.Duration{w.on: &on, w.off: &off} {
			took, del := w.add(h)
			*into = append(*into, took)
			del()
		}
	}
	d := quantile(on, 0.5) - quantile(off, 0.5)
	words := func(all []time.Duration) string {
		return fmt.Sprintf("%s (slowest %s)", short(quantile(all, 0.5)), short(quantile(all, 1)))
	}
	return Figure{
		What: fmt.Sprintf("ADD of a pod that policies select, as number %d on its node; %d pods, %d policies", pods+1, c.pods, c.policies),
		Got:  words(on), Beside: "`--network-policy=off`", Base: words(off), Difference: short(d), Limit: "< 20 ms", Kept: d < mostGate,
	}
}
