package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/e2e/cluster"
	"github.com/weft-cni/weft/tests/e2e/images"
)

// agentFaults are what happens to the agents: D-14, K-12 and M-02.
func agentFaults() []fault {
	return []fault{
		{
			name: "agents: SIGTERM", note: "all at once; the kubelet starts them again", times: 10,
			do: func(t *testing.T) time.Duration { return killAgents(t, signalAgent("TERM")) },
		},
		{
			name: "agents: SIGKILL", note: "all at once; the kubelet starts them again", times: 10, short: true,
			do: func(t *testing.T) time.Duration { return killAgents(t, signalAgent("KILL")) },
		},
		{
			name: "agents: out of memory", note: "all at once, by the kernel, at the limit of their memory cgroup", times: 10,
			do: func(t *testing.T) time.Duration {
				took := killAgents(t, exhaustMemory)
				wasKilledForMemory(t)
				return took
			},
		},
		{
			name: "agents: rollout", note: "of the DaemonSet, one node after the other", times: 5, short: true,
			do: func(t *testing.T) time.Duration {
				before := agentPods(t)
				restartAgents(t)
				for node, pod := range agentPods(t) {
					if before[node] == pod {
						t.Errorf("the agent on %s was not replaced", node)
					}
				}
				return 0
			},
		},
		{
			name: "agents: upgrade to another version, and back", note: "two rollouts, with an image of another version string", short: true,
			do: upgradeAndBack,
		},
	}
}

// killAgents has every agent end and waits until others are ready in their places.
func killAgents(t *testing.T, kill func(context.Context, *cluster.Node) error) time.Duration {
	t.Helper()
	before := agentProcesses(t)
	start := time.Now()
	must(t, onEachNode(kill))
	eventually(t, 90*time.Second, "every agent is another process", func() error {
		for node, pid := range agentProcesses(t) {
			if pid == before[node] || pid == "" {
				return fmt.Errorf("the agent on %s is process %q", node, pid)
			}
		}
		return nil
	})
	eventually(t, 90*time.Second, "every agent is ready", agentsReady)
	return time.Since(start)
}

func signalAgent(signal string) func(context.Context, *cluster.Node) error {
	return func(ctx context.Context, n *cluster.Node) error {
		_, err := n.Exec(ctx, "pkill", "-"+signal, "-x", "flanneld")
		return err
	}
}

// agentProcesses maps each node to its agent's process id, empty where none runs.
func agentProcesses(t *testing.T) map[string]string {
	t.Helper()
	pids := map[string]string{}
	for _, n := range suite.Nodes() {
		out, err := n.Exec(t.Context(), "pgrep", "-x", "flanneld")
		var exit *exec.ExitError
		if err != nil && !errors.As(err, &exit) {
			t.Fatal(err)
		}
		pids[n.Name] = strings.TrimSpace(out)
	}
	return pids
}

// exhaustMemory limits the agent's memory cgroup to little more than it uses and fills the rest with a file in memory, whose
// pages are nobody's: the kernel ends the largest process, which is the agent.
func exhaustMemory(ctx context.Context, n *cluster.Node) error {
	_, err := n.Exec(ctx, "sh", "-c", `
		export group=/sys/fs/cgroup/memory$(sed -n 's/.*:memory://p' /proc/$(pgrep -x flanneld)/cgroup)
		echo $(($(cat $group/memory.usage_in_bytes) + 16777216)) > $group/memory.limit_in_bytes || exit 1
		sh -c 'echo $$ > $group/cgroup.procs && exec head -c 256M /dev/zero > /dev/shm/hog'
		rm /dev/shm/hog`)
	return err
}

// wasKilledForMemory: the runtime knows why the agents' last containers ended.
func wasKilledForMemory(t *testing.T) {
	t.Helper()
	reasons, err := suite.Kubectl(t.Context(), "-n", "kube-flannel", "get", "pods", "-l", "app=flannel", "-o",
		"jsonpath={.items[*].status.containerStatuses[0].lastState.terminated.reason}")
	must(t, err)
	if want := strings.TrimSpace(strings.Repeat("OOMKilled ", len(suite.Nodes()))); reasons != want {
		t.Errorf("the agents ended by %q, want %q", reasons, want)
	}
}

// The second version is the first with another version string.
const (
	secondRelease = "v0.1.1-second"
	secondImage   = "ghcr.io/weft-cni/weft:" + secondRelease
)

// upgradeAndBack does with kubectl what an administrator would.
func upgradeAndBack(t *testing.T) time.Duration {
	loadSecondImage(t)
	onDaemonSet := func(args ...string) {
		t.Helper()
		_, err := suite.Kubectl(t.Context(), append([]string{"-n", "kube-flannel"}, args...)...)
		must(t, err)
	}
	first := runningVersions(t)
	onDaemonSet("set", "image", "daemonset/kube-flannel-ds", "kube-flannel="+secondImage, "install-cni="+secondImage)
	onDaemonSet("rollout", "status", "daemonset/kube-flannel-ds", "--timeout=180s")
	for node, version := range runningVersions(t) {
		if !strings.Contains(version, secondRelease) {
			t.Errorf("after the upgrade %s runs %s", node, version)
		}
	}
	withPod(t, podSpec{name: "made-by-the-second", node: "node-2"})
	onDaemonSet("rollout", "undo", "daemonset/kube-flannel-ds")
	onDaemonSet("rollout", "status", "daemonset/kube-flannel-ds", "--timeout=180s")
	for node, version := range runningVersions(t) {
		if version != first[node] {
			t.Errorf("after the downgrade %s runs %s, before it was %s", node, version, first[node])
		}
	}
	return 0
}

// runningVersions asks each agent what it is.
func runningVersions(t *testing.T) map[string]string {
	t.Helper()
	versions := map[string]string{}
	for _, n := range suite.Nodes() {
		out := onHost(t, n.Machine, curl("http://127.0.0.1:8081/metrics")...)
		for line := range strings.Lines(out) {
			if strings.HasPrefix(line, "weft_build_info{") {
				versions[n.Name] = strings.TrimSpace(line)
			}
		}
	}
	return versions
}

// loadSecondImage builds the agent and the shim with the other version string and puts them into the image that is there.
func loadSecondImage(t *testing.T) {
	t.Helper()
	if suite.secondLoaded {
		return
	}
	dir := t.TempDir()
	amended := images.Amend{From: suite.product.Image, Name: secondImage}
	for name, to := range map[string]string{".": "/opt/bin/flanneld", "./cniplugin": "/flannel"} {
		file := filepath.Join(dir, filepath.Base(to))
		build := exec.CommandContext(t.Context(), "go", "build", "-trimpath", "-ldflags", "-s -w -X main.release="+secondRelease, "-o", file, name)
		build.Dir, build.Env = filepath.Join("..", ".."), append(os.Environ(), "CGO_ENABLED=0")
		if out, err := build.CombinedOutput(); err != nil {
			t.Fatalf("build the second version: %v\n%s", err, out)
		}
		amended.Tree.Add(file, to)
	}
	archive := filepath.Join(dir, "second.tar")
	must(t, amended.WriteArchive(archive))
	must(t, onEachNode(func(ctx context.Context, n *cluster.Node) error { return n.LoadImage(ctx, archive) }))
	suite.secondLoaded = true
}
