package cluster

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// netnsDir is where iproute2 keeps named network namespaces.
const netnsDir = "/run/netns"

// fabric is the network between the nodes: a namespace with a bridge, or two, that also routes to the outside host.
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
func (f fabric) build(ctx context.Context, underlay Underlay) error {
	for _, host := range []string{"fabric", "outside"} {
		if err := f.addNetns(ctx, host); err != nil {
			return err
		}
	}
	var commands strings.Builder
	for _, s := range underlay.segments() {
		fmt.Fprintf(&commands, "link add %[1]s type bridge mcast_snooping 0\nlink set %[1]s up\n", s.bridge)
		for _, net := range s.nets {
			fmt.Fprintf(&commands, "addr add %s dev %s%s\n", net, s.bridge, nodad(net.Addr()))
		}
	}
	fmt.Fprintf(&commands, "link add outside type veth peer name eth0 netns %s\nlink set outside up\n", f.netns("outside"))
	host := "link set eth0 up\n"
	for _, family := range subnet.Families() {
		net, addr := outsideNet(family), OutsideAddrs()[family]
		fmt.Fprintf(&commands, "addr add %s dev outside%s\n", net, nodad(addr))
		host += fmt.Sprintf("addr add %s/%d dev eth0%s\nroute add default via %s\n", addr, net.Bits(), nodad(addr), net.Addr())
	}
	if err := f.ip(ctx, "fabric", commands.String()); err != nil {
		return err
	}
	if err := f.ip(ctx, "outside", host); err != nil {
		return err
	}
	router := namespaceMachine("fabric", f.netns("fabric"), "")
	_, err := router.Exec(ctx, "sysctl", "-q", "-w", "net.ipv4.ip_forward=1", "net.ipv6.conf.all.forwarding=1",
		"net.bridge.bridge-nf-call-iptables=0", "net.bridge.bridge-nf-call-ip6tables=0")
	return err
}

// nodad is the word that lets an IPv6 address be used at once.
func nodad(a netip.Addr) string {
	if a.Is6() {
		return " nodad"
	}
	return ""
}

// plugIn makes the n-th node's namespace and connects its eth0, with the addresses of its place, to the bridge there; the port
// in the fabric is called like the node.
func (c *Cluster) plugIn(ctx context.Context, n int) error {
	f, host, place := c.fabric, nodeName(n), c.place(n)
	segment := c.Config.Underlay.segment(place)
	if err := f.addNetns(ctx, host); err != nil {
		return err
	}
	if err := f.ip(ctx, "fabric", `
		link add `+host+` type veth peer name eth0 netns `+f.netns(host)+`
		link set `+host+` master `+segment.bridge+` up`); err != nil {
		return err
	}
	// A machine that boots says so to the network, as network managers do; a kernel alone leaves others with the MAC of the
	// machine that had the address before, IPv6 for half a minute.
	if _, err := namespaceMachine(host, f.netns(host), "").Exec(ctx, "sysctl", "-q", "-w", "net.ipv4.conf.eth0.arp_notify=1",
		"net.ipv6.conf.eth0.ndisc_notify=1"); err != nil {
		return err
	}
	var addresses, routes string
	for family, addr := range c.Config.nodeAddrs(place) {
		if router := segment.nets[family]; addr.IsValid() {
			addresses += fmt.Sprintf("addr add %s/%d dev eth0%s\n", addr, router.Bits(), nodad(addr))
			routes += fmt.Sprintf("route add default via %s\n", router.Addr())
		}
	}
	return f.ip(ctx, host, addresses+"link set eth0 up\n"+routes)
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
