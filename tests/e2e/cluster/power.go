package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// PowerOn boots the node: new network devices, new /run, the disk as it was.
func (n *Node) PowerOn(ctx context.Context) error {
	if err := n.cluster.fabric.remove(ctx, n.Name); err != nil {
		return err
	}
	if err := n.cluster.plugIn(ctx, n.number); err != nil {
		return err
	}
	program := filepath.Join(n.cluster.binaries.Own, "node")
	out, err := output(namespaceless(ctx, program, "start", n.specFile()))
	if err != nil {
		return fmt.Errorf("boot %s: %w", n.Name, err)
	}
	pid, err := strconv.Atoi(strings.TrimSpace(out))
	if err != nil {
		return fmt.Errorf("boot %s: read its process id: %w", n.Name, err)
	}
	n.enter = enterCommand(pid)
	return Eventually(ctx, 30*time.Second, "containerd answers on "+n.Name, func() error {
		if _, err := os.Stat(n.Path("/run/booted")); err != nil {
			return fmt.Errorf("process 1 is not up: %w", err)
		}
		_, err := n.Exec(ctx, "ctr", "version")
		return err
	})
}

// PowerOff cuts the node's power: nothing in it gets a chance to say goodbye. A node that is off stays off.
func (n *Node) PowerOff(ctx context.Context) error {
	for _, pid := range initProcesses(n.specFile()) {
		if err := unix.Kill(pid, unix.SIGKILL); err != nil && err != unix.ESRCH {
			return fmt.Errorf("cut the power of %s: %w", n.Name, err)
		}
	}
	err := Eventually(ctx, 30*time.Second, "every process of "+n.Name+" is gone", func() error {
		if pids := cgroupProcesses(n.cluster.cgroup(n.Name)); len(pids) > 0 {
			return fmt.Errorf("processes %v still run", pids)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if err := removeCgroup(ctx, n.cluster.cgroup(n.Name)); err != nil {
		return err
	}
	return n.cluster.fabric.remove(ctx, n.Name)
}

// Unplug pulls the node's network cable: its eth0 loses its carrier.
func (n *Node) Unplug(ctx context.Context) error {
	return n.cluster.fabric.ip(ctx, "fabric", "link set "+n.Name+" down")
}

// Plug puts the cable back.
func (n *Node) Plug(ctx context.Context) error {
	return n.cluster.fabric.ip(ctx, "fabric", "link set "+n.Name+" up")
}

// StopKubelet ends the node's kubelet and keeps it off; pods run on.
func (n *Node) StopKubelet(ctx context.Context) error {
	if err := os.WriteFile(n.Path("/run/no-kubelet"), nil, 0o644); err != nil {
		return fmt.Errorf("keep the kubelet of %s off: %w", n.Name, err)
	}
	_, err := n.Exec(ctx, "pkill", "-x", "kubelet")
	return err
}

// StartKubelet lets process 1 start the kubelet again.
func (n *Node) StartKubelet() error {
	if err := os.Remove(n.Path("/run/no-kubelet")); err != nil {
		return fmt.Errorf("let the kubelet of %s start: %w", n.Name, err)
	}
	return nil
}
