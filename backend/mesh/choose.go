package mesh

import (
	"slices"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

const (
	// sessionWait is how long packets go in the clear, as before, while a session of WireGuard does not come up.
	sessionWait = 2 * time.Minute
	// sessionFresh is how old a handshake may be: WireGuard itself uses no older session (REJECT_AFTER_TIME).
	sessionFresh = 3 * time.Minute
	// sessionPoll is how often handshakes are looked for while some are waited for: the kernel tells nobody of them.
	sessionPoll = time.Second
)

// order is from the best kind to the worst, for peers whose own kind is not ours.
func order() []string { return []string{subnet.WireGuard, subnet.HostGW, subnet.VXLAN, subnet.IPIP} }

// choose decides the way to a peer in each family.
func (p *planner) choose(q *party) {
	for _, f := range subnet.Families() {
		if !q.usable[f] {
			continue
		}
		last := p.in.Last[q.Name][f]
		way := p.pick(f, q, last.Waits)
		way.Since, way.Lingers, way.Mute = last.Since, q.lingers, p.mute(f, q, last.Mute)
		if way.Kind != last.Kind || last.Since.IsZero() {
			way.Since = p.in.Now
		}
		q.way[f] = way
		p.explain(f, q)
	}
	if q.way != [2]Way{} {
		p.out.Ways[q.Name] = q.way
	}
}

// pick makes before it breaks: packets move to the kind that is wanted when the other end is known to hear it, and go as
// before until then.
//
// A kind that is not the peer's own may be given up by the peer at any moment, and the peer then hears it for as long as some
// node is announced to speak it. So nothing is sent by a kind that this node is not announced to speak in the very snapshot
// in which the peer speaks it: the peer's giving up is later than our announcement then, and the peer knows of us.
func (p *planner) pick(f subnet.Family, q *party, waits time.Time) Way {
	if p.c.Kind == subnet.Alloc && q.BackendType == subnet.Alloc {
		return Way{} // the cluster's owner routes
	}
	now, common := p.current(f, q), p.common(f, q)
	if len(common) == 0 {
		return Way{}
	}
	wanted := common[0]
	if now == wanted && waits.IsZero() {
		return Way{Kind: wanted}
	}
	kind := p.firstReady(f, q, common, now)
	if wanted != subnet.WireGuard || kind == wanted && p.session(f, q) {
		return Way{Kind: kind}
	}
	return p.wait(f, q, Way{Kind: kind, Waits: waits}, now)
}

// wait sends in the clear for a limited time while a session of WireGuard is not up, and never again after it.
func (p *planner) wait(f subnet.Family, q *party, way Way, now string) Way {
	if way.Kind == subnet.WireGuard && way.Waits.IsZero() {
		return way // there was never another way
	}
	if way.Waits.IsZero() {
		if p.announced != 0 && !p.announced.Has(subnet.WireGuard) {
			return way // the peer cannot know of our key yet
		}
		way.Waits = p.in.Now
	}
	left := sessionWait - p.in.Now.Sub(way.Waits)
	if now == subnet.WireGuard || left <= 0 {
		way.Kind, q.forced[f] = subnet.WireGuard, true
	}
	p.again(sessionPoll)
	return way
}

// firstReady is the best kind that can be taken at once: the wanted one, else that of now, else another. When none is known
// to be heard, the wanted one is tried: there is nothing to lose. Where nothing went before, as after a reboot, a node that
// encrypts does not begin in the clear.
func (p *planner) firstReady(f subnet.Family, q *party, common []string, now string) string {
	list := common
	if slices.Contains(common[1:], now) {
		list = append([]string{common[0], now}, common[1:]...)
	}
	for _, kind := range list {
		if p.announced != 0 && !p.announced.Has(kind) {
			continue
		}
		first := now == "" && p.c.Kind == subnet.WireGuard
		if kind != subnet.WireGuard || kind == now || first || p.session(f, q) {
			return kind
		}
	}
	return common[0]
}

// common lists the kinds by which both ends can reach each other as far as is known, the wanted one first. WireGuard that a
// peer announces and that cannot be used leaves no other way to a node which encrypts.
func (p *planner) common(f subnet.Family, q *party) []string {
	kinds := order()
	if q.BackendType == p.c.Kind {
		kinds = slices.DeleteFunc(kinds, func(k string) bool { return k == p.c.Kind })
		kinds = append([]string{p.c.Kind}, kinds...)
		if p.c.direct() && p.takesPlain(f, q) {
			kinds = append([]string{subnet.HostGW}, kinds...) // named twice then, which does no harm
		}
	}
	kinds = slices.DeleteFunc(kinds, func(k string) bool { return !p.possible(f, q, k) })
	if p.c.Kind == subnet.WireGuard && q.Speaks(subnet.WireGuard) && !slices.Contains(kinds, subnet.WireGuard) {
		return nil
	}
	return kinds
}

// possible reports whether both ends speak a kind and have what it needs.
func (p *planner) possible(f subnet.Family, q *party, kind string) bool {
	if !p.able.Has(kind) {
		return false
	}
	switch kind {
	case subnet.HostGW:
		return p.takesPlain(f, q)
	case subnet.VXLAN:
		return q.Speaks(kind) && !q.Endpoints[f].MAC.IsZero() && !p.c.VXLAN.MACs[f].IsZero()
	case subnet.WireGuard:
		_, ok := p.wg.Endpoint(f, q.Peer)
		return q.Speaks(kind) && !q.Key.IsZero() && ok
	}
	return q.Speaks(kind)
}

// takesPlain reports whether a peer is a neighbour that takes packets for its pods without a tunnel. Of weft's nodes those do
// which say so; flannel's do with DirectRouting, of which they say nothing.
func (p *planner) takesPlain(f subnet.Family, q *party) bool {
	flannel := q.BackendType == subnet.VXLAN && q.Port == 0 || q.BackendType == subnet.IPIP && q.Also == 0
	return q.path[f].OnLink && (q.Speaks(subnet.HostGW) || p.c.direct() && q.BackendType == p.c.Kind && flannel)
}

// session reports whether WireGuard's session with a peer is up.
func (p *planner) session(f subnet.Family, q *party) bool {
	at := p.in.Have.Handshakes[kernel.WGKey{Link: p.wg.DeviceTo(f, q.Peer), Key: q.Key}]
	return !at.IsZero() && p.in.Now.Sub(at) < sessionFresh
}

// mute tells of a peer that has no session of WireGuard.
func (p *planner) mute(f subnet.Family, q *party, last Mute) Mute {
	key := kernel.WGKey{Link: p.wg.DeviceTo(f, q.Peer), Key: q.Key}
	at, sent := p.in.Have.Handshakes[key], p.in.Have.Sent[key]
	switch {
	case q.Key.IsZero() || p.session(f, q):
		return Mute{}
	case !last.Since.IsZero() && last.Handshake.Equal(at) && last.Sent <= sent:
		return last
	case at.IsZero():
		sent = 0
	}
	return Mute{Since: p.in.Now, Handshake: at, Sent: sent}
}

// unanswered reports whether a peer has left several handshakes unanswered. Of data nothing is sent without a session. How old
// one is, the clock says, which may have been set: a session that is used makes itself a new handshake every two minutes.
func (p *planner) unanswered(f subnet.Family, q *party) bool {
	const tries, initiation, renewed = 3, 148, 125 * time.Second
	m := q.way[f].Mute
	if !m.Handshake.IsZero() && p.in.Now.Sub(m.Since) < renewed {
		return false
	}
	sent := p.in.Have.Sent[kernel.WGKey{Link: p.wg.DeviceTo(f, q.Peer), Key: q.Key}]
	return !m.Since.IsZero() && sent-m.Sent >= tries*initiation
}

// current is how packets go to a peer now: as the last plan said, or, after a start, as the kernel has it.
func (p *planner) current(f subnet.Family, q *party) string {
	if last, ok := p.in.Last[q.Name]; ok && last[f] != (Way{}) {
		return last[f].Kind
	}
	return p.inKernel(f, *q)
}

// inKernel is the kind of the route that the kernel has for a peer's pods; "" when it has none.
func (p *planner) inKernel(f subnet.Family, q party) string {
	r, ok := p.in.Have.Routes[kernel.RouteKey{Dst: q.Endpoints[f].PodCIDR.Masked(), Metric: kernel.RouteMetric(f)}]
	if !ok || r.Type == "blackhole" {
		return ""
	}
	switch p.in.Have.Links[r.Link].Kind {
	case kernel.KindVXLAN:
		return subnet.VXLAN
	case kernel.KindWireGuard:
		return subnet.WireGuard
	case kernel.KindIPIP, kernel.KindIP6Tnl:
		return subnet.IPIP
	}
	return subnet.HostGW
}
