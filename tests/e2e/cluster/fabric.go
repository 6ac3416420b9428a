package cluster

import (
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
)

// netnsDir is where iproute2 keeps named network namespaces.
const netnsDir = "/run/netns"

// fabric is the network between the nodes: a namespace with a bridge that also routes to the outside host.
type fabric struct {
	prefix string // of all namespaces of the cluster
}

func newFabric(clusterName string) fabric { return fabric{prefix: "weft-e2e." + clusterName + "."} }

func (f fabric) netns(host string) string { return f.prefix + host }

// ip runs iproute2 in the namespace of a host of the fabric, one command a line.
func (f fabric) ip(ctx context.Context, host, commands string) error {
	for _, line := range strings.Split(strings.TrimSpace(commands), "\n") {
		args := append([]string{"-n", f.netns(host)}, strings.Fields(line)...)
		if _, err := output(exec.CommandContext(ctx, "ip", args...)); err != nil {
			return fmt.Errorf("ip on %s: %s: %w", host, strings.TrimSpace(line), err)
		}
	}
	return nil
}

func (f fabric) addNetns(ctx context.Context, host string) error {
	if _, err := output(exec.CommandContext(ctx, "ip", "netns", "add", f.netns(host))); err != nil {
		return fmt.Errorf("make the network namespace of %s: %w", host, err)
	}
	return f.ip(ctx, host, "link set lo up")
}

// build makes the fabric and the outside host.
func (f fabric) build(ctx context.Context) error {
	for _, host := range []string{"fabric", "outside"} {
		if err := f.addNetns(ctx, host); err != nil {
			return err
		}
	}
	if err := f.ip(ctx, "fabric", `
		link add br0 type bridge
		addr add `+fabricAddr+`/24 dev br0
		addr add `+fabricAddr6+`/64 dev br0 nodad
		link set br0 up
		link add outside type veth peer name eth0 netns `+f.netns("outside")+`
		addr add `+outsideRouter+`/24 dev outside
		link set outside up`); err != nil {
		return err
	}
	if err := f.ip(ctx, "outside", `
		link set eth0 up
		addr add `+OutsideAddr+`/24 dev eth0
		route add default via `+outsideRouter); err != nil {
		return err
	}
	router := namespaceMachine("fabric", f.netns("fabric"), "")
	_, err := router.Exec(ctx, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.bridge.bridge-nf-call-iptables=0",
		"net.bridge.bridge-nf-call-ip6tables=0")
	return err
}

// plugIn makes the n-th node's namespace and connects its eth0, with an address of the place'th node, to the bridge; the port
// in the fabric is called like the node.
func (f fabric) plugIn(ctx context.Context, n, place int) error {
	host := nodeName(n)
	if err := f.addNetns(ctx, host); err != nil {
		return err
	}
	if err := f.ip(ctx, "fabric", `
		link add `+host+` type veth peer name eth0 netns `+f.netns(host)+`
		link set `+host+` master br0 up`); err != nil {
		return err
	}
	return f.ip(ctx, host, `
		link set eth0 up
		addr add `+nodeAddr(place).String()+`/24 dev eth0
		addr add `+nodeAddr6(place)+`/64 dev eth0 nodad
		route add default via `+fabricAddr)
}

// remove deletes a host's namespace, and with it its devices; one that is not there is fine.
func (f fabric) remove(ctx context.Context, host string) error {
	if _, err := os.Stat(filepath.Join(netnsDir, f.netns(host))); err != nil {
		return nil
	}
	if host != "fabric" && host != "outside" {
		// The port dies with its peer, but only after the namespace does, which the kernel does in its own time.
		if err := f.ip(ctx, "fabric", "link del "+host); err != nil && !strings.Contains(err.Error(), "Cannot find device") {
			return err
		}
	}
	if _, err := output(exec.CommandContext(ctx, "ip", "netns", "del", f.netns(host))); err != nil {
		return fmt.Errorf("remove the network namespace of %s: %w", host, err)
	}
	return nil
}

// hosts lists the hosts whose namespaces exist, those of an earlier run included; the fabric comes last.
func (f fabric) hosts() []string {
	entries, _ := os.ReadDir(netnsDir) // no folder: no namespaces
	var hosts []string
	for _, entry := range entries {
		if host, ours := strings.CutPrefix(entry.Name(), f.prefix); ours && host != "fabric" {
			hosts = append(hosts, host)
		}
	}
	if _, err := os.Stat(filepath.Join(netnsDir, f.netns("fabric"))); err == nil {
		hosts = append(hosts, "fabric")
	}
	return hosts
}
