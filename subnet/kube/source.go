package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/subnet"
)

// SourceConfig is what a Source needs.
type SourceConfig struct {
	Client   *Client
	NodeName string
	Rules    Rules
	LastGood []subnet.Peer // peers of a kept snapshot; they stand in for Nodes that are bad at start
	Known    string        // resourceVersion of the kept snapshot: no older list is taken
	Log      *slog.Logger
}

// Source watches all Nodes and publishes what they come to as snapshots. It implements subnet.Source.
type Source struct {
	cfg     SourceConfig
	log     *slog.Logger
	began   time.Time
	answers contact // how lists and watches are answered; the client knows of the way
	store   *store
	memory  Memory        // of the builder alone
	touched int           // likewise: how often the own Node had been written at the last build
	dirty   chan struct{} // holds one token when the store changed since the last build
	changed chan struct{} // holds one token when a snapshot is there that was not fetched

	again     atomic.Int32 // how often in a row the answer was "list again"
	published atomic.Pointer[published]
	clusterID atomic.Pointer[string]
}

type published struct {
	snapshot subnet.Snapshot
	complete bool
}

var _ subnet.Source = (*Source)(nil)

// NewSource makes a Source; Run makes it work.
func NewSource(cfg SourceConfig) *Source {
	s := &Source{
		cfg: cfg, log: cfg.Log, memory: Remember(cfg.LastGood), began: time.Now(),
		dirty: make(chan struct{}, 1), changed: make(chan struct{}, 1),
	}
	s.store = newStore(cfg.NodeName, cfg.Rules, cfg.Log, func() { poke(s.dirty) })
	s.store.newest.see(cfg.Known)
	s.published.Store(&published{snapshot: subnet.Snapshot{Self: subnet.Self{Name: cfg.NodeName}}})
	return s
}

// Snapshot returns the newest snapshot and whether it is complete. Until the first complete one at most Self is in it.
func (s *Source) Snapshot() (subnet.Snapshot, bool) {
	p := s.published.Load()
	return p.snapshot, p.complete
}

// Changed has a value whenever a newer snapshot is there than the last one fetched. One reader can use it.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Reason says why there is no complete snapshot, or why it is out of date; "" when neither is so.
func (s *Source) Reason() string {
	if reason := s.cfg.Client.Reason(); reason != "" {
		return reason
	}
	if _, _, cause := s.answers.state(); cause != nil {
		return Explain(s.cfg.Client.server(), cause)
	}
	if _, complete := s.Snapshot(); !complete {
		return fmt.Sprintf("waiting for the list of Nodes from the API server %s", s.cfg.Client.server())
	}
	return ""
}

// Stale tells since when the API server has been away, if it is. Before the first list that is since NewSource.
func (s *Source) Stale() (since time.Time, stale bool) {
	if _, complete := s.Snapshot(); !complete {
		return s.began, true
	}
	for _, c := range []*contact{&s.cfg.Client.way, &s.answers} {
		if _, lost, _ := c.state(); !lost.IsZero() {
			return lost, true
		}
	}
	return time.Time{}, false
}

// Run watches until ctx ends. It returns only then.
func (s *Source) Run(ctx context.Context) error {
	done := make(chan struct{})
	go func() { defer close(done); s.build(ctx) }()
	ids := make(chan struct{})
	go func() { defer close(ids); s.readClusterID(ctx) }()
	s.readSelf(ctx)
	kind := s.store.newest.guard(nodes(s.cfg.Client, s.cfg.Rules.Prefix), s.cfg.Client, s.log)
	Feed{Client: s.cfg.Client, Kind: kind, Store: s.store, Note: s.note}.Run(ctx)
	<-done
	<-ids
	return nil
}

// readSelf asks for the own Node ahead of all others, which can be thousands: the daemon can set up and announce its own
// part meanwhile.
func (s *Source) readSelf(ctx context.Context) {
	ctx, cancel := context.WithTimeout(ctx, 3*time.Second) // a slow server delays the list by no more
	defer cancel()
	node, err := s.cfg.Client.CoreV1().Nodes().Get(ctx, s.cfg.NodeName, metav1.GetOptions{ResourceVersion: "0"})
	if err == nil {
		s.store.put(node)
	} else {
		s.log.Debug("read the own node", "err", err) // the list comes next, and says more
	}
}

// readClusterID learns kube-system's UID, which names the cluster. Under flannel's own ClusterRole that is forbidden; then
// the cluster has no name.
func (s *Source) readClusterID(ctx context.Context) {
	for ctx.Err() == nil {
		began := time.Now()
		short, cancel := call(ctx)
		ns, err := s.cfg.Client.CoreV1().Namespaces().Get(short, metav1.NamespaceSystem, metav1.GetOptions{})
		cancel()
		switch {
		case err == nil:
			id := string(ns.UID)
			s.clusterID.Store(&id)
			poke(s.dirty)
			return
		case apierrors.IsForbidden(err), apierrors.IsNotFound(err):
			s.log.Debug("the cluster's identity cannot be read", "err", err)
			return
		}
		pause(ctx, began)
	}
}

// mostAgain is how often in a row "list again" is well: a watch and the two lists that a reflector then tries.
const mostAgain = 3

// note takes how a list or a watch was answered, and logs what is news.
func (s *Source) note(err error) {
	if !apierrors.IsResourceExpired(err) && !apierrors.IsGone(err) {
		s.again.Store(0)
	} else if s.again.Add(1) <= mostAgain {
		err = nil // "list again" is an answer like any other
	}
	if !s.answers.note(err, time.Now()) {
		return
	}
	if err != nil {
		s.log.Warn(Explain(s.cfg.Client.server(), err))
		return
	}
	s.log.Info("the API server answers", "server", s.cfg.Client.server())
}

// poke puts a token into a channel of one place.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
