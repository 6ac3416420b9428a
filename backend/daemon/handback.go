package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"log/slog"
	"maps"
	"os"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/traffic"
	"github.com/weft-cni/weft/subnet"
)

// HandBack gives this node back to flannel, with pods and traffic going on: the rules become flannel's, and our tables, jumps,
// policies and files go. What both need stays: device, routes, neighbours, forwarding entries, subnet.env, the annotations, the
// plugins and their records. The conflist becomes the one that flannel's init container writes. It is idempotent.
func HandBack(ctx context.Context, cfg Config, log *slog.Logger) error {
	if err := alone(ctx); err != nil {
		return err
	}
	ruleErr := handRules(ctx, cfg, log)
	if ruleErr != nil {
		return ruleErr // and ours stay: half of it would let pods' packets out untranslated
	}
	confErr := flannelConflist(cfg.Paths, log)
	p := cfg.Paths
	if err := handKey(p, log); err != nil {
		return errors.Join(confErr, err) // and the state stays, with the key in it
	}
	for _, f := range p.written() {
		subnet.RemoveTemps(f)
	}
	removed, fileErr := install.Uninstall(install.Traces{Files: p.runFiles(), Dirs: []string{p.StateDir, p.notes()}})
	logRemoved(log, "file", removed)
	return errors.Join(confErr, fileErr, removeSpare(ctx, log))
}

// handKey hands over the key by which the peers know this node.
func handKey(p Paths, log *slog.Logger) error {
	given, err := newKeys(p, subnet.Writer{}, log).file.HandBack()
	if given {
		log.Info("handed over", "key", "WireGuard's")
	}
	return err
}

// handRules hands the rules over by what subnet.env says, which is what pods were told. A node without subnet.env never had
// a network since its boot, or has been uninstalled: there is nothing to hand over.
func handRules(ctx context.Context, cfg Config, log *slog.Logger) error {
	m := traffic.New(traffic.Options{Tables: policyTables()})
	env, err := subnet.LoadEnv(cfg.Paths.SubnetFile)
	if errors.Is(err, fs.ErrNotExist) {
		changes, err := m.Remove(ctx)
		logRemoved(log, "rule", changes)
		return err
	}
	if err != nil {
		return fmt.Errorf("find out whose rules to write: %w", err)
	}
	c := traffic.Config{Masquerade: env.IPMasq, RandomFully: cfg.Traffic.RandomFully, Forward: cfg.Traffic.Forward}
	for _, f := range subnet.Families() {
		c.Nets[f] = traffic.Net{Network: env.Networks[f], PodCIDR: env.Subnets[f]}
	}
	changes, err := m.HandOver(ctx, c, wantsNFTables(cfg.Paths.NetConf))
	for _, change := range changes {
		log.Info("handed over", "rule", change)
	}
	return err
}

// wantsNFTables reads in which mode flannel will run. A file that cannot be read means flannel's default: flannel will say
// what is wrong with it.
func wantsNFTables(path string) bool {
	raw, err := os.ReadFile(path)
	if err != nil {
		return false
	}
	conf, _, err := subnet.ParseNetConf(raw)
	return err == nil && conf.EnableNFTables
}

// flannelConflist puts the ConfigMap's conflist in the place of the one that was made of it.
func flannelConflist(p Paths, log *slog.Logger) error {
	if !exists(p.CNIConf) {
		return nil
	}
	text, err := os.ReadFile(p.CNITemplate())
	if errors.Is(err, fs.ErrNotExist) {
		text, err = []byte(install.Builtin), nil
	}
	if err != nil {
		return fmt.Errorf("read the conflist's template: %w", err)
	}
	changed, err := install.WriteConflist(subnet.Writer{}, p.CNIConf, text)
	if changed {
		log.Info("conflist as flannel writes it", "dir", p.CNIConf)
	}
	return err
}

// removeSpare removes what flannel would not know what to do with: routes that lead nowhere, metrics that it does not look for, and
// the old device of a change of ports that was not finished.
func removeSpare(ctx context.Context, log *slog.Logger) error {
	conn, err := kernel.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	have, err := conn.Dump(ctx)
	if err != nil {
		return err
	}
	want := have.Clone()
	maps.DeleteFunc(want.Links, func(name string, _ kernel.Link) bool { return kernel.IsSpareName(name) })
	for key, route := range have.Routes {
		if route.Link == "" {
			delete(want.Routes, key)
		}
	}
	errs := []error{conn.UsualMetrics(ctx)}
	for _, op := range kernel.Diff(have, want) {
		if err := conn.Apply(ctx, op); err != nil {
			errs = append(errs, err)
			continue
		}
		log.Info("removed", "kernel", op.String())
	}
	return errors.Join(errs...)
}
