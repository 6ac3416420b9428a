package daemon

import (
	"context"
	"errors"
	"log/slog"
	"os"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/subnet"
)

// InstallCNI is the verb of the init container: it puts the CNI plugins on the node, and on a fresh boot takes the
// conflist away that promises a network which is not up yet. A disk that refuses is no error: the agent does both things as
// well, says what is wrong for as long as it is, and has a data plane to look after that needs no disk.
func InstallCNI(ctx context.Context, cfg Config, log *slog.Logger) error {
	report, err := install.InstallPlugins(ctx, cfg.Paths.CNISource, cfg.Paths.CNIBin)
	for _, c := range report.Installed {
		log.Info("CNI plugin installed", "plugin", c.Name, "because", c.Why)
	}
	for _, c := range report.Kept {
		log.Info("CNI plugin of the host kept", "plugin", c.Name, "because", c.Why)
	}
	if errors.Is(err, install.ErrNoSource) {
		return err
	}
	// Whoever installs the plugins wants the conflist too, and the agent writes it only where there is a place for it.
	err = errors.Join(err, subnet.Cure(cfg.Paths.CNIConf, os.MkdirAll(cfg.Paths.CNIConf, 0o755)))
	removed, stale := install.RemoveStale(cfg.Paths.CNIConf, cfg.Paths.SubnetFile)
	if removed {
		log.Info("conflist of an earlier boot removed; the agent writes it when the network is up")
	}
	if err := errors.Join(err, stale); err != nil {
		log.Error("left to the agent", "err", oneLine(err.Error()))
	}
	return nil
}
