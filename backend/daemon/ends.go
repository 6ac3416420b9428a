package daemon

import (
	"cmp"
	"crypto/rand"
	"errors"
	"fmt"
	"slices"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/backend/vxlan"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
)

// choose fills in the own end of the data plane: in each family an underlay, and what the backends need besides. A family that
// has no end now is left out and told of in missing: the other one works without it. shared tells of families in which
// another node announces our address.
func (p *plane) choose(a *applied, host kernel.Host, have kernel.State) (missing, shared error) {
	b := a.Conf.Backend
	a.Net = mesh.Config{
		Kind: b.Type, DirectRouting: b.DirectRouting, MTU: b.MTU, Blackhole: p.cfg.BlackholeRoute, Networks: a.Conf.Networks,
	}
	var missed, taken []error
	for _, f := range subnet.Families() {
		if !a.Conf.Enabled[f] || !a.Snapshot.Self.PodCIDRs[f].IsValid() {
			continue
		}
		u, err := p.underlay(f, *a, host)
		err = cmp.Or(a.Conf.CheckFamily(f, a.Snapshot.Self), err)
		if err != nil {
			missed = append(missed, err)
			continue
		}
		twin := p.shared(u, a.Snapshot)
		taken = append(taken, twin)
		a.Underlay[f] = u
		if twin != nil && a.Snapshot.Self.PublicIP[f] != u.Announced {
			continue // a newcomer steps back; who has been here all along goes on
		}
		a.Net.Ends[f] = mesh.End{PodCIDR: a.Snapshot.Self.PodCIDRs[f], Local: u.Addr, Parent: u.Index, ParentName: u.Link, UnderlayMTU: u.MTU}
		if err := a.Net.CheckEnd(f); err != nil {
			missed, a.Net.Ends[f] = append(missed, err), mesh.End{}
			continue
		}
		p.told.info("underlay "+f.String(), u.Reason)
		for _, w := range u.Warnings {
			p.told.warn("underlay "+f.String()+" warning", w)
		}
	}
	if a.Net.Ends == [2]mesh.End{} {
		return errors.Join(missed...), errors.Join(taken...)
	}
	a.Net.Former = p.formerKinds(*a, have)
	p.chooseVXLAN(a, host, have)
	missed = append(missed, p.chooseWireGuard(a, have))
	return errors.Join(missed...), errors.Join(taken...)
}

// underlay picks one family's. A default route that is gone for a moment is no reason to let the peers wait.
func (p *plane) underlay(f subnet.Family, a applied, host kernel.Host) (underlay.Underlay, error) {
	u, err := underlay.Pick(p.options(f, a), host)
	if err == nil {
		return u, nil
	}
	last, ok := p.standing(f, host)
	if !ok {
		return u, err
	}
	p.told.warn("underlay "+f.String()+" kept", err.Error())
	return last, nil
}

// standing is the underlay of the last good round, if its address is still on its device.
func (p *plane) standing(f subnet.Family, host kernel.Host) (underlay.Underlay, bool) {
	a := p.applied.Load()
	if !a.uses(f) {
		return underlay.Underlay{}, false
	}
	u := a.Underlay[f]
	return u, slices.ContainsFunc(host.Addrs, func(h kernel.HostAddr) bool { return h.Index == u.Index && h.Prefix.Addr() == u.Addr })
}

func (p *plane) options(f subnet.Family, a applied) underlay.Options {
	self, i := a.Snapshot.Self, p.cfg.Iface
	return underlay.Options{
		Family: f, Iface: i.Names, IfaceRegex: i.Regexes, CanReach: i.CanReach, From: i.From,
		PublicIP: i.PublicIP[f], NodePublicIP: self.NodePublicIP[f], Overwrite: self.Overwrite[f],
		InternalIP: self.InternalIP[f], Announced: self.PublicIP[f], PodNetworks: networks(a.Conf),
	}
}

// formerKinds are the kinds of backend that this node spoke before: as it announced, and as its devices show. What is there
// of them goes when no peer needs it any more.
func (p *plane) formerKinds(a applied, have kernel.State) subnet.Kinds {
	self := a.Snapshot.Self
	kinds := append(self.Also.List(), self.BackendType)
	for _, l := range have.Links {
		kinds = append(kinds, backendOf(l))
	}
	return subnet.KindsOf(slices.DeleteFunc(kinds, func(k string) bool { return k == "" || k == a.Net.Kind || k == subnet.Alloc })...)
}

