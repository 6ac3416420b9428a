package kernel

import (
	"net/netip"
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// setPeer makes or changes a WireGuard peer. Its ranges are taken from others.
func (f *Fake) setPeer(op Op) error {
	if f.state.Links[op.PeerKey.Link].Kind != KindWireGuard {
		return unix.ENODEV
	}
	if op.PeerWas.More > 0 { // all ranges are replaced
		f.setRanges(op.PeerKey, nil)
	}
	f.takeRanges(op.PeerKey.Link, valid(op.Peer.Allowed))
	was, known := f.state.Peers[op.PeerKey]
	if !known {
		delete(f.ranges, op.PeerKey)
	}
	peer := op.Peer
	peer.Allowed, peer.More = was.Allowed, was.More
	if !peer.Endpoint.IsValid() {
		peer.Endpoint = was.Endpoint
	}
	f.state.Peers[op.PeerKey] = peer
	f.setRanges(op.PeerKey, append(f.rangesOf(op.PeerKey), valid(op.Peer.Allowed)...))
	return nil
}

// takeRanges makes ranges nobody's.
func (f *Fake) takeRanges(link string, taken []netip.Prefix) {
	for k := range f.state.Peers {
		if k.Link == link {
			f.setRanges(k, slices.DeleteFunc(f.rangesOf(k), func(r netip.Prefix) bool { return slices.Contains(taken, r) }))
		}
	}
}

// rangesOf lists the ranges of a peer, those that it has had for longest first.
func (f *Fake) rangesOf(k WGKey) []netip.Prefix {
	return append(valid(f.state.Peers[k].Allowed), f.ranges[k]...)
}

// setRanges files them: the state has room for the first of each family, and counts the others.
func (f *Fake) setRanges(k WGKey, all []netip.Prefix) {
	peer, ok := f.state.Peers[k]
	if !ok {
		return
	}
	peer.Allowed = [2]netip.Prefix{}
	var more []netip.Prefix
	for _, r := range all {
		if of := subnet.FamilyOf(r.Addr()); peer.Allowed[of].IsValid() {
			more = append(more, r)
		} else {
			peer.Allowed[of] = r
		}
	}
	peer.More = len(more)
	f.ranges[k], f.state.Peers[k] = more, peer
}
