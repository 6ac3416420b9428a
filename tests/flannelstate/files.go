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
	text := ""
	for _, half := range n.halves() {
		text += fmt.Sprintf("FLANNEL_%[1]sNETWORK=%[2]s\nFLANNEL_%[1]sSUBNET=%[3]s\n", half.in().env, half.Network, half.bridge())
	}
	return text + fmt.Sprintf("FLANNEL_MTU=%d\nFLANNEL_IPMASQ=true\n", mtu)
}

// bridge is the address of the pods' bridge, with the range's length.
func (n Node) bridge() netip.Prefix {
	return netip.PrefixFrom(n.PodCIDR.Masked().Addr().Next(), n.PodCIDR.Bits())
}

// files writes what is there once flannel runs: subnet.env, and the conflist of its init container.
func (n Node) files(mtu int) error {
	if err := n.write(envFile, n.Env(mtu), 0o644); err != nil {
		return err
	}
	return n.write(conflistFile, Conflist, 0o644)
}

// Pod writes what flannel's plugin and host-local keep of a living pod: the delegate's configuration under the container's
// id, and the reservation of its address; of both when the node has two families.
func (n Node) Pod(id string, mtu int, addrs ...netip.Addr) error {
	var ranges [][]map[string]string
	var routes []map[string]string
	for _, half := range n.halves() {
		ranges = append(ranges, []map[string]string{{"subnet": half.PodCIDR.String()}})
		routes = append(routes, map[string]string{"dst": half.Network.String()})
	}
	record, err := json.Marshal(map[string]any{
		"cniVersion": "0.3.1", "hairpinMode": true, "ipMasq": false, "isDefaultGateway": true, "isGateway": true, "mtu": mtu,
		"name": "cbr0", "type": "bridge",
		"ipam": map[string]any{
			"type":   "host-local",
			"ranges": ranges,
			"routes": routes,
		},
	})
	if err != nil {
		return err
	}
	if err := n.write(filepath.Join(recordsDir, id), string(record), 0o600); err != nil {
		return err
	}
	for _, addr := range addrs {
		if err := n.write(filepath.Join(networkDir, addr.String()), id+"\r\neth0", 0o644); err != nil {
			return err
		}
	}
	return nil
}

func (n Node) write(name, text string, mode os.FileMode) error {
	path := n.Path(name)
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		return err
	}
	return os.WriteFile(path, []byte(text), mode)
}
