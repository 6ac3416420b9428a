package cluster

import (
	"fmt"
	"io"
	"net/netip"
	"slices"
)

// Config is what can be chosen about a cluster.
type Config struct {
	Name        string    // names its namespaces, cgroups and folder
	Nodes       int       // the first is the control plane, and runs pods too
	ProxyMode   string    // kube-proxy's: iptables or nftables
	PodCIDR     string    // what kubeadm is told, and what the network plugin's configuration must say
	ServiceCIDR string    //
	Keep        bool      // the cluster is to outlive the process that brings it up
	Log         io.Writer // progress lines
}

// Default is the cluster that `make cluster` brings up.
func Default() Config {
	return Config{Name: "weft", Nodes: 3, ProxyMode: "iptables", PodCIDR: "10.244.0.0/16", ServiceCIDR: "10.96.0.0/16", Log: io.Discard}
}

// validate refuses what cannot work before anything is started.
func (c Config) validate() error {
	if c.Nodes < 1 || c.Nodes > 50 {
		return fmt.Errorf("a cluster has 1 to 50 nodes, not %d", c.Nodes)
	}
	if !slices.Contains([]string{"iptables", "nftables"}, c.ProxyMode) {
		return fmt.Errorf("kube-proxy's mode is iptables or nftables, not %q", c.ProxyMode)
	}
	if c.Name == "" || len(c.Name) > 20 {
		return fmt.Errorf("a cluster's name has 1 to 20 letters, not %q", c.Name)
	}
	return nil
}

// The addresses of the network that joins the nodes.
const (
	fabricAddr    = "172.30.0.1"
	fabricAddr6   = "fd30::1"
	outsideRouter = "192.0.2.1"

	// OutsideAddr is the address of the host that is no node.
	OutsideAddr = "192.0.2.10"
)

// nodeAddr is the address of the n-th node, counted from 1.
func nodeAddr(n int) netip.Addr { return netip.AddrFrom4([4]byte{172, 30, 0, byte(10 + n)}) }

func nodeAddr6(n int) string { return fmt.Sprintf("fd30::%d", 10+n) }

func nodeName(n int) string { return fmt.Sprintf("node-%d", n) }
