package daemon

import (
	"context"
	"log/slog"

	"github.com/weft-cni/weft/backend/install"
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
