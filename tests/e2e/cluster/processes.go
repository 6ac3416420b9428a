package cluster

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"time"
)

// namespaceless is a command of this machine itself.
func namespaceless(ctx context.Context, args ...string) *exec.Cmd {
	return exec.CommandContext(ctx, args[0], args[1:]...)
}

// initProcesses finds the processes 1 of nodes by their command line: `<program> init <spec>`. With a folder instead of a
// file it finds those of all nodes below it. It needs no record of what was started, so it also finds what a killed run left.
func initProcesses(spec string) []int {
	entries, _ := os.ReadDir("/proc") // /proc is always there
	var pids []int
	for _, entry := range entries {
		pid, err := strconv.Atoi(entry.Name())
		if err != nil {
			continue
		}
		line, err := os.ReadFile(filepath.Join("/proc", entry.Name(), "cmdline"))
		if err != nil {
			continue // it ended meanwhile
		}
		args := strings.Split(strings.TrimRight(string(line), "\x00"), "\x00")
		if len(args) == 3 && args[1] == "init" && (args[2] == spec || strings.HasPrefix(args[2], spec+"/")) {
			pids = append(pids, pid)
		}
	}
	return pids
}

// cgroupRoot is where this host mounts the cgroup controllers.
const cgroupRoot = "/sys/fs/cgroup"

// cgroup names the cgroup of a node below each controller; of the whole cluster if the name is empty.
func (c *Cluster) cgroup(node string) string { return filepath.Join("weft-e2e", c.Config.Name, node) }

// cgroupDirs lists the folders of a cgroup in all controllers, those of its children included, children first.
func cgroupDirs(name string) []string {
	var dirs []string
	roots, _ := filepath.Glob(filepath.Join(cgroupRoot, "*", name)) // the pattern is fixed and good
	for _, root := range roots {
		_ = filepath.WalkDir(root, func(p string, d fs.DirEntry, err error) error {
			if err == nil && d.IsDir() {
				dirs = append(dirs, p)
			}
			return nil // a cgroup that goes away meanwhile is what we want
		})
	}
	slices.Reverse(dirs)
	return dirs
}

// cgroupProcesses lists the processes in a cgroup and its children.
func cgroupProcesses(name string) []int {
	var pids []int
	for _, dir := range cgroupDirs(name) {
		text, _ := os.ReadFile(filepath.Join(dir, "cgroup.procs")) // a cgroup that just went has no processes
		for _, field := range strings.Fields(string(text)) {
			if pid, err := strconv.Atoi(field); err == nil && !slices.Contains(pids, pid) {
				pids = append(pids, pid)
			}
		}
	}
	return pids
}

// removeCgroup removes a cgroup with its children in all controllers. The kernel refuses for a moment after the last
// process is gone.
func removeCgroup(ctx context.Context, name string) error {
	return Eventually(ctx, 30*time.Second, "the cgroup "+name+" is removed", func() error {
		for _, dir := range cgroupDirs(name) {
			if err := os.Remove(dir); err != nil && !errors.Is(err, fs.ErrNotExist) {
				return fmt.Errorf("remove a cgroup: %w", err)
			}
		}
		return nil
	})
}
