package daemon

import (
	"context"
	"errors"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
)

// plane is the data plane's round: choose the own ends, plan, compare with a dump of the kernel, apply.
type plane struct {
	cfg     Config
	log     *slog.Logger
	kernel  Kernel
	metrics *metrics
	told    *told
	board   *board // nil: nobody is told
	keys    keys

	// Port and MACs are chosen once and kept while we run: a device that comes back is the one the peers know.
	port   uint16
	former []uint16 // heard besides
	mac    [2]subnet.MAC

	pods    podMTU
	halves  *podFamilies // nil: nobody is told
	carrier error        // what keeps the underlay from carrying anything; an event ends it, and no retry

	heard atomic.Uint32 // the port for which the rules are in force

	around  *kernel.Host             // of the last round that could read it
	routers atomic.Pointer[[]string] // devices of that host whose default route is a router's word
	want    kernel.State             // of the last round, to tell drift from news
	applied atomic.Pointer[applied]
}

// applied is what the kernel holds after a good round; everything downstream works from it.
type applied struct {
	Conf     subnet.NetConf
	Snapshot subnet.Snapshot
	Underlay [2]underlay.Underlay
	Net      mesh.Config
	Plan     mesh.Result
	Former   []uint16 // VXLAN ports that this node had before, and that peers may still send to
	Stale    bool     // planned from the state on disk, the API server not having answered yet
}

// uses tells whether a family is in use.
func (a *applied) uses(f subnet.Family) bool { return a != nil && !a.Net.Ends[f].IsZero() }

// devices are those of the overlay that pods need in every family: of the configured backend, for those of one before go some
// day. host-gw and alloc have none.
func (a *applied) devices() []string {
	if a == nil {
		return nil
	}
	return slices.DeleteFunc(slices.Clone(a.Plan.Devices), func(name string) bool {
		return kernel.IsSpareName(name) || backendOf(a.Plan.Want.Links[name]) != a.Net.Kind
	})
}

// vxlanPort is the UDP port that our VXLAN devices hear, or 0 while there is none.
func (a *applied) vxlanPort() uint16 {
	for _, l := range a.Plan.Want.Links {
		if l.Kind == kernel.KindVXLAN {
			return l.Port
		}
	}
	return 0
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
	missing, shared := p.choose(&next, host, have)
	if next.Net.Ends == [2]mesh.End{} {
		p.report(next, shared)
		p.guard(ctx, in, have)
		p.halve(nil) // it is not one family alone
		return errors.Join(missing, shared), nil
	}
	plan := mesh.Input{Config: next.Net, Snapshot: in.snap, Host: host, Have: have, Now: time.Now()}
	if last := p.applied.Load(); last != nil {
		plan.Last, plan.Kept = last.Plan.Ways, last.Plan.Kept
	}
	next.Plan, err = mesh.Plan(plan)
	p.report(next, shared)
	if err != nil {
		return errors.Join(missing, err), nil // what is missing says why there is no plan
	}
	want := next.Plan.Want
	ops := kernel.DiffSince(p.want, have, want)
	if lost := next.lost(); in.stale || missing != nil && len(lost) == 0 {
		ops = kernel.WithoutPruning(ops)
	} else if len(lost) > 0 {
		ops = kernel.WithoutPruning(ops, lost...) // a family that cannot be planned has lost nothing, and the other one goes on
	}
	own, peers = p.apply(ctx, p.holdSpare(ops), want)
	p.halve(missing)
	peers = errors.Join(peers, shared, kube.CheckYields(in.snap, p.cfg.Iface.AllowShared))
	if !slices.ContainsFunc(ops, func(op kernel.Op) bool { return op.Kind == kernel.LinkAdd }) {
		// A device that is made may be our own under another name, which the host had when it was read. The next round comes at once.
		peers = errors.Join(peers, overlaps(next, host))
	}
	if own != nil {
		return own, peers
	}
	if p.board != nil && !slices.ContainsFunc(ops, kernel.Op.Displaces) {
		p.board.note(foreignRoutes, underlay.Shadows(want, host))
	}
	if p.board != nil {
		p.board.note(ownRoutes, underlay.ShadowsOwn(ownRanges(next), host))
	}
	p.carrier = down(next, host)
	p.pods.look(&next, host)
	p.halves.look(&next, host)
	p.metrics.peers.Set(float64(len(in.snap.Peers)))
	p.metrics.went(&next)
	p.applied.Store(&next)
	return nil, peers
}

// foreignRoutes is the topic of the note about routes that are liked better than ours.
const foreignRoutes = "foreign routes"

// ownRoutes is that of the note about routes that lead away from this node's own pods.
const ownRoutes = "routes to own pods"

// lost lists the families that this node has a part in and no end of its own.
func (a *applied) lost() []subnet.Family {
	var lost []subnet.Family
	for _, f := range subnet.Families() {
		if a.Conf.Enabled[f] && a.Snapshot.Self.PodCIDRs[f].IsValid() && a.Net.Ends[f].IsZero() {
			lost = append(lost, f)
		}
	}
	return lost
}

// halve tells of what keeps one family of two from working.
func (p *plane) halve(missing error) {
	if p.board != nil {
		p.board.set(partFamily, missing)
	}
}

// host reads what is around us. While links come and go faster than they can be listed, the last list has to do: each of them
// pokes us, so that there is a round when it is calm again.
func (p *plane) host(ctx context.Context) (kernel.Host, error) {
	h, err := p.kernel.Host(ctx)
	switch {
	case err == nil:
		p.around = &h
		routers := routersOf(h)
		p.routers.Store(&routers)
	case errors.Is(err, kernel.ErrInterrupted) && p.around != nil:
		return *p.around, nil
	}
	return h, err
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
			if op.Displaces() {
				p.log.Warn("a route of somebody else led to a peer's pods, and was replaced", "op", op.String())
			}
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
