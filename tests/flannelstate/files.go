package flannelstate

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
)

// Conflist is the CNI configuration of flannel's manifest.
const Conflist = `{
  "name": "cbr0",
  "cniVersion": "0.3.1",
  "plugins": [
    {
      "type": "flannel",
      "delegate": {
        "hairpinMode": true,
        "isDefaultGateway": true
      }
    },
    {
      "type": "portmap",
      "capabilities": {
        "portMappings": true
      }
    }
  ]
}
`

// Where flannel's files lie.
const (
	conflistFile = "etc/cni/net.d/10-flannel.conflist"
	envFile      = "run/flannel/subnet.env"
	recordsDir   = "var/lib/cni/flannel"
	networkDir   = "var/lib/cni/networks/cbr0"
)

// Path is where a file of the node lies.
func (n Node) Path(name string) string { return filepath.Join(n.Root, "/", name) }

// Env is subnet.env.
func (n Node) Env(mtu int) string {
	return fmt.Sprintf("FLANNEL_NETWORK=%s\nFLANNEL_SUBNET=%s/%d\nFLANNEL_MTU=%d\nFLANNEL_IPMASQ=true\n",
		n.Network, n.PodCIDR.Masked().Addr().Next(), n.PodCIDR.Bits(), mtu)
}

// files writes what is there once flannel runs: subnet.env, and the conflist of its init container.
func (n Node) files(mtu int) error {
	if err := n.write(envFile, n.Env(mtu), 0o644); err != nil {
		return err
	}
	return n.write(conflistFile, Conflist, 0o644)
}

// Pod writes what flannel's plugin and host-local keep of a living pod: the delegate's configuration under the container's
// id, and the reservation of its address.
func (n Node) Pod(id string, addr netip.Addr, mtu int) error {
	record, err := json.Marshal(map[string]any{
		"cniVersion": "0.3.1", "hairpinMode": true, "ipMasq": false, "isDefaultGateway": true, "isGateway": true, "mtu": mtu,
		"name": "cbr0", "type": "bridge",
		"ipam": map[string]any{
			"type":   "host-local",
			"ranges": [][]map[string]string{{{"subnet": n.PodCIDR.String()}}},
			"routes": []map[string]string{{"dst": n.Network.String()}},
		},
	})
	if err != nil {
		return err
	}
	if err := n.write(filepath.Join(recordsDir, id), string(record), 0o600); err != nil {
		return err
	}
	return n.write(filepath.Join(networkDir, addr.String()), id+"\r\neth0", 0o644)
}

func (n Node) write(name, text string, mode os.FileMode) error {
	path := n.Path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), mode)
}
