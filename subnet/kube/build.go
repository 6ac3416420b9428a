package kube

import (
	"context"
	"slices"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// settle is the least time between two builds. The first change after a rest is published at once; of a storm of 5,000
// updates twenty snapshots a second are made, each some milliseconds of work.
const settle = 50 * time.Millisecond

// build turns the store into snapshots until ctx ends.
func (s *Source) build(ctx context.Context) {
	expiry := time.NewTimer(0)
	defer expiry.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-s.dirty:
		case <-expiry.C:
		}
		began := time.Now()
		if next := s.publish(began); !next.IsZero() {
			expiry.Reset(time.Until(next))
		} else {
			expiry.Stop()
		}
		select {
		case <-ctx.Done():
			return
		case <-time.After(max(settle, 4*time.Since(began))): // a fifth of one core at most, however large the cluster
		}
	}
}

// publish makes a snapshot of the store and publishes it if it says anything new. It returns when to look again
// although nothing changed. The own Node counts as new whenever it was written: somebody may have undone within the
// settling time what we wrote ourselves, and whoever wrote it waits for word of it.
func (s *Source) publish(now time.Time) time.Time {
	v := s.store.view()
	own, claims, synced := v.own, v.claims, v.synced
	old := s.published.Load()
	next := &published{snapshot: subnet.Snapshot{Self: own.self}, complete: synced}
	if id := s.clusterID.Load(); id != nil {
		next.snapshot.ClusterID = *id
	}
	var expires time.Time
	if synced {
		r := Resolve(View{Own: own.claim, Self: own.self, Claims: claims, Memory: s.memory, Now: now})
		s.memory, expires = r.Memory, r.Expires
		next.snapshot.Peers, next.snapshot.NodeAddrs, next.snapshot.ResourceVersion = r.Peers, r.NodeAddrs, v.version
		next.snapshot.Problems = sortProblems(slices.Concat(own.problems, r.Problems))
	}
	if next.complete == old.complete && v.touched == s.touched && sameSnapshot(next.snapshot, old.snapshot) {
		return expires
	}
	s.touched = v.touched
	s.published.Store(next)
	poke(s.changed)
	return expires
}
