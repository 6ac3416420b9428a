package mesh

import (
	"slices"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// linger is how long a kind is heard because a peer announces it that should have given it up long ago: a live node does so
// within sessionWait. A node that died meanwhile, or is cut off from the API server, has lost its pods by then: Kubernetes
// evicts them after 5 minutes and 40 seconds.
const linger = 10 * time.Minute

// unseen is how old a snapshot may be: what this node has announced meanwhile is not in it.
const unseen = 10 * time.Second

// lingering tells since when a peer announces a kind besides its own that no node has as its own any more.
func (p *planner) lingering(peer subnet.Peer) time.Time {
	if peer.Also&^(p.own|subnet.KindsOf(subnet.HostGW)) == 0 {
		return time.Time{}
	}
	for _, way := range p.in.Last[peer.Name] {
		if !way.Lingers.IsZero() {
			return way.Lingers
		}
	}
	return p.in.Now
}

// maySend reports whether packets of a peer may come by a kind that this node hears, or did so until a moment ago.
func (p *planner) maySend(q party, kind string) bool {
	if q.BackendType == kind || !q.Also.Has(kind) || p.own.Has(kind) || q.lingers.IsZero() {
		return q.Speaks(kind)
	}
	left := linger - p.in.Now.Sub(q.lingers)
	if left > 0 {
		p.again(left)
	}
	return left > 0
}

// announce decides what this node says that it speaks, and what it keeps in order to hear what others send.
//
// A kind of before is announced while somebody is reached by it, as planned or as the kernel still has it, or has it as its
// own. It is kept while this node is announced to speak it, or a peer is: who sends by it is announced to speak it. So the
// last node that gives a kind up is heard to the end, and then nothing is left of it anywhere.
func (p *planner) announce() {
	used, leaving := subnet.Kinds(0), subnet.Kinds(0)
	for _, q := range p.peers {
		for _, f := range subnet.Families() {
			if q.usable[f] {
				used |= subnet.KindsOf(q.way[f].Kind)
				leaving |= subnet.KindsOf(p.inKernel(f, q))
			}
		}
		used |= subnet.KindsOf(q.BackendType)
	}
	former := p.able &^ subnet.KindsOf(p.c.Kind)
	p.out.Also = former & (used | leaving)
	if former&leaving&^used != 0 {
		p.again(time.Second) // to see the routes moved
	}
	if p.c.direct() {
		p.out.Also |= subnet.KindsOf(subnet.HostGW)
	}
	p.heard = subnet.KindsOf(p.c.Kind)
	for _, kind := range order() {
		if p.keep(kind) {
			p.heard |= subnet.KindsOf(kind)
		}
	}
}

// keep reports whether a kind is kept. What is not needed any more is kept for a little longer, for the snapshot may be older
// than what this node announced last. Plain packets take nothing to be heard, and so are heard from whoever sends them.
func (p *planner) keep(kind string) bool {
	since, before := p.in.Kept[kind]
	switch {
	case kind != subnet.HostGW && !p.able.Has(kind):
		return false
	case p.needs(kind):
		p.out.Kept[kind] = time.Time{}
		return true
	case !before && !p.able.Has(kind):
		return false
	case since.IsZero():
		since = p.in.Now
	}
	left := unseen - p.in.Now.Sub(since)
	if p.able.Has(kind) || left > 0 {
		p.out.Kept[kind] = since
	}
	if left > 0 {
		p.again(left)
	}
	return left > 0
}

// needs reports whether somebody sends by a kind, or may not know yet that it should not.
func (p *planner) needs(kind string) bool {
	if kind == p.c.Kind || p.out.Also.Has(kind) || p.announced.Has(kind) {
		return true
	}
	if kind == subnet.HostGW && p.c.Kind == subnet.IPIP {
		return true // nodes of this kind that announce nothing besides may be flannel's with DirectRouting, for each other
	}
	return slices.ContainsFunc(p.peers, func(q party) bool { return p.maySend(q, kind) })
}
