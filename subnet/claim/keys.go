// Package claim reads what a Node says about itself: untrusted text in, fixed-size values and problems in plain words out.
// It knows nothing of the Kubernetes client, so that its parsers can be fuzzed at full speed; subnet/kube feeds it.
package claim

import "github.com/weft-cni/weft/subnet"

// Prefix is a complete annotation prefix: it ends in '/' or '-' and a key follows it directly.
type Prefix string

// Key is the full annotation key for one of ours.
func (p Prefix) Key(suffix string) string { return string(p) + suffix }

// The annotation keys, each to be appended to the prefix.
const (
	KeyManaged     = "kube-subnet-manager"
	KeyBackendType = "backend-type"
	KeyBackendPort = "backend-port"
	KeyBackendAlso = "backend-also" // ours alone: JSON, what the node speaks besides backend-type; absent when nothing
)

// FamilyKeys are the annotation keys of one family.
type FamilyKeys struct{ PublicIP, BackendData, Overwrite, NodePublicIP string }

// KeysOf lists the keys of both families.
func KeysOf(f subnet.Family) FamilyKeys {
	if f == subnet.IPv4 {
		return FamilyKeys{"public-ip", "backend-data", "public-ip-overwrite", "node-public-ip"}
	}
	return FamilyKeys{"public-ipv6", "backend-v6-data", "public-ipv6-overwrite", "node-public-ipv6"}
}

// AllKeys lists every key that means something to us; outputs are the ones that we write.
func AllKeys() (all, outputs []string) {
	outputs = []string{KeyManaged, KeyBackendType, KeyBackendPort, KeyBackendAlso}
	var inputs []string
	for _, f := range subnet.Families() {
		k := KeysOf(f)
		outputs = append(outputs, k.PublicIP, k.BackendData)
		inputs = append(inputs, k.Overwrite, k.NodePublicIP)
	}
	return append(inputs, outputs...), outputs
}
