package kernel

import (
	"maps"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// links makes, changes and replaces devices. Those that are merely not wanted any more go last, since an old VNI's
// device carries traffic until the new one does.
func (d *differ) links() {
	for _, name := range slices.Sorted(maps.Keys(d.have.Links)) {
		have := d.have.Links[name]
		want, wanted := d.want.Links[name]
		switch {
		case wanted && otherPort(have, want):
			d.moveAside(name, have)
		case wanted && !compatible(have, want), !wanted && d.isBlocking(have):
			d.set(Op{Kind: LinkDel, Name: name, Link: have})
			d.drop(name)
		case !wanted && have.Kind == "vxlan":
			d.leaving = append(d.leaving, name)
		}
	}
	for _, name := range slices.Sorted(maps.Keys(d.want.Links)) {
		have, ok := d.have.Links[name]
		want := d.want.Links[name]
		want.Index = have.Index
		want.SoftChecksum = want.SoftChecksum || have.SoftChecksum
		switch {
		case !ok:
			d.guard(want)
			d.set(Op{Kind: LinkAdd, Name: name, Link: want})
		case have != want:
			d.set(Op{Kind: LinkSet, Name: name, Link: want, Was: have})
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
// leaves cached outer routes with the old one.
func compatible(have, want Link) bool {
	have.Index, have.MTU, have.MAC, have.Learning, have.Up = want.Index, want.MTU, want.MAC, want.Learning, want.Up
	have.SoftChecksum = want.SoftChecksum
	return have == want
}

// isBlocking reports whether an unwanted device of ours keeps a wanted one from coming up: the kernel has one socket
// for a UDP port, in one mode, and one device for a VNI on it.
func (d *differ) isBlocking(have Link) bool {
	for name, want := range d.want.Links {
		now, ok := d.have.Links[name]
		if ok && compatible(now, want) || have.Kind != "vxlan" {
			continue
		}
		if have.Port == want.Port && have.Local.Is6() == want.Local.Is6() &&
			(have.VNI == want.VNI || have.GBP != want.GBP || have.Extra != "") {
			return true
		}
	}
	return false
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
}

func (d *differ) flushNeighs(link string) {
	d.own()
	maps.DeleteFunc(d.have.Neighs, func(n Neigh, _ subnet.MAC) bool { return n.Link == link })
}
