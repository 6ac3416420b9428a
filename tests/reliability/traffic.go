package reliability

import (
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// Traffic is all that flows while a fault is made. Everything in it is counted by one Tally.
type Traffic struct {
	bench   *Bench
	tally   *Tally
	stop    chan struct{}
	senders sync.WaitGroup
	parts   []part
}

// part is one kind of traffic.
type part interface {
	// run sends until stop is closed.
	run(stop <-chan struct{})
	// settled reports whether nothing of it is on the way to its reader any more.
	settled() bool
	// close ends the reading and returns when it has ended.
	close()
}

// Start starts the traffic, in each family of the lane: 100 numbered datagrams a second from each pod to each other, one long TCP connection through a
// Service, 20 new TCP connections a second to the outside.
func (b *Bench) Start() (*Traffic, error) {
	t := &Traffic{bench: b, tally: &Tally{}, stop: make(chan struct{})}
	for _, f := range b.Lane.Families() {
		for _, open := range []func(*Bench, subnet.Family, *Tally) (part, error){openDatagrams, openStream, openOutbound} {
			p, err := open(b, f, t.tally)
			if err != nil {
				t.Stop()
				return nil, fmt.Errorf("start traffic in %s: %w", f, err)
			}
			t.parts = append(t.parts, p)
		}
	}
	for _, p := range t.parts {
		t.senders.Go(func() { p.run(t.stop) })
	}
	return t, nil
}

// grace is how long after the last send an answer still counts.
const grace = time.Second

// Stop ends the sending, gives what is under way a second, and counts. What lies in a socket's queue by then has arrived:
// only the reader is late.
func (t *Traffic) Stop() Count {
	close(t.stop)
	t.senders.Wait()
	for end := time.Now().Add(grace); time.Now().Before(end) && !t.tally.complete(); {
		time.Sleep(time.Millisecond)
	}
	_, err := await(func() error {
		for _, p := range t.parts {
			if !p.settled() {
				return errNotYet
			}
		}
		return nil
	}, patience)
	for _, p := range t.parts {
		p.close()
	}
	if err != nil && !errors.Is(err, errNotYet) {
		t.tally.remark("%v", err)
	}
	return t.tally.count()
}

// every calls f at a steady rate until stop is closed. One call that is late does not move the others.
func every(interval time.Duration, stop <-chan struct{}, f func()) {
	start := time.Now()
	timer := time.NewTimer(0)
	defer timer.Stop()
	for i := 1; ; i++ {
		select {
		case <-stop:
			return
		case <-timer.C:
		}
		f()
		timer.Reset(time.Until(start.Add(time.Duration(i) * interval)))
	}
}
