package daemon

import (
	"context"
	"errors"
	"fmt"
	"path/filepath"
	"sync/atomic"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/backend/collect"
	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/wireguard"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
)

// generation is all that follows from one network configuration.
type generation struct {
	*daemon
	conf      subnet.NetConf
	source    *kube.Source
	view      *view
	registrar *kube.Registrar
	events    *kube.Events
	rules     *rules
	publisher *publisher
	trouble   atomic.Pointer[error] // what keeps the node from taking part; nil before the first round
}

// generation runs until ctx ends.
func (d *daemon) generation(ctx context.Context, conf subnet.NetConf) error {
	client, node, ok := d.client(ctx)
	if !ok {
		return nil
	}
	g, err := d.newGeneration(client, node, conf)
	if err != nil {
		return err
	}
	return g.run(ctx)
}

func (d *daemon) newGeneration(client *kube.Client, node string, conf subnet.NetConf) (*generation, error) {
	prefix, err := kube.ParsePrefix(d.cfg.Kube.AnnotationPrefix)
	if err != nil {
		return nil, err
	}
	g := &generation{daemon: d, conf: conf, events: kube.NewEvents(client, d.log)}
	g.view = newView(d.cfg.Paths.SnapshotFile(), node, d.log)
	if a := d.plane.applied.Load(); a != nil && !a.Stale {
		g.view.kept = a.Snapshot // newer than what the disk has, which may have taken nothing
	}
	wg := conf.Backend.WireGuard
	g.source = kube.NewSource(kube.SourceConfig{
		Client: client, NodeName: node, LastGood: g.view.kept.Peers, Known: g.view.kept.ResourceVersion, Log: d.log,
		Rules: kube.Rules{Prefix: prefix, Networks: conf.Networks, WGPorts: [2]uint16{wg.Port(subnet.IPv4), wg.Port(subnet.IPv6)}},
	})
	g.view.source, g.view.files = g.source, d.files
	g.registrar = kube.NewRegistrar(kube.RegistrarConfig{
		Client: client, NodeName: node, Prefix: prefix, Conf: conf, LeaveUnavailable: !d.cfg.SetNetworkUnavailable,
		Events: g.events, Log: d.log,
	})
	g.rules = &rules{cfg: d.cfg, log: d.log.With("loop", partRules), manager: d.traffic, metrics: d.metrics, told: d.told, warn: g.warn, heard: d.heard}
	g.publisher = &publisher{
		cfg: d.cfg, files: d.files, log: d.log.With("loop", partFiles), board: d.board, told: d.told, collect: g.collect, started: time.Now(), warn: g.warn,
		plugins: install.NewKeeper(d.cfg.Paths.CNISource, d.cfg.Paths.CNIBin),
	}
	g.publisher.plugins.Files = d.files
	return g, nil
}

// run starts the loops and ties them together: who pokes whom is all here.
func (g *generation) run(ctx context.Context) error {
	rulesLoop := g.gate(partRules, g.cfg.Resync, g.after(g.rules.sync))
	files := disk(g.gate(partFiles, waitRetry, g.after(g.publisher.sync)))
	announce := g.gate(partAnnounce, slowResync, func(ctx context.Context) error {
		defer g.explain(ctx)
		return g.after(g.announce)(ctx)
	})
	keep := disk(g.side("cache", waitRetry, g.view.keep))
	keep.Settle = diskSettle
	ways := g.side("path MTU", slowResync, g.after(func(ctx context.Context, a *applied) error { return g.wayMTU.look(ctx, a, g.conn) }))
	ways.Settle = time.Second // nothing waits for it
	collection := disk(g.side("collect", time.Minute, g.after(g.collect)))
	g.publisher.moved = func() { go chase(ctx, collection.Poke) }
	again := time.NewTimer(time.Hour)
	defer again.Stop()
	planeLoop := g.side(partPlane, g.cfg.Resync, func(ctx context.Context) error {
		err := g.syncPlane(ctx)
		rulesLoop.Poke()
		a := g.plane.applied.Load()
		if a != nil && g.heard.lags(a) {
			g.turn.Poke()
		}
		announce.Poke()
		files.Poke()
		ways.Poke()
		if a != nil && a.Plan.Again > 0 {
			again.Reset(a.Plan.Again)
		}
		return err
	})
	g.rules.inForce = func(port uint16) {
		if g.plane.hears(port) {
			planeLoop.Poke()
		}
	}
	planeLoop.Retry, rulesLoop.Retry = quickRetry, quickRetry
	api := g.gate(partAPI, waitRetry, g.contact)
	var changes kernel.Changes
	if !g.until(ctx, partPlane, func(context.Context) (err error) {
		changes, err = g.conn.Watch(ctx) // which ends with the generation, and not with this try
		return err
	}) {
		return nil
	}
	group, ctx := errgroup.WithContext(ctx)
	for _, l := range []*backend.Loop{
		api, planeLoop, rulesLoop, files, announce, keep, collection, ways,
	} {
		group.Go(func() error { return g.daemon.run(ctx, l) })
	}
	group.Go(func() error { return g.source.Run(ctx) })
	for _, p := range []struct {
		from <-chan struct{}
		to   []func()
	}{
		{ticks(ctx, again), []func(){planeLoop.Poke}},
		{g.source.Changed(), []func(){api.Poke, planeLoop.Poke, announce.Poke, g.view.changed, keep.Poke}},
		{changes.Ours, []func(){planeLoop.Poke}},
		{changes.Host, []func(){planeLoop.Poke}},
		{g.traffic.Watch(ctx), []func(){rulesLoop.Poke}},
		{g.board.changed(ctx), []func(){files.Poke, announce.Poke}},
	} {
		group.Go(func() error { pokeOn(ctx, p.from, p.to...); return nil })
	}
	return group.Wait()
}

