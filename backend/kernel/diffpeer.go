package kernel

import (
	"net/netip"
)

// peers sets and removes WireGuard peers. A peer with a new key is a new peer: it takes the pod range over, and the old one
// goes afterwards.
func (d *differ) peers() {
	var owned map[rangeOf]struct{}
	differs := func(k WGKey, want WGPeer) bool {
		have, ok := d.have.Peers[k]
		if want.Endpoint = d.endpoint(k); !want.Endpoint.IsValid() {
			have.Endpoint = netip.AddrPort{}
		}
		return !ok || have != want
	}
	for _, k := range sorted(d.want.Peers, differs, WGKey.compare) {
		if owned == nil {
			owned = d.owned()
		}
		op := Op{Kind: PeerSet, PeerKey: k, Peer: d.want.Peers[k], PeerWas: d.have.Peers[k]}
		op.Peer.Endpoint = d.endpoint(k)
		for f, r := range op.PeerWas.Allowed {
			if _, ok := owned[rangeOf{k.Link, r}]; !ok {
				op.Disowned[f] = r
			}
		}
		d.set(op)
	}
	for _, k := range sorted(d.have.Peers, lacks[WGKey, WGPeer](d.want.Peers), WGKey.compare) {
		if !d.isLeaving(k.Link) {
			d.remove(Op{Kind: PeerDel, PeerKey: k, PeerWas: d.have.Peers[k]})
		}
	}
}

// endpoint is where a peer is to be looked for. It is invalid when the kernel knows best: a peer that we have a session with is
// where its last packet came from.
func (d *differ) endpoint(k WGKey) netip.AddrPort {
	have, ok := d.have.Peers[k]
	if ok && have.Endpoint.IsValid() && d.have.isLive(k) {
		return netip.AddrPort{}
	}
	return d.want.Peers[k].Endpoint
}

// rangeOf is a pod range on a device, which has one owner at most.
type rangeOf struct {
	link string
	r    netip.Prefix
}

// owned are the ranges that a wanted peer has. When one goes from peer to peer, the new owner takes it from the old.
func (d *differ) owned() map[rangeOf]struct{} {
	owned := map[rangeOf]struct{}{}
	for k, p := range d.want.Peers {
		for _, r := range valid(p.Allowed) {
			owned[rangeOf{k.Link, r}] = struct{}{}
		}
	}
	return owned
}

// DiffSince is Diff for a kernel that has been brought to the state reached before. What has changed since then without us
// was taken away: an administrator's route in the place of one of ours is replaced in turn (Op.Regain). And what has changed
// in the wanted state is news: the announced address of a WireGuard peer then counts more than where its packets came from.
func DiffSince(reached, have, want State) []Op {
	moved := false
	for k, p := range want.Peers {
		was, ok := reached.Peers[k]
		if now := have.Peers[k]; ok && was.Endpoint != p.Endpoint && now.Endpoint != p.Endpoint {
			if !moved {
				have, moved = have.Clone(), true
			}
			delete(have.Handshakes, k)
		}
	}
	return Regaining(Diff(have, want), reached)
}
