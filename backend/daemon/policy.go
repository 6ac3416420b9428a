package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/gate"
	"github.com/weft-cni/weft/backend/policy/watch"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/subnet/kube"
)

// policies is the round of NetworkPolicy. It does not depend on the network's configuration, so one lives as long as the
// agent does, beside the generations.
type policies struct {
	cfg     Config
	log     *slog.Logger
	told    *told
	metrics *metrics
	files   subnet.Writer
	source  *watch.Source
	gate    *gate.Gate
	manager *policy.Manager
	warn    func(ctx context.Context, reason, text string) // makes an Event of the own Node
	bridged func() [2]netip.Prefix                         // the pods on the bridge
	started time.Time
	steady  bool      // the node was ready before anybody could say whether there are policies
	waits   time.Time // since when the first World is waited for
	first   bool      // that policies are enforced has been told
}

// listPatience is how long the first World may take before a node that was ready is so no longer.
const listPatience = 15 * time.Second

// runPolicies enforces NetworkPolicies, or takes the rules of an earlier run away when that is switched off.
func (d *daemon) runPolicies(ctx context.Context) error {
	holding := gate.New(gate.Config{SubnetFile: d.cfg.Paths.SubnetFile, Log: d.log, Wrap: d.seams.NFT})
	manager := policy.NewGuarded(netfilter.Host{})
	defer func() { manager.Close(); holding.Close() }()
	if d.cfg.Policy.Mode == PolicyOff {
		d.until(ctx, partPolicy, func(ctx context.Context) error { return removePolicies(ctx, manager, holding, d.log) })
		<-ctx.Done()
		return nil
	}
	select {
	case <-ctx.Done():
		return nil
	case <-d.connected:
	}
	p := &policies{
		cfg: d.cfg, log: d.log, told: d.told, metrics: d.metrics, files: d.files, gate: holding, manager: manager, started: time.Now(),
		source:  watch.New(watch.Config{Client: d.api, NodeName: d.node, Attached: holding, Log: d.log}),
		warn:    d.warner(kube.NewEvents(d.api, d.log)),
		bridged: d.bridged,
	}
	d.metrics.registry.MustRegister(newDenials(manager.Counters))
	loop := d.gate(partPolicy, d.cfg.Resync, p.sync)
	loop.Settle = time.Millisecond // a pod waits for it
	defer time.AfterFunc(apiPatience, loop.Poke).Stop()
	group, ctx := errgroup.WithContext(ctx)
	group.Go(func() error { return p.source.Run(ctx) })
	group.Go(func() error { return holding.Run(ctx) })
	group.Go(func() error { pokeOn(ctx, p.source.Changed(), loop.Poke); return nil })
	group.Go(func() error { pokeOn(ctx, manager.Watch(ctx), loop.Poke); return nil })
	group.Go(func() error { pokeOn(ctx, holding.Watch(ctx), loop.Poke); return nil })
	group.Go(func() error { return d.run(ctx, loop) })
	group.Go(func() error { return d.run(ctx, d.side("enforcers", lookAround, p.tellOthers)) })
	return group.Wait()
}

// lookAround is how often others are looked for that enforce policies as well.
const lookAround = 10 * time.Minute

// removePolicies leaves nothing of the policies in the kernel or on disk.
func removePolicies(ctx context.Context, m *policy.Manager, g *gate.Gate, log *slog.Logger) error {
	changes, err := m.Remove(ctx)
	logRemoved(log, "rule", changes)
	return errors.Join(err, g.Remove(ctx))
}

// warner makes Events of the own Node once it is known.
func (d *daemon) warner(events *kube.Events) func(context.Context, string, string) {
	return func(ctx context.Context, reason, text string) {
		if a := d.plane.applied.Load(); a != nil {
			events.Warn(ctx, a.Snapshot.Self, reason, text)
		}
	}
}

// bridged are the pods that share a bridge on this node. An agent that has only just started knows their range by what the last
// one told the CNI plugin.
func (d *daemon) bridged() (pods [2]netip.Prefix) {
	if !bridges(d.cfg.Paths.CNITemplate()) {
		return pods
	}
	if a := d.plane.applied.Load(); a != nil {
		return a.Snapshot.Self.PodCIDRs
	}
	env, _ := subnet.LoadEnv(d.cfg.Paths.SubnetFile) // a node without has no pods yet
	return env.Subnets
}

// sync is one round: new pods are held while there are policies, the rules follow the World, and who is in it is let go.
func (p *policies) sync(ctx context.Context) error {
	active, known := p.source.Active()
	if !known {
		err := p.wait(ctx)
		p.steady = err == nil
		return err
	}
	audit := p.cfg.Policy.Mode == PolicyAudit
	if w, complete := p.source.World(); complete {
		p.gate.KeepFromNode(w.JudgesNode())
	}
	if err := p.gate.Shut(ctx, active && !audit); err != nil {
		return err
	}
	p.tellProblems(ctx)
	w, complete := p.source.World()
	if !complete {
		return p.waiting()
	}
	result, err := p.manager.Sync(ctx, w, policy.Config{
		Audit: audit, KeepEstablished: p.cfg.Policy.KeepEstablished, Bridged: p.bridged(), Held: p.gate.Held,
	})
	if err != nil {
		return err
	}
	p.report(result)
	p.tellFirst(ctx, w)
	return p.gate.Judged(ctx, w)
}

