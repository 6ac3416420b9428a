package kube

import (
	"log/slog"
	"maps"
	"slices"
	"sync"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/tools/cache"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/claim"
)

// store is where the reflector puts Nodes: it keeps what they claim and not the Nodes, and says that something changed
// only when a claim did. A kubelet's status update costs one parse and ends here. There is no queue behind it: however
// many Nodes come at once, what follows is one pass over the map.
type store struct {
	node  string
	rules Rules
	dirty func()

	log    *slog.Logger
	newest newest

	// mu protects the fields below: the reflector writes them, the builder of snapshots reads them.
	mu      sync.Mutex
	self    own
	touched int              // how often self was written
	claims  map[string]Claim // of the other Nodes, by name
	synced  bool             // the first complete list is in
}

// view is what a snapshot is made of.
type view struct {
	own     own
	touched int
	claims  []Claim
	synced  bool
	version string // resourceVersion, "" when not known
}

// own is what the own Node says.
type own struct {
	self     subnet.Self
	claim    Claim
	problems []subnet.Problem
}

func newStore(node string, rules Rules, log *slog.Logger, dirty func()) *store {
	return &store{node: node, rules: rules, log: log, dirty: dirty, self: own{self: subnet.Self{Name: node}}, claims: map[string]Claim{}}
}

// view copies it.
func (s *store) view() view {
	s.mu.Lock()
	defer s.mu.Unlock()
	return view{s.self, s.touched, slices.Collect(maps.Values(s.claims)), s.synced, s.newest.String()}
}

// Add takes a Node that is new or has changed.
func (s *store) Add(obj any) error {
	if node, ok := obj.(*corev1.Node); ok {
		s.put(node)
	}
	return nil
}

// Update is Add: what counts is what the Node says now, not what happened to it. A Node that was deleted and re-created
// while the watch was down comes as an update too.
func (s *store) Update(obj any) error { return s.Add(obj) }

// Delete forgets a Node, unless it is there anew under the same name.
func (s *store) Delete(obj any) error {
	if late, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = late.Obj
	}
	node, ok := obj.(*corev1.Node)
	if !ok {
		return nil
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	if node.Name == s.node {
		if s.self.self.Exists && s.self.self.UID == string(node.UID) {
			s.self = own{self: subnet.Self{Name: s.node}}
			s.touched++
			s.dirty()
		}
		return nil
	}
	if c, there := s.claims[node.Name]; there && c.Peer.UID == string(node.UID) {
		delete(s.claims, node.Name)
		s.dirty()
	}
	return nil
}

// Replace takes a complete list, unless it is older than what is known.
func (s *store) Replace(list []any, version string) error {
	known := s.newest.String()
	ok, back := s.newest.accept(version)
	if !ok {
		return errOlder(version, known)
	}
	if back {
		s.log.Warn(wentBack, "now", version, "known", known)
	}
	claims := make(map[string]Claim, len(list))
	self := own{self: subnet.Self{Name: s.node}}
	for _, obj := range list {
		node, ok := obj.(*corev1.Node)
		switch {
		case !ok:
		case node.Name == s.node:
			self = s.parseOwn(node)
		default:
			claims[node.Name] = ParsePeer(node, s.rules)
		}
	}
	s.mu.Lock()
	defer s.mu.Unlock()
	s.claims, s.self, s.synced = claims, self, true
	s.touched++
	s.dirty()
	return nil
}

// UpdateResourceVersion hears of the version of each event; an event is stored before.
func (s *store) UpdateResourceVersion(version string) { s.newest.see(version) }

// Resync has nothing to do: there is nobody to tell again.
func (s *store) Resync() error { return nil }

// Transformer drops all that we do not use as soon as a Node is decoded, so that a list is never held whole.
func (s *store) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if node, ok := obj.(*corev1.Node); ok {
			return slim(node, s.rules.Prefix), nil
		}
		return obj, nil
	}
}

func (s *store) put(node *corev1.Node) {
	if node.Name == s.node {
		now := s.parseOwn(node)
		s.mu.Lock()
		defer s.mu.Unlock()
		if !s.self.equal(now) {
			s.self = now
			s.touched++
			s.dirty()
		}
		return
	}
	now := ParsePeer(node, s.rules)
	s.mu.Lock()
	defer s.mu.Unlock()
	if old, there := s.claims[node.Name]; !there || !sameClaim(old, now) {
		s.claims[node.Name] = now
		s.dirty()
	}
}

func (s *store) parseOwn(node *corev1.Node) own {
	node = slim(node, s.rules.Prefix)
	self, problems := ParseSelf(node, s.rules.Prefix)
	problems = append(problems, claim.MissingFamily(self.Name, self.PodCIDRs, s.rules)...)
	return own{self: self, claim: ParsePeer(node, s.rules), problems: problems}
}

func (a own) equal(b own) bool {
	return sameSelf(a.self, b.self) && sameClaim(a.claim, b.claim) && slices.Equal(a.problems, b.problems)
}

func sameClaim(c, d Claim) bool {
	return c.Peer == d.Peer && c.Managed == d.Managed && c.Bad == d.Bad && c.Told == d.Told &&
		slices.Equal(c.Addrs, d.Addrs) && slices.Equal(c.Problems, d.Problems)
}

func sameSelf(a, b subnet.Self) bool {
	return a.Name == b.Name && a.UID == b.UID && a.Exists == b.Exists && a.PodCIDRs == b.PodCIDRs &&
		a.InternalIP == b.InternalIP && maps.Equal(a.Announced, b.Announced) && a.NetworkUnavailable == b.NetworkUnavailable &&
		a.NodePublicIP == b.NodePublicIP && a.PublicIP == b.PublicIP && a.Overwrite == b.Overwrite && a.MAC == b.MAC && a.Port == b.Port
}

func sameSnapshot(a, b subnet.Snapshot) bool {
	return a.ClusterID == b.ClusterID && sameSelf(a.Self, b.Self) && slices.Equal(a.Peers, b.Peers) &&
		slices.Equal(a.NodeAddrs, b.NodeAddrs) && slices.Equal(a.Problems, b.Problems)
}
