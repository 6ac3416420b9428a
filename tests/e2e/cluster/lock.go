package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"golang.org/x/sys/unix"
)

// ErrStands says that a cluster which somebody wanted to keep is running.
var ErrStands = errors.New("one cluster at a time: remove that one first")

// holder says who has the machine's clusters to itself, or who brought one up. It is text in a file, for people and for the
// next process that comes.
type holder struct {
	PID     int
	Program string // cluster, or a test's binary
	Cluster string
	Since   time.Time
	Kept    bool // the cluster is to outlive the process
}

func newHolder(cfg Config) holder {
	return holder{PID: os.Getpid(), Program: filepath.Base(os.Args[0]), Cluster: cfg.Name, Since: time.Now().Truncate(time.Second), Kept: cfg.Keep}
}

func (h holder) String() string {
	return fmt.Sprintf("cluster %s of process %d, %s, since %s", h.Cluster, h.PID, h.Program, h.Since.Format(time.TimeOnly))
}

// acquire waits until no other process brings a cluster up, tests on one or takes one down, and has the machine's clusters to
// itself from then until it ends: two clusters on one machine spoil each other's measurements, and one that removes what an
// earlier run left must not take a living one for that. The lock is the kernel's, so it goes with the process, also with one
// that is killed; its descriptor is left open on purpose.
func (c *Cluster) acquire(ctx context.Context) error {
	name := filepath.Join(c.cache.Dir, "e2e.lock")
	fd, err := unix.Open(name, unix.O_RDWR|unix.O_CREAT|unix.O_CLOEXEC, 0o644)
	if err != nil {
		return fmt.Errorf("open the lock of the machine's clusters: %w", err)
	}
	var told holder
	for {
		err := unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB)
		if err == nil {
			break
		}
		if !errors.Is(err, unix.EWOULDBLOCK) && !errors.Is(err, unix.EINTR) {
			return errors.Join(fmt.Errorf("lock the machine's clusters: %w", err), unix.Close(fd))
		}
		other, err := readHolder(name)
		if err == nil && other.PID == os.Getpid() {
			return unix.Close(fd) // this process has it already
		}
		if err == nil && other != told {
			fmt.Fprintf(c.Config.Log, "%s waiting for %s\n", time.Now().Format(time.TimeOnly), other)
			told = other
		}
		select {
		case <-ctx.Done():
			return errors.Join(fmt.Errorf("wait for %s: %w", told, context.Cause(ctx)), unix.Close(fd))
		case <-time.After(pollEvery):
		}
	}
	return writeHolder(name, newHolder(c.Config))
}

func readHolder(name string) (holder, error) {
	var h holder
	text, err := os.ReadFile(name)
	if err != nil {
		return h, err
	}
	return h, json.Unmarshal(text, &h)
}

// writeHolder keeps the file, since a lock belongs to a file and not to its name.
func writeHolder(name string, h holder) error {
	text, err := json.Marshal(h)
	if err != nil {
		return fmt.Errorf("write who holds %s: %w", name, err)
	}
	if err := os.WriteFile(name, append(text, '\n'), 0o644); err != nil {
		return fmt.Errorf("write who holds %s: %w", name, err)
	}
	return nil
}

func (c *Cluster) ownerFile() string { return filepath.Join(c.dir, "owner.json") }

// makeRoom removes every cluster that a run left which is no more, and refuses while one runs that somebody wanted to keep.
// This process's own clusters stay. The lock must be held: then no other process is at work on any of them.
func (c *Cluster) makeRoom(ctx context.Context) error {
	entries, err := os.ReadDir(filepath.Dir(c.dir))
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		return fmt.Errorf("list the clusters: %w", err)
	}
	for _, entry := range entries {
		cfg := c.Config
		cfg.Name = entry.Name()
		other, err := prepare(cfg)
		if err != nil {
			return err
		}
		owner, err := readHolder(other.ownerFile())
		if err != nil {
			owner = holder{Cluster: cfg.Name} // it came no further, or is older than this file
		}
		mine := owner.PID == os.Getpid()
		again := cfg.Name == c.Config.Name && owner.Program == filepath.Base(os.Args[0]) // the same command once more replaces it
		if owner.Kept && !mine && !again && other.running() {
			return fmt.Errorf("%s stands; %w: WEFT_E2E_NAME=%s go run ./cmd/cluster down", owner, ErrStands, cfg.Name)
		}
		if mine && cfg.Name != c.Config.Name {
			continue
		}
		if err := other.Down(ctx); err != nil {
			return fmt.Errorf("remove what is left of %s: %w", owner, err)
		}
	}
	return c.Down(ctx) // also what has no folder any more
}

// running reports whether any node of the cluster has power.
func (c *Cluster) running() bool { return len(initProcesses(filepath.Join(c.dir, "nodes"))) > 0 }

// Find returns the kept cluster of that name if all its nodes run, for a test run that need not bring up one of its own; nil
// if there is none. Like Up it has the machine's clusters to itself from then on.
func Find(ctx context.Context, cfg Config) (*Cluster, error) {
	closed, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	if err := closed.acquire(ctx); err != nil {
		return nil, err
	}
	c, err := Open(cfg)
	if err != nil {
		return nil, nil
	}
	for _, n := range c.Nodes() {
		if _, err := n.pid(); err != nil {
			return nil, nil
		}
	}
	if err := c.build(ctx); err != nil {
		return nil, err
	}
	return c, writeHolder(c.ownerFile(), newHolder(cfg))
}
