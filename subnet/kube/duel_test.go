package kube

import (
	"testing"
	"time"
)

func TestADuelIsAnsweredTenTimesAtOnceThenOnceASecond(t *testing.T) {
	var d duel
	now, at := born(1), 0
	for range 1000 {
		if d.strike(now) {
			at++
		}
	}
	if at != duelBurst {
		t.Errorf("%d at once, want %d", at, duelBurst)
	}
	more := 0
	for range 600 {
		now = now.Add(100 * time.Millisecond)
		if d.strike(now) {
			more++
		}
	}
	if more < 59 || more > 61 {
		t.Errorf("%d in a minute, want 60", more)
	}
	if now = now.Add(time.Minute); !d.strike(now) || d.used > 1 {
		t.Error("a rest does not restore the burst")
	}
}
