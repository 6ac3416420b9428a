package daemon

import (
	"context"
	"crypto/rand"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/backend/vxlan"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
)

// plane is the data plane's round: choose the underlay, plan, compare with a dump of the kernel, apply.
type plane struct {
	cfg     Config
	log     *slog.Logger
	kernel  Kernel
	metrics *metrics
	told    *told

	// Port and MACs are chosen once and kept while we run: a device that comes back is the one the peers know.
	port   uint16
	former []uint16 // heard besides
	mac    [2]subnet.MAC

	pods    podMTU
	carrier error // what keeps the underlay from carrying anything; an event ends it, and no retry

	heard atomic.Uint32 // the port for which the rules are in force

	around  *kernel.Host // of the last round that could read it
	want    kernel.State // of the last round, to tell drift from news
	applied atomic.Pointer[applied]
}

// applied is what the kernel holds after a good round; everything downstream works from it.
type applied struct {
	Conf     subnet.NetConf
	Snapshot subnet.Snapshot
	Underlay [2]underlay.Underlay
	VXLAN    vxlan.Config
	Former   []uint16 // ports that this node had before, and that peers may still send to
	Stale    bool     // planned from the state on disk, the API server not having answered yet
}

// device is the overlay device of the first family in use.
func (a *applied) device() string {
	for _, f := range subnet.Families() {
		if a != nil && !a.VXLAN.VTEPs[f].IsZero() {
			return a.VXLAN.Device(f)
		}
	}
	return ""
}

// input is what one round starts from.
type input struct {
	conf  subnet.NetConf
	snap  subnet.Snapshot
	stale bool
}

// sync is one round. own is what keeps this node from having a network, peers what stands between it and some others.
func (p *plane) sync(ctx context.Context, in input) (own, peers error) {
	if err := in.conf.CheckSelf(in.snap.Self); err != nil {
		return err, nil
	}
	host, err := p.host(ctx)
	if err != nil {
		return err, nil
	}
	have, err := p.kernel.Dump(ctx)
	if err != nil {
		return err, nil
	}
	next := applied{Conf: in.conf, Snapshot: in.snap, Stale: in.stale}
	if err := p.choose(&next, host, have); err != nil {
		p.guard(ctx, in, have)
		return err, nil
	}
	shared := p.shared(next)
	p.report(next, shared)
	if shared != nil && !announcedBefore(next) {
		return shared, nil // a newcomer steps back; who has been here all along goes on
	}
	want, err := vxlan.Plan(next.VXLAN, in.snap)
	if err != nil {
		return err, nil
	}
	ops := kernel.Regaining(kernel.Diff(have, want), p.want)
	if in.stale {
		ops = kernel.WithoutPruning(ops)
	}
	own, peers = p.apply(ctx, p.holdSpare(ops), want)
	peers = errors.Join(peers, shared, kube.CheckYields(in.snap, p.cfg.Iface.AllowShared))
	if !slices.ContainsFunc(ops, func(op kernel.Op) bool { return op.Kind == kernel.LinkAdd }) {
		// A device that is made may be our own under another name, which the host had when it was read. The next round comes at once.
		peers = errors.Join(peers, overlaps(next, host))
	}
	if own != nil {
		return own, peers
	}
	p.carrier = down(next, host)
	p.pods.look(&next, host)
	p.metrics.peers.Set(float64(len(in.snap.Peers)))
	p.applied.Store(&next)
	return nil, peers
}

// host reads what is around us. While links come and go faster than they can be listed, the last list has to do: each of them
// pokes us, so that there is a round when it is calm again.
func (p *plane) host(ctx context.Context) (kernel.Host, error) {
	h, err := p.kernel.Host(ctx)
	switch {
	case err == nil:
		p.around = &h
	case errors.Is(err, kernel.ErrInterrupted) && p.around != nil:
		return *p.around, nil
	}
	return h, err
}

