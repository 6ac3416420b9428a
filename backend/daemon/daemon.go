package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/traffic"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
)

// The parts of readiness, as /readyz names them.
const (
	partLock     = "lock"
	partConf     = "net-conf"
	partAPI      = "api"
	partNode     = "node"
	partSysctl   = "sysctl"
	partPlane    = "data plane"
	partPeers    = "peers"
	partRules    = "rules"
	partFiles    = "files"
	partAnnounce = "announce"
	partHealth   = "health"
	partCNI      = "cni-conf"
	partStatus   = "status"
	partPolicy   = "policy"

	// One family of two is missing something; the other one works.
	partFamily       = "family"
	partFamilySwitch = "family's sysctl"
)

// daemon is one agent in one network namespace.
type daemon struct {
	cfg     Config
	log     *slog.Logger
	board   *board
	metrics *metrics
	turning *turning
	told    *told
	conn    *kernel.Conn
	files   subnet.Writer // of all that the agent writes
	traffic *traffic.Manager
	plane   *plane
	wayMTU  *wayMTU
	conf    *confFile
	newConf chan struct{} // has a value when conf has changed
	seams   Seams
	heard   *hearing
	turn    *backend.Loop // of the switches

	connected chan struct{} // closed when api and node are set, by the first generation
	api       *kube.Client
	node      string // the own Node's name
}

func newDaemon(cfg Config, log *slog.Logger, conn *kernel.Conn, seams Seams) *daemon {
	b := newBoard(log, partLock, partConf, partAPI, partNode, partSysctl, partPlane, partPeers, partRules, partFiles, partAnnounce, partHealth, partStatus, partPolicy, partFamily, partFamilySwitch)
	d := &daemon{
		cfg: cfg, log: log, board: b, metrics: newMetrics(cfg.Version, b), turning: &turning{}, told: newTold(log), conn: conn,
		files: subnet.Writer{Disk: seams.Disk}, traffic: traffic.New(traffic.Options{Wrap: seams.NFT}), newConf: make(chan struct{}, 1), connected: make(chan struct{}), seams: seams,
		heard: &hearing{},
	}
	d.turn = d.gate(partSysctl, sysctlPeriod, d.sysctls)
	d.plane = &plane{cfg: cfg, log: log.With("loop", partPlane), kernel: seams.kernel(conn), metrics: d.metrics, told: d.told, board: b,
		keys: newKeys(cfg.Paths, d.files, log),
		pods: newPodMTU(cfg.Paths.Results(), b, d.metrics), halves: newPodFamilies(cfg.Paths.Results(), b, d.metrics)}
	d.wayMTU = newWayMTU(b, d.metrics)
	d.conf = &confFile{path: cfg.Paths.NetConf, log: log, changed: func() { poke(d.newConf) }}
	return d
}

// boot takes the node's lock and then runs one generation after the other: everything that follows from a network
// configuration is made anew when that changes.
func (d *daemon) boot(ctx context.Context) error {
	l := &lock{identity: identity(d.cfg)}
	if !d.until(ctx, partLock, l.acquire) {
		return nil
	}
	// install-cni has done this already, where it runs: as a service of the node nobody else does.
	if removed, err := install.RemoveStale(d.cfg.Paths.CNIConf, d.cfg.Paths.SubnetFile); err != nil || removed {
		d.log.Info("conflist of an earlier boot", "removed", removed, "err", err)
	}
	for _, path := range append(d.written(), d.cfg.Paths.SysctlFile(), d.cfg.Paths.PolicyFile()) {
		subnet.RemoveTemps(path)
	}
	g, ctx := errgroup.WithContext(ctx)
	g.Go(func() error { return l.answer(ctx) })
	g.Go(func() error { return d.runStatus(ctx) })
	g.Go(func() error { return d.run(ctx, d.gate(partConf, waitRetry, d.conf.sync)) })
	g.Go(func() error { return d.run(ctx, d.turn) })
	before := &early{paths: d.cfg.Paths, board: d.board, told: d.told, plugins: install.NewKeeper(d.cfg.Paths.CNISource, d.cfg.Paths.CNIBin)}
	before.plugins.Files = d.files
	g.Go(func() error { return d.run(ctx, disk(d.side("plugins", waitRetry, before.sync))) })
	g.Go(func() error { return d.generations(ctx) })
	g.Go(func() error { return d.runPolicies(ctx) })
	return g.Wait()
}

func (d *daemon) written() []string { return d.cfg.Paths.written() }

