package scenario

import (
	"net/netip"
	"sync"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/lane"
)

// Source is one node's watch of the cluster. It reads Nodes with the daemon's own parser and resolver; only the
// transport in between is left out.
type Source struct {
	cluster *Cluster
	name    string
	rules   kube.Rules
	changed chan struct{}
	now     func() time.Time

	mu     sync.Mutex // guards memory and last, as the loop and the script may ask at the same time
	memory kube.Memory
	last   subnet.Snapshot
	synced bool
}

// networks are the pod networks of a lane, by family.
func networks(l lane.Lane) [2]netip.Prefix {
	var all [2]netip.Prefix
	for _, f := range l.Families() {
		all[f] = lane.Network(f)
	}
	return all
}

// watch subscribes a node.
func (c *Cluster) watch(name string, w *World) *Source {
	s := &Source{
		cluster: c, name: name, changed: make(chan struct{}, 1), now: w.now,
		rules: kube.Rules{Prefix: w.prefix, Networks: networks(w.lane)},
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.sources[s] = struct{}{}
	return s
}

// close ends the watch, as the death of its node does.
func (s *Source) close() {
	s.cluster.mu.Lock()
	defer s.cluster.mu.Unlock()
	delete(s.cluster.sources, s)
}

// Changed implements subnet.Source.
func (s *Source) Changed() <-chan struct{} { return s.changed }

// Snapshot implements subnet.Source. A watch that was started while the API is away has none.
func (s *Source) Snapshot() (subnet.Snapshot, bool) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.cluster.mu.Lock()
	away := s.cluster.away
	s.cluster.mu.Unlock()
	if away && !s.synced {
		return subnet.Snapshot{}, false
	}
	s.last, s.synced = s.build(), true
	return s.last, true
}

// build makes the snapshot of the Nodes as they are served.
func (s *Source) build() subnet.Snapshot {
	v := kube.View{Memory: s.memory, Now: s.now(), Self: subnet.Self{Name: s.name}, Own: kube.Claim{Peer: subnet.Peer{Name: s.name}}}
	for _, r := range s.cluster.view() {
		node := r.node(s.rules.Prefix)
		if r.Name == s.name {
			v.Self, _ = kube.ParseSelf(node, s.rules.Prefix)
			v.Own = kube.ParsePeer(node, s.rules)
			continue
		}
		v.Claims = append(v.Claims, kube.ParsePeer(node, s.rules))
	}
	out := kube.Resolve(v)
	s.memory = out.Memory
	return subnet.Snapshot{Self: v.Self, Peers: out.Peers, NodeAddrs: out.NodeAddrs, Problems: out.Problems}
}
