package kernel

import (
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// otherPort reports whether nothing but the UDP port keeps a device from being the wanted one. The port of a device cannot be
// changed, but two devices with one VNI can live side by side on two ports.
func otherPort(have, want Link) bool {
	moved := have
	moved.Port = want.Port
	return want.Kind == KindVXLAN && have.Port != want.Port && compatible(moved, want)
}

// moveAside keeps a device under another name, with everything on it, while its successor is made: what peers still send to
// the old port is heard, and routes move over one by one without a gap. The old device goes at the very end.
func (d *differ) moveAside(name string, have Link) {
	spare := spareName(subnet.FamilyOf(have.Local))
	if older, ok := d.have.Links[spare]; ok {
		d.set(Op{Kind: LinkDel, Name: spare, Link: older})
		d.drop(spare)
	}
	d.set(Op{Kind: LinkMove, Name: name, To: spare, Link: have})
	d.rename(name, spare)
	if !slices.Contains(d.leaving, spare) {
		d.leaving = append(d.leaving, spare)
	}
}

// rename moves a device and everything on it to another name.
func (d *differ) rename(from, to string) {
	d.own()
	d.have.Links[to] = d.have.Links[from]
	delete(d.have.Links, from)
	for a := range d.have.Addrs {
		if a.Link == from {
			delete(d.have.Addrs, a)
			d.have.Addrs[Addr{Link: to, Prefix: a.Prefix}] = struct{}{}
		}
	}
	for n, mac := range d.have.Neighs {
		if n.Link == from {
			delete(d.have.Neighs, n)
			d.have.Neighs[Neigh{Link: to, IP: n.IP}] = mac
		}
	}
	for k, dest := range d.have.FDB {
		if k.Link == from {
			delete(d.have.FDB, k)
			d.have.FDB[FDBKey{Link: to, MAC: k.MAC}] = dest
		}
	}
	for k, r := range d.have.Routes {
		if r.Link == from {
			r.Link = to
			d.have.Routes[k] = r
		}
	}
}
