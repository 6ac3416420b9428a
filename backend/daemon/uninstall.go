package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/traffic"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/subnet/kube"
)

// policyTables are the nftables tables of NetworkPolicy.
func policyTables() []string { return []string{policy.TableName, attach.TableName} }

// Uninstall takes all that is ours from this node: first the conflist and files, so that no new pod starts, then the
// rules, the devices and the annotations. Pods that still run lose the other nodes. It can be ended anywhere and begun again,
// and is idempotent.
func Uninstall(ctx context.Context, cfg Config, log *slog.Logger) error {
	if err := alone(ctx); err != nil {
		return err
	}
	p := cfg.Paths
	cni := network(p.CNITemplate())
	traces := install.Traces{
		ConfDir: p.CNIConf, BinDir: p.CNIBin, SourceDir: p.CNISource,
		Files: append(p.runFiles(), p.SubnetFile, newKeys(p, subnet.Writer{}, log).file.Adopt),
		Dirs:  []string{filepath.Join(p.CNIData, "flannel"), filepath.Join(p.CNIData, "networks", cni), p.notes()},
	}
	off, sysctlErr := switchesOf(p, subnet.Writer{}).restoreAll()
	logRemoved(log, "sysctl", off)
	if sysctlErr == nil { // else the memory of what is to be turned off is still needed
		traces.Dirs = append(traces.Dirs, p.StateDir)
	}
	for _, f := range p.written() {
		subnet.RemoveTemps(f)
	}
	removed, fileErr := install.Uninstall(traces)
	logRemoved(log, "file", removed)
	changes, ruleErr := traffic.New(traffic.Options{Tables: policyTables()}).Remove(ctx)
	logRemoved(log, "rule", changes)
	return errors.Join(sysctlErr, fileErr, ruleErr, removeDevices(ctx, bridge(p.CNITemplate()), log), unregister(ctx, cfg, log))
}

// alone makes sure that no agent works on this node, nor starts to.
func alone(ctx context.Context) error {
	if err := (&lock{identity: "uninstall"}).acquire(ctx); err != nil {
		return fmt.Errorf("%w; delete the DaemonSet first", err)
	}
	return nil
}

// runFiles are what the agent and the CNI plugin tell each other, beside subnet.env.
func (p Paths) runFiles() []string {
	dir := filepath.Dir(p.SubnetFile)
	_, socket := attach.Paths(p.SubnetFile)
	return []string{p.StatusFile(), filepath.Join(dir, subnet.HostName), socket}
}

// notes is where the CNI plugin notes whose addresses are whose.
func (p Paths) notes() string {
	notes, _ := attach.Paths(p.SubnetFile)
	return notes.Dir
}

func logRemoved(log *slog.Logger, what string, names []string) {
	for _, n := range names {
		log.Info("removed", what, n)
	}
}

// removeDevices removes the overlay's devices with all that is on them, and the pods' bridge once no pod is left on it.
func removeDevices(ctx context.Context, bridge string, log *slog.Logger) error {
	conn, err := kernel.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	have, err := conn.Dump(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, op := range kernel.Diff(have, kernel.New()) {
		if err := conn.Apply(ctx, op); err != nil {
			errs = append(errs, err)
			continue
		}
		log.Info("removed", "kernel", op.String())
	}
	dropped, err := conn.DropBridge(bridge)
	if dropped {
		log.Info("removed", "device", bridge)
	}
	return errors.Join(append(errs, err)...)
}

// unregister takes our annotations off the Node, when it is known which one that is.
func unregister(ctx context.Context, cfg Config, log *slog.Logger) error {
	if cfg.Kube.NodeName == "" && cfg.Kube.PodName == "" {
		log.Warn("annotations stay: set NODE_NAME to have them removed too")
		return nil
	}
	prefix, err := kube.ParsePrefix(cfg.Kube.AnnotationPrefix)
	if err != nil {
		return err
	}
	client, err := kube.NewClient(kube.ClientOptions{KubeconfigFile: cfg.Kube.Kubeconfig, APIURL: cfg.Kube.APIURL})
	if err != nil {
		return err
	}
	name, err := kube.NodeName(ctx, client, kube.NameSource{
		NodeName: cfg.Kube.NodeName, PodName: cfg.Kube.PodName, PodNamespace: cfg.Kube.PodNamespace,
	}, func(reason string) { log.Warn("node name", "reason", reason) })
	if err != nil {
		return err
	}
	r := kube.NewRegistrar(kube.RegistrarConfig{Client: client, NodeName: name, Prefix: prefix, Log: log})
	return r.Unregister(ctx)
}
