package reliability

import (
	"errors"
	"sync"
	"time"
)

// heals waits until all is right again, and returns how long that took from the damage.
func (b *Bench) heals(f Fault) (time.Duration, error) {
	within := patience/3 + 10*f.bound()
	if f.Healed != nil {
		_, err := await(func() error { return f.Healed(b) }, within)
		return time.Since(b.hurt), err
	}
	last, err := b.restores(within, f.Rules)
	if err != nil {
		return 0, err
	}
	if b.Restored() != nil { // something was right, and is not any more
		_, err := await(b.Restored, within)
		return time.Since(b.hurt), err
	}
	return last.Sub(b.hurt), nil
}

// restores looks at the parts of what has to be right at once, each by itself, and returns when the last of them had become
// so. Of rules that were not damaged, and of readiness, only what was seen to be wrong counts: on a machine that others use, a
// look at rules, which is a program that has to be started, takes longer than a repair.
func (b *Bench) restores(within time.Duration, rules bool) (time.Time, error) {
	parts := []struct {
		right  func(*Node) error
		counts bool // even when it is right at the first look
	}{{b.kernelRight, true}, {b.rulesRight, rules}, {func(n *Node) error { return n.Agent.Ready() }, false}}
	var mu sync.Mutex // guards last and errs
	last := b.hurt
	var errs []error
	var looks sync.WaitGroup
	for _, p := range parts {
		looks.Go(func() {
			counts := p.counts
			_, err := await(func() error {
				err := b.each(p.right)
				counts = counts || err != nil
				return err
			}, within)
			mu.Lock()
			defer mu.Unlock()
			errs = append(errs, err)
			if now := time.Now(); counts && now.After(last) {
				last = now
			}
		})
	}
	looks.Wait()
	return last, errors.Join(errs...)
}

// each asks about every node until one is not right.
func (b *Bench) each(right func(*Node) error) error {
	for _, n := range b.Nodes {
		if err := right(n); err != nil {
			return err
		}
	}
	return nil
}
