package kube

import (
	"errors"
	"time"
)

// ErrDuel tells that the Node's annotations, or its condition, are changed by somebody else as fast as we put them back.
var ErrDuel = errors.New("somebody else changes the annotations or the condition NetworkUnavailable again and again: " +
	"does a second agent run under this node's name, or a controller that wants --set-node-network-unavailable=false?")

// duelBurst is how many foreign changes in a row are answered at once; beyond it one a second is, so that two agents of
// one name write no more than two patches a second for as long as they last, where they would write forty.
const duelBurst = 10

// duel counts what may still be answered at once.
type duel struct {
	used float64
	last time.Time
}

// strike reports whether a foreign change may be answered now.
func (d *duel) strike(now time.Time) bool {
	d.used = max(0, d.used-now.Sub(d.last).Seconds())
	d.last = now
	if d.used > duelBurst-1 {
		return false
	}
	d.used++
	return true
}
