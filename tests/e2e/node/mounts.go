package node

import (
	"fmt"
	"os"
	"path/filepath"

	"golang.org/x/sys/unix"
)

// mountRoot builds the node's file tree and makes it the root. The host's files are the lower layer of an overlay, so the
// node finds every program the host has, and nothing it writes reaches the host.
func mountRoot(spec Spec) error {
	// Nothing mounted from here on may travel back to the host.
	if err := unix.Mount("", "/", "", unix.MS_PRIVATE|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the mounts private: %w", err)
	}
	root, work := filepath.Join(spec.Disk, "mnt"), filepath.Join(spec.Disk, "work")
	for _, dir := range []string{root, work, spec.Upper()} {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return fmt.Errorf("make %s: %w", dir, err)
		}
	}
	options := fmt.Sprintf("lowerdir=/,upperdir=%s,workdir=%s", spec.Upper(), work)
	if err := unix.Mount("overlay", root, "overlay", 0, options); err != nil {
		return fmt.Errorf("mount the root overlay: %w", err)
	}
	if err := mountInside(spec, root); err != nil {
		return err
	}
	return switchRoot(root)
}

func mountInside(spec Spec, root string) error {
	type mount struct {
		source, target, fstype string
		flags                  uintptr
		options                string
	}
	mounts := []mount{
		{"proc", "/proc", "proc", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"sysfs", "/sys", "sysfs", unix.MS_NOSUID | unix.MS_NODEV | unix.MS_NOEXEC, ""},
		{"bpf", "/sys/fs/bpf", "bpf", 0, ""},
		{"/dev", "/dev", "", unix.MS_BIND | unix.MS_REC, ""},
		{"tmpfs", "/dev/shm", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{"tmpfs", "/run", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=755"},
		{"tmpfs", "/tmp", "tmpfs", unix.MS_NOSUID | unix.MS_NODEV, "mode=1777"},
		{spec.Programs, ProgramsDir, "", unix.MS_BIND | unix.MS_REC, ""},
	}
	for target, source := range spec.volumes() {
		mounts = append(mounts, mount{source, target, "", unix.MS_BIND, ""})
	}
	for _, m := range mounts {
		target := filepath.Join(root, m.target)
		if err := os.MkdirAll(target, 0o755); err != nil {
			return fmt.Errorf("make the mount point %s: %w", m.target, err)
		}
		if m.flags&unix.MS_BIND != 0 {
			if err := os.MkdirAll(m.source, 0o755); err != nil {
				return fmt.Errorf("make %s: %w", m.source, err)
			}
		}
		if err := unix.Mount(m.source, target, m.fstype, m.flags, m.options); err != nil {
			return fmt.Errorf("mount %s: %w", m.target, err)
		}
	}
	return mountCgroups(filepath.Join(root, "/sys/fs/cgroup"))
}

// switchRoot makes root the root and drops the host's tree. The new tree is shared, because the kubelet and containers
// with bidirectional mounts need their mounts to travel.
func switchRoot(root string) error {
	if err := os.Chdir(root); err != nil {
		return fmt.Errorf("enter the new root: %w", err)
	}
	if err := unix.PivotRoot(".", "."); err != nil {
		return fmt.Errorf("pivot the root: %w", err)
	}
	if err := unix.Unmount(".", unix.MNT_DETACH); err != nil {
		return fmt.Errorf("drop the host's tree: %w", err)
	}
	if err := os.Chdir("/"); err != nil {
		return fmt.Errorf("enter the root: %w", err)
	}
	if err := unix.Mount("", "/", "", unix.MS_SHARED|unix.MS_REC, ""); err != nil {
		return fmt.Errorf("make the root shared: %w", err)
	}
	return nil
}
