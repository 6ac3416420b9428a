package kernel

import (
	"net/netip"
)

// peers sets and removes WireGuard peers. A peer with a new key is a new peer: it takes the pod range over, and the old one
// goes afterwards. So do ranges that a peer has no more, when the routes to them have left.
func (d *differ) peers() {
	differs := func(k WGKey, _ WGPeer) bool { return d.peerDiffers(k) }
	for _, k := range sorted(d.want.Peers, differs, WGKey.compare) {
		op := Op{Kind: PeerSet, PeerKey: k, Peer: d.want.Peers[k], PeerWas: d.have.Peers[k]}
		op.Peer.Endpoint = d.endpoint(k)
		d.set(op)
	}
	d.disown()
	for _, k := range sorted(d.have.Peers, lacks[WGKey, WGPeer](d.want.Peers), WGKey.compare) {
		if !d.isLeaving(k.Link) {
			d.remove(Op{Kind: PeerDel, PeerKey: k, PeerWas: d.have.Peers[k]})
		}
	}
}

// peerDiffers reports whether a wanted peer lacks something, or has ranges that nobody knows.
func (d *differ) peerDiffers(k WGKey) bool {
	have, ok := d.have.Peers[k]
	want := d.want.Peers[k]
	if want.Endpoint = d.endpoint(k); !want.Endpoint.IsValid() {
		have.Endpoint = netip.AddrPort{}
	}
	for f, r := range want.Allowed {
		if !r.IsValid() {
			have.Allowed[f] = r
		}
	}
	return !ok || have != want
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

// disown takes ranges away that no wanted peer of the device has. Where one goes from peer to peer, the new owner takes it.
func (d *differ) disown() {
	shed := func(k WGKey, have WGPeer) bool {
		want, ok := d.want.Peers[k]
		return ok && have.More == 0 && have.Allowed != want.Allowed
	}
	peers := sorted(d.have.Peers, shed, WGKey.compare)
	if len(peers) == 0 {
		return
	}
	type owned struct {
		link string
		r    netip.Prefix
	}
	all := map[owned]struct{}{}
	for k, p := range d.want.Peers {
		for _, r := range valid(p.Allowed) {
			all[owned{k.Link, r}] = struct{}{}
		}
	}
	for _, k := range peers {
		for _, r := range valid(d.have.Peers[k].Allowed) {
			if _, ok := all[owned{k.Link, r}]; !ok {
				d.remove(Op{Kind: RangeDel, PeerKey: k, Range: r})
			}
		}
	}
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