// choose fills in the own end of the overlay: underlay, port and MAC.
func (p *plane) choose(a *applied, host kernel.Host, have kernel.State) error {
	self, b := a.Snapshot.Self, a.Conf.Backend
	c := vxlan.Config{
		VNI: b.VNI, MTU: b.MTU, GBP: b.GBP, Learning: b.Learning, SoftChecksum: b.SoftChecksum,
		SilentPort: b.Port, Blackhole: p.cfg.BlackholeRoute, Networks: a.Conf.Networks,
	}
	for _, f := range subnet.Families() {
		if !a.Conf.Enabled[f] || !self.PodCIDRs[f].IsValid() {
			continue
		}
		u, err := underlay.Pick(p.options(f, *a), host)
		if last, ok := p.standing(f, host); err != nil && ok {
			// A default route that is gone for a moment is no reason to let the peers wait.
			p.told.warn("underlay "+f.String()+" kept", err.Error())
			u, err = last, nil
		}
		if err != nil {
			return err
		}
		device := have.Links[kernel.DeviceName(f, b.VNI)]
		if device.Kind != "vxlan" {
			device = kernel.Link{}
		}
		if p.port == 0 {
			var why string
			p.port, why = vxlan.ChoosePort(b.Port, device.Port, self.Port, a.Snapshot.Peers)
			p.former = formerPorts(p.port, self, have)
			p.log.Info("VXLAN port", "port", p.port, "reason", why)
		}
		random := func(b []byte) { _, _ = rand.Read(b) }
		if p.mac[f].IsZero() {
			p.mac[f] = vxlan.ChooseMAC(device.MAC, self.MAC[f], random)
		}
		if cloned(p.mac[f], u.Announced, f, a.Snapshot) {
			// Nobody sends to us while an older node has this MAC, so there is nothing to lose by another one.
			was := p.mac[f]
			p.mac[f] = vxlan.ChooseMAC(subnet.MAC{}, subnet.MAC{}, random)
			p.log.Warn("another node has the MAC of our VXLAN device, as a cloned machine does; made a new one", "old", was, "new", p.mac[f])
		}
		a.Underlay[f] = u
		c.VTEPs[f] = vxlan.VTEP{
			PodCIDR: self.PodCIDRs[f], Local: u.Addr, Parent: u.Index, ParentName: u.Link, UnderlayMTU: u.MTU, MAC: p.mac[f],
		}
		p.told.info("underlay "+f.String(), u.Reason)
		for _, w := range u.Warnings {
			p.told.warn("underlay "+f.String()+" warning", w)
		}
	}
	c.Port = p.port
	a.VXLAN, a.Former = c, p.former
	return nil
}

// standing is the underlay of the last good round, if its address is still on its device.
func (p *plane) standing(f subnet.Family, host kernel.Host) (underlay.Underlay, bool) {
	a := p.applied.Load()
	if a == nil || !a.Underlay[f].Addr.IsValid() {
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

// apply carries out the changes; one that fails does not keep the others from being made. What fails with the own device
// is told apart from what fails with some peer: the node can work without the one peer.
func (p *plane) apply(ctx context.Context, ops []kernel.Op, want kernel.State) (own, peers error) {
	var ownErrs, peerErrs []error
	done := 0
	for _, op := range ops {
		if op.Guard {
			if len(ownErrs)+len(peerErrs) == 0 { // else pods' packets would have nowhere to go
				p.applyGuard(ctx, op)
			}
			continue
		}
		err := p.kernel.Apply(ctx, op)
		switch {
		case err == nil:
			p.log.Debug("applied", "op", op.String())
			done++
		case op.Kind <= kernel.AddrDel:
			ownErrs = append(ownErrs, err)
		default:
			peerErrs = append(peerErrs, err)
		}
	}
	drift := reflect.DeepEqual(p.want, want)
	p.metrics.changed(partPlane, done, drift)
	if done > 0 {
		p.log.Info("kernel changed", "changes", done, "drift", drift, "first", ops[0].String())
	}
	if own, peers = backend.Join(ownErrs), backend.Join(peerErrs); own == nil && peers == nil {
		p.want = want
	}
	return own, peers
}

// report tells, once each, of the nodes that cannot be taken as they are.
func (p *plane) report(a applied, shared error) {
	count := map[string]int{}
	problems := slices.Concat(a.Snapshot.Problems, vxlan.Problems(a.VXLAN, a.Snapshot))
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

// down tells of an underlay that carries nothing.
func down(a applied, host kernel.Host) error {
	var errs []error
	for _, f := range subnet.Families() {
		errs = append(errs, underlay.Down(a.Underlay[f], host))
	}
	return errors.Join(errs...)
}

// networks lists the pod networks in use.
func networks(c subnet.NetConf) []netip.Prefix {
	var out []netip.Prefix
	for _, f := range subnet.Families() {
		if c.Enabled[f] && c.Networks[f].IsValid() {
			out = append(out, c.Networks[f])
		}
	}
	return out
}
