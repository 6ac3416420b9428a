package vm

import (
	"fmt"
	"time"
)

// clock tells the kernel how fast the time stamp counter runs, which the emulation takes from this machine. By itself the
// kernel measures that at boot, and on a machine under load it gets a rate that lets its clock run several times too fast.
func clock() string {
	const span = 100 * time.Millisecond
	begin, first := together()
	time.Sleep(span)
	end, last := together()
	if last <= first {
		return ""
	}
	return fmt.Sprintf(" tsc_early_khz=%d", (last-first)*uint64(time.Millisecond)/uint64(end.Sub(begin)))
}

// together reads both clocks at the same moment: of several tries the one that nothing interrupted.
func together() (at time.Time, counter uint64) {
	best := time.Hour
	for range 20 {
		before := time.Now()
		c := cycles()
		if took := time.Since(before); took < best {
			best, at, counter = took, before, c
		}
	}
	return at, counter
}