// wait is the round while nobody can say whether there are policies. The rules of the last run stay. A node that starts
// without any, and whose API server is away, holds its new pods until it is back. An API server that does not let us look is
// another matter: then this cluster has never been asked for policies, and goes on as it did under flannel.
func (p *policies) wait(ctx context.Context) error {
	if refused := p.source.Refused(); refused != nil {
		return p.refused(ctx, refused)
	}
	stands, err := attach.Stands()
	if err != nil {
		return err
	}
	if !stands && time.Since(p.started) < apiPatience {
		return errWaitingAPI
	}
	if !stands {
		p.told.warn("policy", "new pods are held until the API server says which policies there are")
	}
	return p.gate.Shut(ctx, p.cfg.Policy.Mode == PolicyOn)
}

// refused is the round while the API server does not let us look. Where an earlier run, which had the rights, has left
// rules, they stay, and with them the gate: then new pods are held for nobody knows how long, and the node is not ready.
func (p *policies) refused(ctx context.Context, why error) error {
	stands, err := p.manager.Stands(ctx)
	if err != nil {
		return err
	}
	p.metrics.enforced.Set(0)
	if stands {
		p.warn(ctx, "PolicyNotEnforced", "the NetworkPolicies of an earlier run stay in force on this node, and new pods are held: "+why.Error())
		return fmt.Errorf("NetworkPolicies can no longer be watched, so their last rules stay and new pods are held; apply weft's manifest, which has the rights: %w", why)
	}
	p.told.warn("policy", "NetworkPolicies are not enforced: "+why.Error()+"; apply weft's manifest, which has the rights")
	p.warn(ctx, "PolicyNotEnforced", "NetworkPolicies are not enforced on this node: "+why.Error())
	return p.gate.Shut(ctx, false)
}

// waiting says what the first World waits for. A node that was ready with the rules of an earlier run, or with its new pods
// held, stays so for as long as a list takes: an API server that is back must not make all nodes flap.
func (p *policies) waiting() error {
	if p.waits.IsZero() {
		p.waits = time.Now()
	}
	if p.steady && time.Since(p.waits) < listPatience {
		return nil
	}
	if reason := p.source.Reason(); reason != "" && time.Since(p.started) >= apiPatience {
		return errors.New("NetworkPolicies: " + reason)
	}
	return errWaitingAPI
}

func (p *policies) report(r policy.Result) {
	p.metrics.enforced.Set(1)
	p.told.list("policy", nil)
	p.reportGuard(r.Unguarded)
	p.reportTags(r.Tagged)
	p.metrics.changed(partPolicy, len(r.Changes), r.Drift)
	if n := len(r.Changes); n > 0 {
		level := slog.LevelDebug // pods come and go
		if r.Drift {
			level = slog.LevelInfo
		}
		p.log.Log(context.Background(), level, "policies changed", "changes", n, "drift", r.Drift, "first", r.Changes[0])
	}
	if n := len(r.Cut); n > 0 {
		p.metrics.cut.Add(float64(n))
		p.log.Info("connections cut that policies do not allow any more", "connections", n, "first", r.Cut[0])
	}
}

// reportGuard tells whether somebody else's flush would leave the node open until the rules are back.
func (p *policies) reportGuard(missing error) {
	if missing == nil {
		p.metrics.unguarded.Set(0)
		p.told.list("policy guard", nil)
		return
	}
	p.metrics.unguarded.Set(1)
	p.told.warn("policy guard", "policies are enforced, but while somebody else flushes nftables, packets pass until they are written again: "+missing.Error())
}

// reportTags tells of frames that go around the policies.
func (p *policies) reportTags(missing error) {
	var lines []string
	if missing != nil {
		lines = []string{"policies are enforced, but a pod that may make frames of its own (NET_RAW) gets around them to the pods of this node by a VLAN tag: " + missing.Error()}
	}
	p.told.list("policy tags", lines)
}

// tellOthers names who else enforces policies on this node.
func (p *policies) tellOthers(ctx context.Context) error {
	others, err := policy.Enforcers(ctx, netfilter.Host{})
	if err != nil {
		return err
	}
	var lines []string
	for _, who := range others {
		lines = append(lines, who+" enforces NetworkPolicies on this node too, or has left rules behind: packets need the leave of both")
	}
	p.told.list("enforcers", lines)
	for _, line := range lines {
		p.warn(ctx, "OtherPolicyEnforcer", line)
	}
	return nil
}

func (p *policies) tellProblems(ctx context.Context) {
	problems := p.source.Problems()
	for _, one := range problems {
		p.warn(ctx, "PolicyProblem", one.Policy+": "+one.Text)
	}
	p.metrics.policyProblems.Set(float64(len(problems)))
}

// tellFirst says, once in the life of a node, that policies bite from now on: under flannel they lay dormant.
func (p *policies) tellFirst(ctx context.Context, w policy.World) {
	n := len(w.Policies) + len(w.Cluster)
	if n == 0 || p.first {
		return
	}
	p.first = true
	file := p.cfg.Paths.PolicyFile()
	if _, err := os.Stat(file); !errors.Is(err, fs.ErrNotExist) {
		return
	}
	text := fmt.Sprintf("%d network policies of this cluster are enforced on this node from now on; `flanneld policy audit` lists what they cut", n)
	p.log.Info(text, "mode", p.cfg.Policy.Mode)
	p.warn(ctx, "PolicyEnforced", text)
	if err := p.files.WriteFile(file, []byte(time.Now().UTC().Format(time.RFC3339)+"\n"), 0o600); err != nil {
		p.log.Warn("note that policies are enforced", "err", err)
	}
}
