package cluster

import (
	"encoding/json"
	"fmt"
	"io"
	"os"
	"slices"

	"github.com/weft-cni/weft/tests/lane"
)

// Config is what can be chosen about a cluster.
type Config struct {
	Name      string    // names its namespaces, cgroups and folder
	Nodes     int       // the first is the control plane, and runs pods too
	ProxyMode string    // kube-proxy's: iptables or nftables
	Lane      lane.Lane // the families of pods, Services and nodes
	Underlay  Underlay  // how the nodes are joined
	Backend   string    // net-conf.json's Backend, a JSON object; empty: as the manifest has it
	Keep      bool      // the cluster is to outlive the process that brings it up
	Log       io.Writer // progress lines
	Early     []string  // archives of images that nodes load while others wait for kubeadm
}

// The environment variables that choose, beside lane.Env, what a test run's cluster is.
const (
	EnvName     = "WEFT_E2E_NAME"
	EnvUnderlay = "WEFT_UNDERLAY"
	EnvBackend  = "WEFT_BACKEND"
)

// Default is the cluster that `make cluster` brings up.
func Default() Config {
	return Config{Name: "weft", Nodes: 3, ProxyMode: "iptables", Lane: lane.IPv4, Underlay: Flat, Log: io.Discard}
}

// FromEnvironment is Default with the given name and what the environment says otherwise.
func FromEnvironment(name string) (Config, error) {
	cfg := Default()
	cfg.Name, cfg.Backend = name, os.Getenv(EnvBackend)
	if own := os.Getenv(EnvName); own != "" {
		cfg.Name = own
	}
	if underlay := os.Getenv(EnvUnderlay); underlay != "" {
		cfg.Underlay = Underlay(underlay)
	}
	var err error
	if cfg.Lane, err = lane.Parse(os.Getenv(lane.Env)); err != nil {
		return cfg, err
	}
	return cfg, cfg.validate()
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
	if !slices.Contains(lane.Lanes(), c.Lane) {
		return fmt.Errorf("a cluster's lane is one of %v, not %q", lane.Lanes(), c.Lane)
	}
	if !slices.Contains([]Underlay{Flat, Routed}, c.Underlay) {
		return fmt.Errorf("an underlay is %s or %s, not %q", Flat, Routed, c.Underlay)
	}
	if c.Backend != "" && !json.Valid([]byte(c.Backend)) {
		return fmt.Errorf("a backend is a JSON object, not %s", c.Backend)
	}
	return nil
}

// BackendType is the Type of the backend: vxlan unless the configuration says otherwise.
func (c Config) BackendType() string {
	var backend struct{ Type string }
	_ = json.Unmarshal([]byte(c.Backend), &backend) // empty is the manifest's; else validate has seen it
	if backend.Type == "" {
		return "vxlan"
	}
	return backend.Type
}
