package mesh

import (
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// encrypt lists the pod ranges that may not be met in the clear: of peers that WireGuard carries, and, on a node that
// encrypts, of peers that nothing carries. Those are left out of whom packets may still come without a tunnel, as long as the
// cluster is on its way from plain routes, or to them.
func (p *planner) encrypt() {
	plain := subnet.KindsOf(subnet.HostGW)
	idle, kept := p.out.Kept[subnet.HostGW]
	mixed := (p.announced|p.out.Also|subnet.KindsOf(p.c.Kind))&plain != 0 || kept && !idle.IsZero() && p.heard&plain != 0
	for _, q := range p.peers {
		for _, f := range subnet.Families() {
			kind := q.way[f].Kind
			sealed := kind == subnet.WireGuard || kind == "" && p.c.Kind == subnet.WireGuard
			if q.usable[f] && sealed && !mixed && !p.maySend(q, subnet.HostGW) {
				p.out.Encrypted[f] = append(p.out.Encrypted[f], q.Endpoints[f].PodCIDR.Masked())
			}
			if link := q.path[f].Link; p.heard&plain != 0 && q.path[f].OnLink && !p.settled(f, q) && !slices.Contains(p.out.Plain, link) {
				p.out.Plain = append(p.out.Plain, link)
			}
		}
	}
	slices.Sort(p.out.Plain)
}

// settled reports whether answers to a peer's plain packets go the way that those came, and will not go by another before this
// node is planned for anew: it has nothing but plain routes, and so has the peer. A strict reverse path filter lets them in.
func (p *planner) settled(f subnet.Family, q party) bool {
	plain := subnet.KindsOf(subnet.HostGW)
	return p.able == plain && p.c.Kind == q.BackendType && q.Also == 0 && q.way[f].Kind == subnet.HostGW && p.announced|p.out.Also|plain == plain
}
