package daemon

import (
	"context"
	"slices"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// A changed port takes three steps, so that no packet finds nobody: the new device is made beside the old one, then the rules
// let the new one hear the old port too, and only then does the old device go. Peers learn of the new port in between, or
// much later.

// formerPorts are the ports that this node has heard before the one it has now: peers go on sending there until they have seen
// the new announcement. They are heard as long as this process lives.
func formerPorts(port uint16, self subnet.Self, have kernel.State) []uint16 {
	former := []uint16{self.Port}
	for _, l := range have.Links {
		if l.Kind == "vxlan" {
			former = append(former, l.Port)
		}
	}
	slices.Sort(former)
	return slices.DeleteFunc(slices.Compact(former), func(p uint16) bool { return p == 0 || p == port })
}

// holdSpare leaves the old device in place until the rules hear its port.
func (p *plane) holdSpare(ops []kernel.Op) []kernel.Op {
	if p.heard.Load() == uint32(p.port) {
		return ops
	}
	return slices.DeleteFunc(ops, func(op kernel.Op) bool { return op.Kind == kernel.LinkDel && op.Prune && kernel.IsSpareName(op.Name) })
}

// hears notes that the rules are in force for a port, and tells whether that is news.
func (p *plane) hears(port uint16) bool { return p.heard.Swap(uint32(port)) != uint32(port) }

// guard keeps pods' packets from leaving in the clear while there is no device and none can be made.
func (p *plane) guard(ctx context.Context, in input, have kernel.State) {
	var devices [2]string
	for _, f := range subnet.Families() {
		if in.conf.Backend.Type == subnet.VXLAN && in.conf.Enabled[f] && !in.conf.Networks[f].Contains(in.snap.Self.InternalIP[f]) {
			devices[f] = kernel.DeviceName(f, in.conf.Backend.VNI)
		}
	}
	for _, op := range kernel.Guards(have, in.conf.Networks, devices) {
		p.applyGuard(ctx, op)
	}
}

// applyGuard puts the guard up or takes it down. It is a second line: that it fails is told, and keeps nothing from going on.
func (p *plane) applyGuard(ctx context.Context, op kernel.Op) {
	if err := p.kernel.Apply(ctx, op); err != nil && ctx.Err() == nil {
		p.told.warn("guard", err.Error())
	}
}
