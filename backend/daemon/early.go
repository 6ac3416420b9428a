package daemon

import (
	"context"
	"errors"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/install"
)

// early keeps the CNI plugins in place for as long as the files wait: while the API server, a podCIDR or net-conf.json is waited
// for, no pod can start, but pods of before can be deleted, if a package of the host has not taken their plugin away.
type early struct {
	paths   Paths
	board   *board
	told    *told
	plugins *install.Keeper
}

func (e *early) sync(ctx context.Context) error {
	waits := func(reason string) bool { return strings.HasPrefix(reason, partFiles+": ") }
	if !exists(e.paths.CNIConf) || !slices.ContainsFunc(e.board.verdict().Reasons, waits) {
		return nil // somebody else does
	}
	report, err := e.plugins.Sync(ctx)
	for _, c := range report.Installed {
		e.told.info("CNI plugin", c.String())
	}
	if errors.Is(err, install.ErrNoSource) {
		return nil
	}
	return err
}
