package kube

import (
	"context"
	"fmt"
	"log/slog"
	"sync/atomic"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/apimachinery/pkg/watch"
	"k8s.io/client-go/tools/cache"
	"k8s.io/klog/v2"

	"github.com/weft-cni/weft/subnet"
)

// SourceConfig is what a Source needs.
type SourceConfig struct {
	Client   *Client
	NodeName string
	Rules    Rules
	LastGood []subnet.Peer // peers of a kept snapshot; they stand in for Nodes that are bad at start
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
	s.store = newStore(cfg.NodeName, cfg.Rules, func() { poke(s.dirty) })
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
		return Explain(s.cfg.Client.Server, cause)
	}
	if _, complete := s.Snapshot(); !complete {
		return fmt.Sprintf("waiting for the list of Nodes from the API server %s", s.cfg.Client.Server)
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
	// The reflector's own log would say with each retry what the contact says once.
	quiet := logr.Discard()
	reflector := cache.NewReflectorWithOptions(s.listWatch(ctx), &corev1.Node{}, s.store, cache.ReflectorOptions{
		Name: "nodes", Logger: &quiet,
		// For answers like 429 and 500; grows to two seconds with jitter, since a node without its peers is down.
		Backoff: &wait.Backoff{Duration: 300 * time.Millisecond, Factor: 1.7, Steps: 5, Cap: 2 * time.Second, Jitter: 0.5},
	})
	reflector.RunWithContext(klog.NewContext(ctx, quiet))
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

// listWatch is the way to the Nodes. It uses Run's ctx and not the reflector's, which for lists is none.
func (s *Source) listWatch(ctx context.Context) cache.ListerWatcher {
	nodes := s.cfg.Client.CoreV1().Nodes()
	return cache.ToListWatcherWithWatchListSemantics(&cache.ListWatch{
		ListWithContextFunc: func(_ context.Context, o metav1.ListOptions) (runtime.Object, error) {
			list, err := attempt(ctx, s.note, func() (*corev1.NodeList, error) {
				return listNodes(ctx, s.cfg.Client, o, s.cfg.Rules.Prefix)
			})
			if err != nil {
				return nil, err
			}
			return list, nil
		},
		WatchFuncWithContext: func(_ context.Context, o metav1.ListOptions) (watch.Interface, error) {
			return attempt(ctx, s.note, func() (watch.Interface, error) {
				ctx, way := withOutcome(ctx)
				w, err := nodes.Watch(ctx, o)
				if err == nil && way.err != nil { // an empty watch, after which the reflector would list
					w.Stop()
					return nil, way.err
				}
				return w, err
			})
		},
	}, s.cfg.Client.Interface)
}

// note takes how a list or a watch was answered, and logs what is news.
func (s *Source) note(err error) {
	if apierrors.IsResourceExpired(err) || apierrors.IsGone(err) {
		err = nil // "list again" is an answer like any other
	}
	if !s.answers.note(err, time.Now()) {
		return
	}
	if err != nil {
		s.log.Warn(Explain(s.cfg.Client.Server, err))
		return
	}
	s.log.Info("the API server answers", "server", s.cfg.Client.Server)
}

// poke puts a token into a channel of one place.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