// after makes a round that needs the data plane's result.
func (g *generation) after(sync func(context.Context, *applied) error) func(context.Context) error {
	return func(ctx context.Context) error {
		a := g.plane.applied.Load()
		if a == nil || a.Conf != g.conf {
			return errWaitingPlane
		}
		return sync(ctx, a)
	}
}

// syncPlane tells the board of the own part and of the peers apart; the loop tries again for either.
func (g *generation) syncPlane(ctx context.Context) error {
	snap, state := g.view.now()
	if !state.known {
		g.board.set(partPlane, errWaitingAPI)
		return errWaitingAPI
	}
	own, peers := g.plane.sync(ctx, input{conf: g.conf, snap: snap, stale: state.stale})
	if ctx.Err() != nil {
		return nil
	}
	g.trouble.Store(&own)
	g.board.set(partPlane, own)
	if own == nil {
		g.board.set(partPeers, errors.Join(peers, g.plane.carrier))
	}
	return errors.Join(own, peers)
}

// contact says what is known of the API server. A server that goes away while we run makes nothing worse at once: that
// is said, and the node stays ready.
func (g *generation) contact(context.Context) error {
	since, away := g.source.Stale()
	if !away {
		since = time.Time{}
	}
	g.board.setStale(since)
	if _, state := g.view.now(); state.known {
		return nil
	}
	reason := g.source.Reason()
	if reason == "" || time.Since(g.view.started) < waitRetry {
		return errWaitingAPI // the first answer is on its way
	}
	return errors.New(reason)
}

func (g *generation) announce(ctx context.Context, a *applied) error {
	snap, complete := g.source.Snapshot()
	if !complete {
		return nil // nobody to announce to; the api part says so
	}
	g.heard.await(ctx, a)
	out := kube.Announcement{
		BackendType: a.Net.Kind, Also: a.Plan.Also, VNI: a.Net.VXLAN.VNI, Port: a.Net.VXLAN.Port, Ready: g.board.verdictBut(partAnnounce).Ready,
	}
	if wg := a.Net.WireGuard; !wg.Key.IsZero() {
		out.Key = wireguard.PublicKey(wg.Key)
		out.WGPorts = [2]uint16{wg.Conf.Port(subnet.IPv4), wg.Conf.Port(subnet.IPv6)}
	}
	for _, f := range subnet.Families() {
		if a.uses(f) {
			out.PublicIP[f], out.MAC[f] = a.Underlay[f].Public, a.Net.VXLAN.MACs[f]
		} else if self := snap.Self; a.Conf.Enabled[f] && self.PodCIDRs[f].IsValid() {
			// A family that has no underlay just now: what pods had before goes on, and so does what peers send them.
			out.PublicIP[f], out.MAC[f] = self.PublicIP[f], self.MAC[f]
		}
	}
	return untilSeen(g.registrar.Sync(ctx, snap, out))
}

// untilSeen marks what only the next snapshot can cure, and does: that is waited for and not tried again a second later.
func untilSeen(err error) error {
	if errors.Is(err, kube.ErrNodeChanged) || errors.Is(err, subnet.ErrNoNode) {
		return fmt.Errorf("%w the Node: %w", errWaiting, err)
	}
	return err
}

// explain tells the cluster, by Events, what is wrong with this node: also of one that steps back and announces nothing.
func (g *generation) explain(ctx context.Context) {
	trouble := g.trouble.Load()
	if snap, complete := g.source.Snapshot(); complete && trouble != nil {
		g.events.Report(ctx, snap, *trouble)
	}
	if half := g.plane.halves.told(); half != "" {
		g.warn(ctx, reasonHalfPods, half)
	}
}

func (g *generation) warn(ctx context.Context, reason, text string) {
	if snap, complete := g.source.Snapshot(); complete {
		g.events.Warn(ctx, snap.Self, reason, text)
	}
}

// collect frees what no living pod holds.
func (g *generation) collect(ctx context.Context, a *applied) error {
	paths := g.cfg.Paths
	if !exists(paths.CNIData) {
		return nil // not mounted: flannel's own manifest
	}
	networks, foreign := paths.reservations()
	if foreign != nil {
		g.told.info("reservations", foreign.Error())
	}
	o := collect.Options{
		Network: network(paths.CNITemplate()), ClusterID: a.Snapshot.ClusterID,
		Networks: networks, Foreign: foreign != nil, Records: filepath.Join(paths.CNIData, "flannel"),
		Results: paths.Results(), NetnsDir: paths.NetNS, State: paths.CollectFile(), Bridge: bridge(paths.CNITemplate()),
		Kernel: g.conn, Files: g.files,
	}
	for _, cidr := range a.Snapshot.Self.PodCIDRs {
		if cidr.IsValid() {
			o.PodCIDRs = append(o.PodCIDRs, cidr)
		}
	}
	report, err := collect.Run(ctx, o)
	g.metrics.freed.WithLabelValues("freed").Add(float64(len(report.Freed)))
	g.metrics.freed.WithLabelValues("restored").Add(float64(len(report.Restored)))
	if line := report.String(); line != "" {
		g.log.Info(line, "loop", "collect")
	}
	g.told.list("collect", report.Problems)
	return err
}
