package mesh

import (
	"time"

	"github.com/weft-cni/weft/subnet"
)

// linger is how long a kind is heard because a peer announces it that should have given it up long ago: a live node does so
// within sessionWait. A node that died meanwhile, or is cut off from the API server, has lost its pods by then: Kubernetes
// evicts them after 5 minutes and 40 seconds.
const linger = 10 * time.Minute

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
	if left > 0 && p.able.Has(kind) {
		p.again(left)
	}
	return left > 0
}

// announce decides what this node says that it speaks, and what it keeps in order to hear what others send.
//
// A kind of before is announced while somebody is reached by it, or has it as its own. It is kept while this node is
// announced to speak it, or a peer is: who sends by it is announced to speak it. So the last node that gives a kind up is
// heard to the end, and then nothing is left of it anywhere.
func (p *planner) announce() {
	used := subnet.Kinds(0)
	for _, q := range p.peers {
		for _, way := range q.way {
			used |= subnet.KindsOf(way.Kind)
		}
		used |= subnet.KindsOf(q.BackendType)
	}
	former := p.able &^ subnet.KindsOf(p.c.Kind)
	p.out.Also = former & used
	if p.c.direct() {
		p.out.Also |= subnet.KindsOf(subnet.HostGW)
	}
	p.heard = (subnet.KindsOf(p.c.Kind) | p.out.Also | p.announced) & p.able
	for _, kind := range former.List() {
		for _, q := range p.peers {
			if p.maySend(q, kind) {
				p.heard |= subnet.KindsOf(kind)
			}
		}
	}
}
