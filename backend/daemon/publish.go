package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/subnet"
)

// publisher hands the network over to the CNI plugin: subnet.env, and last of all the conflist, which the kubelet takes
// for a promise that pods can be connected.
type publisher struct {
	cfg     Config
	files   subnet.Writer
	log     *slog.Logger
	board   *board
	told    *told
	collect func(context.Context, *applied) error
	warn    func(ctx context.Context, reason, text string) // makes an Event of the own Node; may be nil
	moved   func()                                         // is told when the node has got another range; may be nil
	plugins *install.Keeper

	started  time.Time
	lost     [2]time.Time // since when a family that subnet.env holds has been out of use
	first    bool         // the first hand-over is done: from then on files follow the data plane without waiting for the board
	template []byte       // that conflist was rendered from
	host     subnet.Host
	conflist []byte
}

// peersPatience is how long the first hand-over waits for every peer. One that cannot be programmed at all must not keep
// this node's pods from starting.
const peersPatience = 10 * time.Second

func (p *publisher) sync(ctx context.Context, a *applied) error {
	if !p.first {
		but := []string{partFiles, partAnnounce, partHealth, partNode, partCNI, partStatus}
		if time.Since(p.started) > peersPatience {
			but = append(but, partPeers, partFamily, partFamilySwitch)
		}
		if v := p.board.verdictBut(but...); !v.Ready {
			return fmt.Errorf("%w %s", errWaiting, v)
		}
		// Addresses that a reboot left reserved are freed before the first new pod asks for one.
		if err := p.collect(ctx, a); err != nil {
			p.log.Warn("collect stale reservations", "err", err)
		}
	}
	if err := p.env(a); err != nil {
		return err
	}
	if err := p.cni(ctx); err != nil {
		return err
	}
	p.first = true
	return p.shadowed(ctx)
}

// shadowed complains of what foreign finds to whoever looks at the Node, too: its pods have another network.
func (p *publisher) shadowed(ctx context.Context) error {
	err := p.foreign()
	if err != nil && p.warn != nil {
		p.warn(ctx, reasonForeignConf, err.Error())
	}
	return err
}

// reasonForeignConf is the reason of the Event.
const reasonForeignConf = "ForeignCNIConfiguration"

// cni keeps plugins and conflist as they should be. Where the CNI directories are not mounted, as under flannel's own
// manifest, somebody else looks after them; one that was there and is gone is made anew.
func (p *publisher) cni(ctx context.Context) error {
	if !exists(p.cfg.Paths.CNIConf) && p.conflist == nil {
		p.told.info("cni", p.cfg.Paths.CNIConf+" is not here: the conflist is left to whoever started us")
		return nil
	}
	err := p.render(ctx)
	p.board.set(partCNI, err)
	if err != nil {
		p.told.warn(partCNI, oneLine(err.Error()))
	}
	if p.conflist == nil {
		if exists(filepath.Join(p.cfg.Paths.CNIConf, install.ConflistName)) {
			err = nil // what was published is still true
		}
		return err
	}
	changed, err := install.WriteConflist(p.files, p.cfg.Paths.CNIConf, p.conflist)
	if changed {
		p.log.Info("conflist written", "dir", p.cfg.Paths.CNIConf)
	}
	return err
}

// render installs the plugins and makes the conflist of those that are there when there is a reason to; asking each plugin for
// its versions on every round would be too much. One that could not be replaced may be older than ours, and serves pods all the same.
func (p *publisher) render(ctx context.Context) error {
	report, stuck := p.plugins.Sync(ctx)
	if errors.Is(stuck, install.ErrNoSource) {
		stuck = nil
	}
	if len(report.Installed) > 0 {
		p.log.Info("CNI plugins installed", "plugins", report.Installed)
	}
	template, err := os.ReadFile(p.cfg.Paths.CNITemplate())
	if err != nil && !errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("read the conflist's template: %w", err)
	}
	host, err := subnet.LoadHost(p.cfg.Paths.SubnetFile)
	if err != nil {
		p.told.warn("host", err.Error()) // the plugin writes it anew
	}
	if p.conflist != nil && len(report.Installed) == 0 && slices.Equal(template, p.template) && host == p.host {
		return stuck
	}
	list, err := install.Conflist(ctx, template, p.cfg.Paths.CNIBin)
	if err == nil {
		list, err = install.NameRules(list, host)
	}
	if err == nil {
		p.template, p.host, p.conflist = template, host, list
	}
	return errors.Join(stuck, err)
}

// foreign complains of a CNI configuration that the runtime takes before ours.
func (p *publisher) foreign() error {
	odd, err := install.Odd(p.cfg.Paths.CNIConf)
	if err == nil {
		p.board.note("CNI configuration", strings.Join(odd, "; "))
	}
	names, err := install.Foreign(p.cfg.Paths.CNIConf)
	if err != nil || len(names) == 0 {
		return err
	}
	return fmt.Errorf("the runtime takes %s in %s before our %s: pods get another network; remove it",
		strings.Join(names, ", "), p.cfg.Paths.CNIConf, install.ConflistName)
}
