package node

import (
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// cgroupRoot is where hosts mount their cgroup (v1) controllers, one folder each.
const cgroupRoot = "/sys/fs/cgroup"

// controller is one cgroup v1 hierarchy: the options it is mounted with name it, and its folder is called alike.
type controller struct {
	options string // "memory", "cpu,cpuacct", "name=systemd"
	folder  string
}

// controllers reads /proc/self/cgroup; the line of the unified hierarchy (0::) is skipped, since the kubelet uses either
// the one or the other.
func controllers() ([]controller, error) {
	text, err := os.ReadFile("/proc/self/cgroup")
	if err != nil {
		return nil, fmt.Errorf("list the cgroup controllers: %w", err)
	}
	var all []controller
	for _, line := range strings.Split(strings.TrimSpace(string(text)), "\n") {
		fields := strings.SplitN(line, ":", 3)
		if len(fields) != 3 || fields[1] == "" {
			continue
		}
		all = append(all, controller{options: fields[1], folder: strings.TrimPrefix(fields[1], "name=")})
	}
	if len(all) == 0 {
		return nil, errors.New("list the cgroup controllers: this library knows cgroup v1 hosts only")
	}
	return all, nil
}

// enterCgroups makes the node's cgroup in each controller and moves the calling process there. A new cpuset allows no
// processor at all until it is told which, so its parents' lists are copied down first.
func enterCgroups(name string) error {
	all, err := controllers()
	if err != nil {
		return err
	}
	for _, c := range all {
		dir := filepath.Join(cgroupRoot, c.folder)
		for _, part := range strings.Split(name, "/") {
			parent := dir
			dir = filepath.Join(dir, part)
			if err := os.MkdirAll(dir, 0o755); err != nil {
				return fmt.Errorf("make the %s cgroup: %w", c.folder, err)
			}
			if c.folder != "cpuset" {
				continue
			}
			if err := inheritCPUSet(parent, dir); err != nil {
				return err
			}
		}
		if err := os.WriteFile(filepath.Join(dir, "cgroup.procs"), []byte(strconv.Itoa(os.Getpid())), 0o644); err != nil {
			return fmt.Errorf("enter the %s cgroup: %w", c.folder, err)
		}
	}
	return nil
}

func inheritCPUSet(parent, child string) error {
	for _, file := range []string{"cpuset.cpus", "cpuset.mems"} {
		text, err := os.ReadFile(filepath.Join(parent, file))
		if err != nil {
			return fmt.Errorf("read the parent's %s: %w", file, err)
		}
		if err := os.WriteFile(filepath.Join(child, file), text, 0o644); err != nil {
			return fmt.Errorf("copy %s down: %w", file, err)
		}
	}
	return nil
}

// mountCgroups mounts each controller below dir; in a cgroup namespace the node's own cgroup is each one's root.
func mountCgroups(dir string) error {
	all, err := controllers()
	if err != nil {
		return err
	}
	if err := unix.Mount("tmpfs", dir, "tmpfs", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, "mode=755"); err != nil {
		return fmt.Errorf("mount a folder for the controllers: %w", err)
	}
	for _, c := range all {
		target := filepath.Join(dir, c.folder)
		if err := os.Mkdir(target, 0o755); err != nil {
			return fmt.Errorf("make the folder of controller %s: %w", c.folder, err)
		}
		options := c.options
		if name, named := strings.CutPrefix(options, "name="); named {
			options = "none,name=" + name
		}
		if err := unix.Mount("cgroup", target, "cgroup", unix.MS_NOSUID|unix.MS_NODEV|unix.MS_NOEXEC, options); err != nil {
			return fmt.Errorf("mount controller %s: %w", c.folder, err)
		}
	}
	return nil
}
