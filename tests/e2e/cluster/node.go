package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strconv"

	"github.com/weft-cni/weft/tests/e2e/node"
	"golang.org/x/sys/unix"
)

// Node is one machine of the cluster. It is found anew by what runs, so a Node stays good over a power cut.
type Node struct {
	Machine
	Addrs Addrs  // those of the families that the cluster uses, and in a cluster of IPv4 an IPv6 address too
	IP    string // the first of the cluster's families

	cluster *Cluster
	number  int
}

// Node returns the n-th node, counted from 1, whether it runs or not.
func (c *Cluster) Node(n int) *Node {
	node := &Node{Machine: Machine{Name: nodeName(n), netns: c.fabric.netns(nodeName(n)), path: c.programs() + ":"}, cluster: c, number: n}
	node.setAddrs(c.Config.nodeAddrs(c.place(n)))
	if pid, err := node.pid(); err == nil {
		node.enter = enterCommand(pid)
	}
	return node
}

func (n *Node) setAddrs(a Addrs) { n.Addrs, n.IP = a, a.In(n.cluster.Config.Lane.First()) }

// Number counts the nodes from 1. It stays when the node has another's addresses.
func (n *Node) Number() int { return n.number }

// Nodes returns all nodes.
func (c *Cluster) Nodes() []*Node {
	var all []*Node
	for n := range c.Config.Nodes {
		all = append(all, c.Node(n+1))
	}
	return all
}

func enterCommand(pid int) []string {
	return []string{"nsenter", "--target", strconv.Itoa(pid), "--mount", "--uts", "--ipc", "--net", "--pid", "--cgroup", "--"}
}

func (n *Node) disk() string { return filepath.Join(n.cluster.dir, "nodes", n.Name) }

func (n *Node) specFile() string { return filepath.Join(n.disk(), "spec.json") }

// errOff says that a node does not run.
var errOff = errors.New("the node is off")

// pid finds the node's process 1.
func (n *Node) pid() (int, error) {
	pids := initProcesses(n.specFile())
	if len(pids) == 0 {
		return 0, fmt.Errorf("%s: %w", n.Name, errOff)
	}
	return pids[0], nil
}

// Path is where this machine finds a file of the running node, for os.ReadFile and its like.
func (n *Node) Path(file string) string {
	pid, err := n.pid()
	if err != nil {
		return filepath.Join(n.disk(), "off", file)
	}
	return filepath.Join("/proc", strconv.Itoa(pid), "root", file)
}

// LogFile is a log on the node: init.log, containerd.log, kubelet.log.
func (n *Node) LogFile(name string) string { return filepath.Join(n.disk(), "log", name) }

// installNode writes the n-th node's disk: what a machine image and an administrator would have put there.
func (c *Cluster) installNode(number int) error {
	n := c.Node(number)
	spec := node.Spec{
		Name: n.Name, Disk: n.disk(), NetNS: filepath.Join(netnsDir, c.fabric.netns(n.Name)), Cgroup: c.cgroup(n.Name),
		Programs: c.programs(), DNS: c.Config.Underlay.segment(number).nets[c.Config.Lane.First()].Addr().String(), Services: []string{"containerd", "kubelet"},
	}
	for _, dir := range []string{"/etc/cni", "/etc/containerd", "/etc/kubernetes", "/opt/cni", "/var/lib/cni", "/var/lib/weft"} {
		if err := makeOpaque(filepath.Join(spec.Upper(), dir)); err != nil {
			return err
		}
	}
	files := map[string]string{
		"/etc/containerd/config.toml": containerdConfig(),
		"/etc/crictl.yaml":            "runtime-endpoint: unix:///run/containerd/containerd.sock\n",
		"/etc/cluster/kubeadm.yaml":   c.kubeadmConfig(number),
	}
	for name, text := range files {
		if err := writeFile(filepath.Join(spec.Upper(), name), text); err != nil {
			return err
		}
	}
	if err := c.installPlugins(filepath.Join(spec.Upper(), "/opt/cni/bin")); err != nil {
		return err
	}
	text, err := json.Marshal(spec)
	if err != nil {
		return fmt.Errorf("write the spec of %s: %w", n.Name, err)
	}
	return writeFile(n.specFile(), string(text))
}

// makeOpaque makes a folder in the node's upper layer that hides the host's folder of that name.
func makeOpaque(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make %s: %w", dir, err)
	}
	if err := unix.Setxattr(dir, "trusted.overlay.opaque", []byte("y"), 0); err != nil {
		return fmt.Errorf("hide the host's files under %s: %w", dir, err)
	}
	return nil
}

func (c *Cluster) installPlugins(dir string) error {
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("make the folder of CNI plugins: %w", err)
	}
	return os.CopyFS(dir, os.DirFS(c.binaries.Plugins))
}

func writeFile(name, text string) error {
	if err := os.MkdirAll(filepath.Dir(name), 0o755); err != nil {
		return fmt.Errorf("make the folder of %s: %w", name, err)
	}
	if err := os.WriteFile(name, []byte(text), 0o644); err != nil {
		return fmt.Errorf("write %s: %w", name, err)
	}
	return nil
}

// LoadImage imports a docker archive into the node's containerd.
func (n *Node) LoadImage(ctx context.Context, archive string) error {
	file, err := os.Open(archive)
	if err != nil {
		return fmt.Errorf("open the image archive: %w", err)
	}
	defer file.Close()
	if _, err := n.ExecInput(ctx, file, "ctr", "-n", "k8s.io", "images", "import", "-"); err != nil {
		return fmt.Errorf("load %s: %w", filepath.Base(archive), err)
	}
	return nil
}
