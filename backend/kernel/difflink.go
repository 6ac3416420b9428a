package kernel

import (
	"maps"
	"slices"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// links makes, changes and replaces devices. Those that are merely not wanted any more go last, since an old VNI's
// device carries traffic until the new one does.
func (d *differ) links() {
	d.closeGuards()
	for _, name := range slices.Sorted(maps.Keys(d.have.Links)) {
		have := d.have.Links[name]
		want, wanted := d.want.Links[name]
		switch {
		case wanted && otherPort(have, want):
			d.moveAside(name, have)
		case wanted && !compatible(have, want), !wanted && d.isBlocking(have):
			d.set(Op{Kind: LinkDel, Name: name, Link: have})
			d.drop(name)
		case !wanted && have.Kind == kindOf(name):
			d.leaving = append(d.leaving, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.want.Links)) {
		have, ok := d.have.Links[name]
		want := d.want.Links[name]
		want.Index = have.Index
		want.SoftChecksum = want.SoftChecksum || have.SoftChecksum
		want.Key = clamped(want.Key)
		switch {
		case !ok:
			d.guard(name, want)
			d.freePort(name, want)
			d.set(Op{Kind: LinkAdd, Name: name, Link: want})
		case have != want:
			d.own()
			d.freePort(name, want)
			d.set(Op{Kind: LinkSet, Name: name, Link: want, Was: have})
			d.have.Links[name] = want
			if have.MAC != want.MAC {
				d.flushNeighs(name) // as the kernel does, permanent ones too
			}
		}
	}
}

// pruneLinks removes the devices of earlier configurations.
func (d *differ) pruneLinks() {
	// removals run in reverse, and these shall be the very last: they go to the front.
	var ops []Op
	for _, name := range d.leaving {
		ops = append(ops, Op{Kind: LinkDel, Name: name, Link: d.have.Links[name], Prune: true})
	}
	d.removals = append(ops, d.removals...)
}

func (d *differ) isLeaving(link string) bool { return slices.Contains(d.leaving, link) }

// compatible reports whether have can become want by LinkSet. Changing the local address in place is possible but
// leaves cached outer routes with the old one. Everything of a WireGuard device can be changed, and its sessions go on.
func compatible(have, want Link) bool {
	have.Index, have.MTU, have.MAC, have.Learning, have.Up = want.Index, want.MTU, want.MAC, want.Learning, want.Up
	have.SoftChecksum, have.Key = want.SoftChecksum, want.Key
	if want.Kind == KindWireGuard {
		have.Port, have.Extra = want.Port, want.Extra
	}
	return have == want
}

// isBlocking reports whether an unwanted device of ours keeps a wanted one from coming up: the kernel has one socket
// for a UDP port, in one mode, and one device for a VNI on it.
func (d *differ) isBlocking(have Link) bool {
	for name, want := range d.want.Links {
		now, ok := d.have.Links[name]
		if have.Port != want.Port || want.Port == 0 || ok && compatible(now, want) && now.Port == want.Port {
			continue
		}
		switch {
		case have.Kind == KindWireGuard && want.Kind == KindWireGuard,
			have.Kind == KindWireGuard && want.Kind == KindVXLAN, have.Kind == KindVXLAN && want.Kind == KindWireGuard:
			return true
		case have.Kind == KindVXLAN && want.Kind == KindVXLAN && have.Local.Is6() == want.Local.Is6() &&
			(have.VNI == want.VNI || have.GBP != want.GBP || have.Extra != ""):
			return true
		}
	}
	return false
}

// freePort makes room for a WireGuard device on the port of another one that stays: that one hears any other port until its
// own turn.
func (d *differ) freePort(name string, want Link) {
	for _, other := range slices.Sorted(maps.Keys(d.have.Links)) {
		have := d.have.Links[other]
		_, stays := d.want.Links[other]
		if other == name || !stays || want.Kind != KindWireGuard || have.Kind != KindWireGuard || have.Port != want.Port || want.Port == 0 {
			continue
		}
		to := have
		to.Port = 0
		d.own()
		d.set(Op{Kind: LinkSet, Name: other, Link: to, Was: have})
		d.have.Links[other] = to
	}
}

// own makes have a copy, so that things can be taken from it.
func (d *differ) own() {
	if !d.copied {
		d.have, d.copied = d.have.Clone(), true
	}
}

// drop forgets what vanishes from the kernel together with a device.
func (d *differ) drop(link string) {
	d.own()
	delete(d.have.Links, link)
	maps.DeleteFunc(d.have.Addrs, func(a Addr, _ struct{}) bool { return a.Link == link })
	maps.DeleteFunc(d.have.FDB, func(k FDBKey, _ FDBDest) bool { return k.Link == link })
	d.flushNeighs(link)
	maps.DeleteFunc(d.have.Routes, func(_ RouteKey, r Route) bool { return r.Link == link })
	maps.DeleteFunc(d.have.Peers, func(k WGKey, _ WGPeer) bool { return k.Link == link })
	maps.DeleteFunc(d.have.Handshakes, func(k WGKey, _ time.Time) bool { return k.Link == link })
}

func (d *differ) flushNeighs(link string) {
	d.own()
	maps.DeleteFunc(d.have.Neighs, func(n Neigh, _ subnet.MAC) bool { return n.Link == link })
}
