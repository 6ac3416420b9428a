package node

import (
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"syscall"

	"golang.org/x/sys/unix"
)

// Start boots the node: it enters the node's cgroups and network namespace, starts process 1 in new namespaces and
// returns its process id as the host sees it. The caller's own process is spoiled for anything else and should exit.
func Start(specFile string) (int, error) {
	spec, err := ReadSpec(specFile)
	if err != nil {
		return 0, err
	}
	if err := enterCgroups(spec.Cgroup); err != nil {
		return 0, err
	}
	runtime.LockOSThread() // a child takes the network namespace of the thread that starts it
	if err := enterNetwork(spec.NetNS); err != nil {
		return 0, err
	}
	if err := os.MkdirAll(spec.Logs(), 0o755); err != nil {
		return 0, fmt.Errorf("make the log folder: %w", err)
	}
	log, err := os.OpenFile(filepath.Join(spec.Logs(), "init.log"), os.O_CREATE|os.O_APPEND|os.O_WRONLY, 0o644)
	if err != nil {
		return 0, fmt.Errorf("open the log of process 1: %w", err)
	}
	defer log.Close()
	cmd := exec.Command("/proc/self/exe", "init", specFile)
	cmd.Stdout, cmd.Stderr = log, log
	cmd.Env = []string{"PATH=" + Path, "HOME=/root", "LANG=C.UTF-8"}
	cmd.SysProcAttr = &syscall.SysProcAttr{
		Setsid: true,
		Cloneflags: syscall.CLONE_NEWNS | syscall.CLONE_NEWUTS | syscall.CLONE_NEWIPC | syscall.CLONE_NEWPID |
			syscall.CLONE_NEWCGROUP,
	}
	if err := cmd.Start(); err != nil {
		return 0, fmt.Errorf("start process 1: %w", err)
	}
	return cmd.Process.Pid, nil
}

func enterNetwork(path string) error {
	ns, err := unix.Open(path, unix.O_RDONLY|unix.O_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("open the network namespace %s: %w", path, err)
	}
	defer unix.Close(ns)
	if err := unix.Setns(ns, unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter the network namespace %s: %w", path, err)
	}
	return nil
}
