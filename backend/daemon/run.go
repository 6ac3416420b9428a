package daemon

import (
	"context"
	"log/slog"
	"time"

	"golang.org/x/sync/errgroup"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/backend/kernel"
)

// Run is the agent. It returns when ctx ends, and before that only for what no waiting cures. What is in the kernel
// stays: forwarding outlives the daemon.
func Run(ctx context.Context, cfg Config, log *slog.Logger) error {
	return RunWith(ctx, cfg, log, Seams{})
}

// RunWith is Run with something between the agent and the node.
func RunWith(ctx context.Context, cfg Config, log *slog.Logger, seams Seams) error {
	log = slog.New(backend.BoundLog(log.Handler())) // the agent alone: what a verb says at its end must not wait
	conn, err := kernel.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	log.Info("starting", "version", cfg.Version.Release, "commit", cfg.Version.Commit, "config", cfg)
	d := newDaemon(cfg, log, conn, seams)
	g, inner := errgroup.WithContext(ctx)
	g.Go(func() error { return d.health().run(inner) })
	g.Go(func() error { return d.notify(inner) })
	g.Go(func() error { return d.boot(inner) })
	g.Go(func() error { return newMounts(cfg.Paths.mounted()).watch(inner) })
	err, all := waitAtMost(inner, stopPatience, g.Wait)
	switch {
	case all:
		log.Info("stopped; the data plane stays")
		return err
	case ctx.Err() == nil:
		err = context.Cause(inner) // the error that made the others stop
	}
	log.Warn("stopped without waiting for what hangs; the data plane stays")
	return err
}

// stopPatience is how long a stop waits for rounds to end. A disk that does not answer holds a write for ever; nothing that
// we do needs to be brought to its end, since the next agent begins with what it finds.
const stopPatience = 1500 * time.Millisecond

// waitAtMost waits, from the end of ctx on for no longer than so long. It reports whether the wait came to its end.
func waitAtMost(ctx context.Context, long time.Duration, wait func() error) (err error, ended bool) {
	result := make(chan error, 1)
	go func() { result <- wait() }()
	select {
	case err := <-result:
		return err, true
	case <-ctx.Done():
	}
	timer := time.NewTimer(long)
	defer timer.Stop()
	select {
	case err := <-result:
		return err, true
	case <-timer.C:
		return nil, false
	}
}
