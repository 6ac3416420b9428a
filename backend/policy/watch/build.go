package watch

import (
	"cmp"
	"context"
	"maps"
	"slices"
	"time"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/subnet/attach"
)

// settle is the least time between two builds, but for those that a pod waits for. The first change after a rest is
// published at once.
const settle = 20 * time.Millisecond

// patience is how long the first World waits for the notes of the CNI plugin. Without them a pod whose address the API
// does not know yet would be forgotten by a restart.
const patience = 5 * time.Second

// builder makes Worlds of the tables.
type builder struct {
	*Source
	began    time.Time
	idle     time.Time // since when there has been no policy; zero while there are
	watching bool      // pods and namespaces
	told     map[Problem]bool
	joiner   joiner
	last     joint
}

// joint is the last join: what went in, and what came out.
type joint struct {
	all    []*policy.Pod
	notes  []attach.Note
	static map[key]string
	gone   int

	joined
}

// build publishes until ctx ends.
func (s *Source) build(ctx context.Context) {
	b := &builder{Source: s, began: time.Now(), told: map[Problem]bool{}}
	var attached, ready <-chan struct{}
	if s.cfg.Attached != nil {
		attached, ready = s.cfg.Attached.Changed(), s.cfg.Attached.Ready()
	}
	timer := time.NewTimer(patience)
	defer timer.Stop()
	for {
		began := time.Now()
		b.publish(began)
		timer.Reset(b.next(began))
		rest := time.After(max(settle, 4*time.Since(began))) // a fifth of one core at most, however large the cluster
		for waiting := true; waiting; {
			select {
			case <-ctx.Done():
				return
			case <-attached: // a pod waits for this one
				waiting = false
			case <-rest:
				waiting = false
				select {
				case <-ctx.Done():
					return
				case <-s.dirty:
				case <-attached:
				case <-ready:
					ready = nil
				case <-timer.C:
				}
			}
		}
	}
}

// next is when to look again although nothing changes.
func (b *builder) next(now time.Time) time.Duration {
	wait := time.Hour
	if !b.idle.IsZero() {
		wait = b.idle.Add(b.cfg.Linger).Sub(now)
	}
	if left := b.began.Add(patience).Sub(now); left > 0 {
		wait = min(wait, left)
	}
	return max(wait, settle)
}

// publish makes the state of the tables and publishes it if it says anything new.
func (b *builder) publish(now time.Time) {
	old := b.published.Load()
	next := &state{world: old.world, complete: old.complete, refused: b.Refused() != nil}
	namespaced, cluster, known := b.policiesNow()
	next.known, next.active = known, len(namespaced)+len(cluster) > 0
	if !known {
		next.active = old.active || next.active
	}
	nodes := slices.ContainsFunc(cluster, wantsNodes)
	b.demand(next, nodes, now)
	if w, complete := b.world(next, nodes); known && complete {
		w.Policies, w.Cluster = namespaced, cluster
		next.world, next.complete = w, true
		if !next.active {
			next.world = policy.World{}
		}
	}
	next.problems = b.complaints()
	if next.complete == old.complete && next.active == old.active && next.known == old.known && next.refused == old.refused &&
		slices.Equal(next.problems, old.problems) && sameWorld(next.world, old.world) {
		return
	}
	b.published.Store(next)
	poke(b.changed)
}

// demand starts and stops the feeds that policies make necessary.
func (b *builder) demand(next *state, nodes bool, now time.Time) {
	if next.active {
		b.idle = time.Time{}
	} else if next.known && b.idle.IsZero() {
		b.idle = now
	}
	on := next.active || b.watching && now.Sub(b.idle) < b.cfg.Linger
	b.watching = on
	b.demands.pods.want(on)
	b.demands.namespaces.want(on)
	b.demands.nodes.want(nodes)
}

// world is what the policies are about, without the policies.
func (b *builder) world(next *state, nodes bool) (policy.World, bool) {
	var w policy.World
	if !next.active {
		return w, true
	}
	pods, own, podsKnown := b.pods.lists()
	var nsKnown bool
	w.Namespaces, nsKnown = b.namespaces.list()
	nodesKnown := true
	if nodes {
		w.Nodes, nodesKnown = b.nodes.list()
	}
	b.in.tidy(len(pods))
	with, notesKnown := b.attach(pods, own)
	w.Pods, w.Local, w.Gated = with.pods, with.local, with.gated
	return w, podsKnown && nsKnown && nodesKnown && notesKnown
}

// attach works the notes of the CNI plugin in.
func (b *builder) attach(pods, own []*policy.Pod) (joined, bool) {
	if b.cfg.Attached == nil {
		return joined{pods: pods, local: own}, true
	}
	ready := time.Since(b.began) > patience
	select {
	case <-b.cfg.Attached.Ready():
		ready = true
	default:
	}
	notes := b.cfg.Attached.Notes()
	noted := map[string]bool{}
	for _, n := range notes {
		noted[n.UID] = true
	}
	gone := b.pods.lost(func(uid string) bool { return !ready || noted[uid] })
	static := b.pods.aside()
	if l := b.last; !samePointers(pods, l.all) || !slices.EqualFunc(notes, l.notes, attach.Note.Equal) ||
		!maps.Equal(static, l.static) || len(gone) != l.gone {
		b.last = joint{all: pods, notes: notes, static: static, gone: len(gone)}
		b.last.joined = b.joiner.join(pods, local{pods: own, notes: slices.Clone(notes), static: static, gone: gone})
	}
	return b.last.joined, ready
}

// complaints gathers what is wrong with policies, and says once what is new.
func (b *builder) complaints() []Problem {
	out := b.notServed()
	for _, of := range []map[key][]string{b.policies.complaints(), b.cluster.complaints()} {
		for k, texts := range of {
			name := k.name
			if k.namespace != "" {
				name = k.namespace + "/" + k.name
			}
			for _, text := range texts {
				out = append(out, Problem{Policy: name, Text: text})
			}
		}
	}
	slices.SortFunc(out, func(a, c Problem) int { return cmp.Or(cmp.Compare(a.Policy, c.Policy), cmp.Compare(a.Text, c.Text)) })
	told := map[Problem]bool{}
	for _, p := range out {
		if !b.told[p] {
			b.log.Warn("a policy cannot be enforced as it was meant", "policy", p.Policy, "problem", p.Text)
		}
		told[p] = true
	}
	b.told = told
	return out
}

func sameWorld(a, b policy.World) bool {
	return samePointers(a.Pods, b.Pods) && samePointers(a.Policies, b.Policies) && samePointers(a.Cluster, b.Cluster) &&
		samePointers(a.Namespaces, b.Namespaces) && samePointers(a.Nodes, b.Nodes) && slices.Equal(a.Gated, b.Gated)
}
