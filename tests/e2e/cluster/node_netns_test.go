package cluster

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-cni/weft/subnet"
)

// leftovers lists what a cluster of that name has on this machine outside the cache proper.
func leftovers(c *Cluster) []string {
	var all []string
	for _, pid := range initProcesses(filepath.Join(c.dir, "nodes")) {
		all = append(all, fmt.Sprintf("process %d", pid))
	}
	for _, host := range c.fabric.hosts() {
		all = append(all, "network namespace "+c.fabric.netns(host))
	}
	all = append(all, cgroupDirs(c.cgroup(""))...)
	if _, err := os.Stat(c.dir); err == nil {
		all = append(all, c.dir)
	}
	mounts, _ := os.ReadFile("/proc/self/mountinfo")
	for line := range strings.Lines(string(mounts)) {
		if strings.Contains(line, c.dir) || strings.Contains(line, c.fabric.prefix) {
			all = append(all, "mount "+line)
		}
	}
	return all
}

// One node without Kubernetes is enough: all that a cluster leaves on a machine, a node leaves.
func TestDownRemovesWhatAKilledRunLeft(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("nodes need root")
	}
	cfg := Default()
	cfg.Name, cfg.Nodes = "leftovers", 1
	before, err := os.ReadFile(inotifyFile)
	if err != nil {
		t.Fatal(err)
	}
	abandonNode(t, cfg)

	again, err := prepare(cfg) // knows nothing of the first
	if err != nil {
		t.Fatal(err)
	}
	if len(leftovers(again)) < 4 {
		t.Errorf("the abandoned node left only %v", leftovers(again))
	}
	if err := again.Down(t.Context()); err != nil {
		t.Fatal(err)
	}
	if left := leftovers(again); len(left) > 0 {
		t.Errorf("Down left %s", strings.Join(left, "\n"))
	}
	if after, _ := os.ReadFile(inotifyFile); string(after) != string(before) {
		t.Errorf("the inotify limit was %s and is %s", before, after)
	}
	if err := again.Down(t.Context()); err != nil {
		t.Errorf("Down where nothing is: %v", err)
	}
}

// abandonNode boots a node with an image in it and a container's worth of cgroups, and forgets it.
func abandonNode(t *testing.T, cfg Config) {
	t.Helper()
	c, err := prepare(cfg)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Down(context.Background()); err != nil {
			t.Error(err)
		}
	})
	ctx := t.Context()
	if err := c.acquire(ctx); err != nil {
		t.Fatal(err)
	}
	if err := c.build(ctx); err != nil {
		t.Fatal(err)
	}
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		t.Fatal(err)
	}
	for _, step := range []func() error{
		c.linkPrograms, c.save, func() error { return raiseInotifyLimit(c.dir) },
		func() error { return c.fabric.build(ctx, cfg.Underlay) }, func() error { return c.installNode(1) },
	} {
		if err := step(); err != nil {
			t.Fatal(err)
		}
	}
	n := c.Node(1)
	if err := n.PowerOn(ctx); err != nil {
		t.Fatal(err)
	}
	if err := n.LoadImage(ctx, c.images.Everywhere[0]); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Exec(ctx, "ctr", "-n", "k8s.io", "run", "-d", "--cgroup", "/child", "registry.k8s.io/pause:3.10.2", "one"); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Capture(ctx, "eth0", ""); err != nil {
		t.Fatal(err)
	}
}

func TestAPowerCutEndsEverythingAndKeepsTheDisk(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("nodes need root")
	}
	cfg := Default()
	cfg.Name, cfg.Nodes = "powercut", 1
	abandonNode(t, cfg)
	c, err := prepare(cfg)
	if err != nil {
		t.Fatal(err)
	}
	n := c.Node(1)
	for name, text := range map[string]string{"/var/lib/kept": "kept", "/run/lost": "lost"} {
		if err := os.WriteFile(n.Path(name), []byte(text), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	if err := n.PowerOff(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Exec(t.Context(), "true"); err == nil {
		t.Error("a node without power runs commands")
	}
	if err := n.PowerOn(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Stat(n.Path("/var/lib/kept")); err != nil {
		t.Errorf("the disk forgot: %v", err)
	}
	if _, err := os.Stat(n.Path("/run/lost")); err == nil {
		t.Error("/run outlived a power cut")
	}
	if _, err := os.Stat("/var/lib/kept"); err == nil {
		t.Error("a node wrote to this machine")
	}
}

func TestACaptureSeesWhatPassesAfterItStarted(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("nodes need root")
	}
	cfg := Default()
	cfg.Name, cfg.Nodes = "capture", 1
	abandonNode(t, cfg)
	c, err := prepare(cfg)
	if err != nil {
		t.Fatal(err)
	}
	capture, err := c.Outside.Capture(t.Context(), "eth0", "icmp")
	if err != nil {
		t.Fatal(err)
	}
	n := c.Node(1)
	if _, err := n.Exec(t.Context(), "ping", "-c", "2", "-i", "0.1", OutsideAddrs().In(subnet.IPv4)); err != nil {
		t.Fatal(err)
	}
	packets, err := capture.Stop(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	if len(packets) != 4 {
		t.Errorf("two pings are four packets, not\n%s", strings.Join(packets, "\n"))
	}
	if err := n.Unplug(t.Context()); err != nil {
		t.Fatal(err)
	}
	if _, err := n.Exec(t.Context(), "ping", "-c", "1", "-W", "1", OutsideAddrs().In(subnet.IPv4)); err == nil {
		t.Error("an unplugged node reaches the outside")
	}
}