// written lists the files that the agent writes.
func (p Paths) written() []string {
	files := []string{p.SubnetFile, p.StatusFile(), p.SnapshotFile(), p.CollectFile(), filepath.Join(p.CNIConf, install.ConflistName)}
	plugins, _ := os.ReadDir(p.CNISource) // outside of its image the agent installs none
	for _, e := range plugins {
		files = append(files, filepath.Join(p.CNIBin, e.Name()))
	}
	return files
}

// identity is what a second agent on this node reads from the lock.
func identity(cfg Config) string {
	name := cfg.Kube.PodName
	if name == "" {
		name, _ = os.Hostname()
	}
	return fmt.Sprintf("weft %s, %s, pid %d, since %s", cfg.Version.Release, name, os.Getpid(), time.Now().UTC().Format(time.RFC3339))
}

func (d *daemon) generations(ctx context.Context) error {
	for {
		select {
		case <-ctx.Done():
			return nil
		case <-d.newConf:
		}
		for again := true; again && ctx.Err() == nil; {
			conf := *d.conf.load()
			inner, cancel := context.WithCancel(ctx)
			stopped := make(chan bool, 1)
			go func() {
				select {
				case <-inner.Done():
					stopped <- false
				case <-d.newConf:
					stopped <- true
				}
				cancel()
			}()
			err := d.generation(inner, conf)
			cancel()
			if again = <-stopped; err != nil {
				return err
			}
		}
	}
}

// runStatus keeps weft.json. Only the owner of the lock does: a second agent has no say about the node.
func (d *daemon) runStatus(ctx context.Context) error {
	s := &status{file: d.cfg.Paths.StatusFile(), files: d.files, board: d.board, started: time.Now(), devices: func() []string { return d.plane.applied.Load().devices() }}
	l := disk(d.gate(partStatus, waitRetry, s.sync))
	go pokeOn(ctx, d.board.changed(ctx), l.Poke)
	return d.run(ctx, l)
}

// notify tells systemd once, when the node is ready for the first time.
func (d *daemon) notify(ctx context.Context) error {
	changed := d.board.changed(ctx)
	for !d.board.verdict().Ready {
		select {
		case <-ctx.Done():
			return nil
		case <-changed:
		}
	}
	if err := notifyReady(ctx, d.cfg.NotifySocket); err != nil {
		d.log.Warn("tell systemd", "err", err)
	}
	return nil
}

func (d *daemon) health() *health {
	return &health{cfg: d.cfg.Health, board: d.board, alive: d.turning.alive, trusted: d.trusted, metrics: d.metrics.handler()}
}

// trusted tells whether an address is the node's own: what arrives on it comes from the node or its operators, while
// pods arrive on the address of their bridge.
func (d *daemon) trusted(addr netip.Addr) bool {
	a := d.plane.applied.Load()
	if a == nil {
		return false
	}
	return slices.ContainsFunc([]subnet.Family{subnet.IPv4, subnet.IPv6}, func(f subnet.Family) bool {
		return a.Underlay[f].Addr == addr || a.Snapshot.Self.InternalIP[f] == addr
	})
}

// remembers tells whether the disk may know enough for a data plane, whoever answers.
func (d *daemon) remembers() bool {
	return d.cfg.Kube.NodeName != "" && exists(d.cfg.Paths.SnapshotFile())
}

// client connects to the API server and finds out which node this is, as long as it takes. That is done once: a client
// for each generation would leave its connections behind.
func (d *daemon) client(ctx context.Context) (*kube.Client, string, bool) {
	if d.api != nil {
		return d.api, d.node, true
	}
	var client *kube.Client
	began := time.Now()
	ok := d.until(ctx, partAPI, func(context.Context) (err error) {
		client, err = kube.NewClient(kube.ClientOptions{
			KubeconfigFile: d.cfg.Kube.Kubeconfig, APIURL: d.cfg.Kube.APIURL, UserAgent: "weft/" + d.cfg.Version.Release,
			Patient: d.remembers() && time.Since(began) > apiPatience,
		})
		return err
	})
	if !ok {
		return nil, "", false
	}
	d.metrics.registry.MustRegister(newAPIMetric(client.Results))
	d.board.set(partAPI, errWaitingAPI)
	name, err := kube.NodeName(ctx, client, kube.NameSource{
		NodeName: d.cfg.Kube.NodeName, PodName: d.cfg.Kube.PodName, PodNamespace: d.cfg.Kube.PodNamespace,
	}, func(reason string) {
		d.board.set(partNode, errors.New(reason))
		d.told.warn("node name", reason)
	})
	if err != nil {
		return nil, "", false
	}
	d.board.set(partNode, nil)
	d.api, d.node = client, name
	close(d.connected)
	return client, name, true
}
