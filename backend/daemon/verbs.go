package daemon

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"path/filepath"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/traffic"
	"github.com/weft-cni/weft/subnet/kube"
)

// InstallCNI is the verb of the init container: it puts the CNI plugins on the node, and on a fresh boot takes the
// conflist away that promises a network which is not up yet.
func InstallCNI(ctx context.Context, cfg Config, log *slog.Logger) error {
	report, err := install.InstallPlugins(ctx, cfg.Paths.CNISource, cfg.Paths.CNIBin)
	for _, c := range report.Installed {
		log.Info("CNI plugin installed", "plugin", c.Name, "because", c.Why)
	}
	for _, c := range report.Kept {
		log.Info("CNI plugin of the host kept", "plugin", c.Name, "because", c.Why)
	}
	if err != nil {
		return err
	}
	removed, err := install.RemoveStale(cfg.Paths.CNIConf, cfg.Paths.SubnetFile)
	if removed {
		log.Info("conflist of an earlier boot removed; the agent writes it when the network is up")
	}
	return err
}

// Uninstall takes all that is ours from this node: first the conflist and files, so that no new pod starts, then the
// rules, the devices and the annotations. Pods that still run lose the other nodes.
func Uninstall(ctx context.Context, cfg Config, log *slog.Logger) error {
	if err := (&lock{identity: "uninstall"}).acquire(ctx); err != nil {
		return fmt.Errorf("%w; delete the DaemonSet first", err)
	}
	p := cfg.Paths
	cni := network(p.CNITemplate())
	removed, fileErr := install.Uninstall(install.Traces{
		ConfDir: p.CNIConf, BinDir: p.CNIBin, SourceDir: p.CNISource,
		Files: []string{p.SubnetFile, p.StatusFile()},
		Dirs:  []string{p.StateDir, filepath.Join(p.CNIData, "flannel"), filepath.Join(p.CNIData, "networks", cni)},
	})
	for _, r := range removed {
		log.Info("removed", "file", r)
	}
	changes, ruleErr := traffic.New(traffic.Options{}).Remove(ctx)
	for _, c := range changes {
		log.Info("removed", "rule", c)
	}
	return errors.Join(fileErr, ruleErr, removeDevices(ctx, log), unregister(ctx, cfg, log))
}

// removeDevices removes the overlay's devices with all that is on them, and the pods' bridge once no pod is left on it.
func removeDevices(ctx context.Context, log *slog.Logger) error {
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
	dropped, err := conn.DropBridge("cni0")
	if dropped {
		log.Info("removed", "device", "cni0")
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
