// Package watch makes Worlds of what the API server has: it watches NetworkPolicies, ClusterNetworkPolicies where the
// cluster has the definition of them, and, as long as there is any policy, Pods and Namespaces.
//
// Objects become values as soon as they are decoded, and values that say the same are one and the same pointer. Without
// any policy nobody watches Pods, which are by far the most and the most restless objects of a cluster. When the first
// policy comes, the World stays as it was until the list of Pods is complete: half of a World would cut off what a policy
// allows.
package watch

import (
	"context"
	"fmt"
	"log/slog"
	"slices"
	"sync/atomic"
	"time"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/subnet/kube"
)

// Attachments tells of the pods that the CNI plugin attached to this node.
type Attachments interface {
	Notes() []attach.Note
	Changed() <-chan struct{}
	Ready() <-chan struct{} // closed when Notes is complete
}

// Config is what a Source needs.
type Config struct {
	Client   *kube.Client
	NodeName string
	Attached Attachments   // may be nil
	Linger   time.Duration // how long Pods are watched on after the last policy went; zero means five minutes
	Log      *slog.Logger
}

// Problem is what is wrong with a policy, in words for whoever wrote it.
type Problem struct {
	Policy string // "namespace/name", or the bare name of a ClusterNetworkPolicy
	Text   string
}

// Source watches and publishes Worlds.
type Source struct {
	cfg     Config
	log     *slog.Logger
	answers *answers
	in      *interner

	policies   *table[policy.NetworkPolicy]
	cluster    *table[policy.ClusterPolicy]
	definition *table[metav1.PartialObjectMetadata]
	pods       *table[policy.Pod]
	namespaces *table[policy.Namespace]
	nodes      *table[policy.Node]
	demands    demands

	dirty   chan struct{} // holds one token when a table changed since the last build
	changed chan struct{} // holds one token when there is news that nobody has fetched

	published atomic.Pointer[state]
}

// state is what is published at once.
type state struct {
	world    policy.World
	complete bool
	active   bool // there are policies
	known    bool // whether there are is known
	refused  bool // we may not look
	problems []Problem
}

// New makes a Source; Run makes it work.
func New(cfg Config) *Source {
	if cfg.Linger == 0 {
		cfg.Linger = 5 * time.Minute
	}
	s := &Source{
		cfg: cfg, log: cfg.Log, in: newInterner(), dirty: make(chan struct{}, 1), changed: make(chan struct{}, 1),
		answers: &answers{server: cfg.Client.Server, log: cfg.Log, bad: map[string]error{}, since: map[string]time.Time{}},
	}
	dirty := func() { poke(s.dirty) }
	s.policies, s.cluster = newTable(policies(), dirty), newTable(clusterPolicies(), dirty)
	s.definition = newTable(definitions(), dirty)
	s.pods, s.namespaces = newTable(pods(cfg.NodeName, s.in), dirty), newTable(namespaces(s.in), dirty)
	s.nodes = newTable(nodes(s.in), dirty)
	s.pods.mine = func(p *policy.Pod) bool { return p.Local }
	s.pods.keep = func(p *policy.Pod) bool { return p.Local && cfg.Attached != nil }
	s.published.Store(&state{})
	return s
}

// World returns the newest complete World and whether there has been one. It holds no more than the policies need: without
// any it is empty.
func (s *Source) World() (policy.World, bool) {
	p := s.published.Load()
	return p.world, p.complete
}

// Active tells whether there are policies, which is so somewhat before the World has them: from then on new pods are to be
// held. While known is false nothing can be said, and what was decided before stands.
func (s *Source) Active() (active, known bool) {
	p := s.published.Load()
	return p.active, p.known
}

// Problems are the policies, or parts of them, that cannot be enforced as they were meant, by policy.
func (s *Source) Problems() []Problem { return s.published.Load().problems }

// Changed has a value whenever World, Active, Problems or Refused may say something new. One reader can use it.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Reason says why there is no World, or why it is out of date; "" when neither is so.
func (s *Source) Reason() string {
	if reason := s.cfg.Client.Reason(); reason != "" {
		return reason
	}
	if reason := s.answers.reason(); reason != "" {
		return reason
	}
	if _, complete := s.World(); !complete {
		return fmt.Sprintf("waiting for the policies and the pods from the API server %s", s.cfg.Client.Server)
	}
	return ""
}

// Run watches until ctx ends. It returns before only when no client can be made.
func (s *Source) Run(ctx context.Context) error {
	group, err := s.feeds()
	if err != nil {
		return err
	}
	stop := start(ctx, s.build)
	defer stop()
	group.run(ctx)
	return nil
}

// feed keeps one table.
func (s *Source) feed(k kube.Kind, to cache.TransformingStore) func(context.Context) {
	return func(ctx context.Context) {
		f := kube.Feed{Client: s.cfg.Client, Kind: k, Store: to, Optional: true, Note: func(err error) {
			s.answers.note(k.Name, err)
			poke(s.dirty)
		}}
		f.Run(ctx)
	}
}

func samePointers[V any](a, b []*V) bool {
	return len(a) == len(b) && (len(a) == 0 || &a[0] == &b[0] || slices.Equal(a, b))
}

// poke puts a token into a channel of one place.
func poke(ch chan struct{}) {
	select {
	case ch <- struct{}{}:
	default:
	}
}