// backendOf is the kind of backend that has such a device; "" for none.
func backendOf(l kernel.Link) string {
	switch l.Kind {
	case kernel.KindVXLAN:
		return subnet.VXLAN
	case kernel.KindWireGuard:
		return subnet.WireGuard
	case kernel.KindIPIP, kernel.KindIP6Tnl:
		return subnet.IPIP
	}
	return ""
}

// speaks tells whether this node speaks a kind, or did.
func speaks(c mesh.Config, kind string) bool { return c.Kind == kind || c.Former.Has(kind) }

// chooseVXLAN fills in VNI, port and MACs.
func (p *plane) chooseVXLAN(a *applied, host kernel.Host, have kernel.State) {
	if !speaks(a.Net, subnet.VXLAN) {
		return
	}
	b, self := a.Conf.Backend, a.Snapshot.Self
	v := mesh.VXLAN{VNI: b.VNI, GBP: b.GBP, Learning: b.Learning, SilentPort: b.Port}
	if b.Type != subnet.VXLAN {
		v = formerVXLAN(a.Snapshot.Self, have)
	}
	var why string
	if v.SoftChecksum, why = softChecksum(b.TxChecksum, a.Underlay, host); v.SoftChecksum {
		p.told.info("checksums", "the kernel computes the checksums of inner packets and not the network card: "+why)
	}
	for _, f := range subnet.Families() {
		if !a.uses(f) {
			continue
		}
		device := have.Links[kernel.DeviceName(f, v.VNI)]
		if device.Kind != kernel.KindVXLAN {
			device = kernel.Link{}
		}
		if p.port == 0 {
			var why string
			p.port, why = vxlan.ChoosePort(v.SilentPort, device.Port, self.Port, a.Snapshot.Peers)
			p.former = formerPorts(p.port, self, have)
			p.log.Info("VXLAN port", "port", p.port, "reason", why)
		}
		p.chooseMAC(f, *a, device.MAC)
		v.MACs[f] = p.mac[f]
	}
	v.Port = p.port
	a.Net.VXLAN, a.Former = v, p.former
}

// chooseMAC decides a family's MAC, once.
func (p *plane) chooseMAC(f subnet.Family, a applied, device subnet.MAC) {
	random := func(b []byte) { _, _ = rand.Read(b) }
	if p.mac[f].IsZero() {
		p.mac[f] = vxlan.ChooseMAC(device, a.Snapshot.Self.MAC[f], random)
	}
	if cloned(p.mac[f], a.Underlay[f].Announced, f, a.Snapshot) {
		// Nobody sends to us while an older node has this MAC, so there is nothing to lose by another one.
		was := p.mac[f]
		p.mac[f] = vxlan.ChooseMAC(subnet.MAC{}, subnet.MAC{}, random)
		p.log.Warn("another node has the MAC of our VXLAN device, as a cloned machine does; made a new one", "old", was, "new", p.mac[f])
	}
}

// formerVXLAN is what the device of an earlier configuration has, or after a boot what this node announces of it: net-conf.json
// does not say it any more.
func formerVXLAN(self subnet.Self, have kernel.State) mesh.VXLAN {
	v := mesh.VXLAN{VNI: 1}
	if self.MAC != [2]subnet.MAC{} {
		v.VNI, v.SilentPort = self.VNI, self.Port
	}
	for name, l := range have.Links {
		if l.Kind == kernel.KindVXLAN && !kernel.IsSpareName(name) {
			v.VNI, v.SilentPort, v.GBP, v.Learning = l.VNI, l.Port, l.GBP, l.Learning
		}
	}
	return v
}

// report tells, once each, of the nodes that cannot be taken as they are.
func (p *plane) report(a applied, shared error) {
	count := map[string]int{}
	problems := slices.Concat(a.Snapshot.Problems, a.Plan.Problems)
	if shared != nil && !slices.ContainsFunc(kube.SelfProblems(a.Snapshot), func(q subnet.Problem) bool { return q.Reason == kube.ReasonPublicIPConflict }) {
		problems = append(problems, subnet.Problem{Node: a.Snapshot.Self.Name, Reason: kube.ReasonPublicIPConflict, Text: shared.Error()})
	}
	lines := make([]string, len(problems))
	for i, problem := range problems {
		count[problem.Reason]++
		lines[i] = fmt.Sprintf("node %s: %s: %s", problem.Node, problem.Reason, problem.Text)
	}
	p.told.list("problem", lines)
	p.metrics.problems.Reset()
	for reason, n := range count {
		p.metrics.problems.WithLabelValues(reason).Set(float64(n))
	}
}
