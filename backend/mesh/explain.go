package mesh

import "github.com/weft-cni/weft/subnet"

// explain reports a peer that is not reached as it should be.
func (p *planner) explain(f subnet.Family, q *party) {
	way, own := q.way[f], p.c.Kind
	switch {
	case way.Kind == "" && own == subnet.Alloc && q.BackendType == subnet.Alloc:
	case way.Kind == "":
		p.unreached(f, q)
	case q.forced[f]:
		p.report(q.Peer, "NoSession", "no session of WireGuard with it has come up since %s, and nothing is sent to it in the clear: "+
			"see that UDP reaches %s, and that both have the same PSK", way.Waits.UTC().Format("15:04:05"), p.endpoint(f, q))
	case !way.Waits.IsZero():
		p.report(q.Peer, "NotEncrypted", "a session of WireGuard with it is not up yet: packets for it go by %s until then, at most until %s",
			way.Kind, way.Waits.Add(sessionWait).UTC().Format("15:04:05"))
	case way.Kind == subnet.WireGuard && p.unanswered(f, q):
		p.report(q.Peer, "NoSession", "it answers no handshake of WireGuard, and nothing is sent to it in the clear: "+
			"see that UDP reaches %s, and that both have the same PSK", p.endpoint(f, q))
	case own == subnet.WireGuard && way.Kind != own:
		p.report(q.Peer, "NotEncrypted", "its backend is still %q: packets for it go by %s, in the clear, until it runs wireguard", q.BackendType, way.Kind)
	case own == subnet.HostGW && q.BackendType == own && way.Kind != own && q.path[f].OnLink: // the peer does not know of our plain routes yet
	case own == subnet.HostGW && q.BackendType == own && way.Kind != own:
		p.notOnLink(f, q, "it is reached by "+way.Kind+", as before")
	case q.BackendType != own:
		p.report(q.Peer, "OtherBackend", "its backend is %q, ours is %s: it is reached by %s until both are the same", q.BackendType, own, way.Kind)
	}
}

// unreached reports a peer that nothing carries.
func (p *planner) unreached(f subnet.Family, q *party) {
	switch both := p.c.Kind; {
	case p.c.Kind == subnet.WireGuard && q.Speaks(subnet.WireGuard):
		p.report(q.Peer, "BadKey", "it announces WireGuard in %s without a usable key, or without an address that ours can reach: nothing is sent to it, "+
			"neither encrypted nor in the clear", f)
	case q.BackendType != both:
		p.report(q.Peer, "OtherBackend", "its backend is %q, ours is %s: its pods cannot be reached until it runs the same", q.BackendType, both)
	case both == subnet.HostGW:
		p.notOnLink(f, q, "its pods cannot be reached")
	default:
		p.report(q.Peer, "Incomplete", "its %s announcement lacks what %s needs", f, both)
	}
}

func (p *planner) notOnLink(f subnet.Family, q *party, so string) {
	path, addr := q.path[f], q.Endpoints[f].PublicIP
	const cure = `host-gw needs all nodes on one link; use "Type": "vxlan" with "DirectRouting": true in net-conf.json`
	switch {
	case path.Via.IsValid():
		p.report(q.Peer, "NotOnLink", "its address %s is behind the gateway %s on %s: %s; %s", addr, path.Via, path.Link, so, cure)
	case path.Link != "":
		p.report(q.Peer, "NotOnLink", "its address %s is not a neighbour's on %s: %s; %s", addr, path.Link, so, cure)
	default:
		p.report(q.Peer, "NotOnLink", "there is no route to its address %s: %s until there is one", addr, so)
	}
}

func (p *planner) endpoint(f subnet.Family, q *party) string {
	e, _ := p.wg.Endpoint(f, q.Peer)
	return e.String()
}
