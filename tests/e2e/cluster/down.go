package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// Down removes the cluster of that name, running or half gone. It waits while another process is at work on a cluster.
func Down(ctx context.Context, cfg Config) error {
	c, err := prepare(cfg)
	if err != nil {
		return err
	}
	if err := c.acquire(ctx); err != nil {
		return err
	}
	return c.Down(ctx)
}

// Down removes the cluster and all it made: processes, namespaces, devices, cgroups, mounts and files. It needs no record,
// so it also cleans up after a run that was killed; only the cache stays.
func (c *Cluster) Down(ctx context.Context) error {
	for _, pid := range initProcesses(filepath.Join(c.dir, "nodes")) {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("end process %d: %w", pid, err)
		}
	}
	if err := c.killCgroup(ctx); err != nil {
		return err
	}
	for _, host := range c.fabric.hosts() {
		if err := c.killNetns(ctx, host); err != nil {
			return err
		}
		if err := c.fabric.remove(ctx, host); err != nil {
			return err
		}
	}
	if err := removeCgroup(ctx, c.cgroup("")); err != nil {
		return err
	}
	if dirs := cgroupDirs("weft-e2e"); onlyRoots(dirs) { // the last cluster takes the parent with it
		if err := removeCgroup(ctx, "weft-e2e"); err != nil {
			return err
		}
	}
	if err := restoreInotifyLimit(c.dir); err != nil {
		return err
	}
	if err := os.RemoveAll(c.dir); err != nil {
		return fmt.Errorf("remove the cluster's folder: %w", err)
	}
	if left, _ := os.ReadDir(filepath.Dir(c.dir)); len(left) == 0 {
		os.Remove(filepath.Dir(c.dir)) // an empty folder is harmless
	}
	return nil
}

// killCgroup ends whatever is still in the cluster's cgroups, which nothing is once the processes 1 are dead.
func (c *Cluster) killCgroup(ctx context.Context) error {
	return Eventually(ctx, 30*time.Second, "every process of the cluster is gone", func() error {
		pids := cgroupProcesses(c.cgroup(""))
		for _, pid := range pids {
			_ = unix.Kill(pid, unix.SIGKILL) // it may be gone already
		}
		if len(pids) > 0 {
			return fmt.Errorf("processes %v still run", pids)
		}
		return nil
	})
}

// killNetns ends what a test left running on a host of the fabric, such as a capture or a server.
func (c *Cluster) killNetns(ctx context.Context, host string) error {
	out, err := output(exec.CommandContext(ctx, "ip", "netns", "pids", c.fabric.netns(host)))
	if err != nil {
		return fmt.Errorf("list the processes of %s: %w", host, err)
	}
	for _, field := range strings.Fields(out) {
		if pid, err := strconv.Atoi(field); err == nil {
			_ = unix.Kill(pid, unix.SIGKILL) // it may be gone already
		}
	}
	return nil
}

// onlyRoots: no cluster has a folder below weft-e2e any more.
func onlyRoots(dirs []string) bool {
	for _, dir := range dirs {
		if filepath.Base(dir) != "weft-e2e" {
			return false
		}
	}
	return true
}
