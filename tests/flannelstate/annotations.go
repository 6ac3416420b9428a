package flannelstate

import (
	"fmt"
	"strings"
)

// Prefix is that of flannel's annotations.
const Prefix = "flannel.alpha.coreos.com/"

// Annotations are what flannel writes to its Node.
func (n Node) Annotations() map[string]string {
	out := map[string]string{Prefix + "kube-subnet-manager": "true", Prefix + "backend-type": "vxlan"}
	for _, half := range n.halves() {
		out[Prefix+half.in().address] = half.Addr.String()
		out[Prefix+half.in().data] = fmt.Sprintf(`{"VNI":%d,"VtepMAC":"%s"}`, n.VNI, half.MAC)
	}
	return out
}

// MACIn reads the MAC back from a Node's annotations as flannel does: by splitting the text, which takes this one layout only.
func MACIn(annotations map[string]string) string {
	_, mac, _ := strings.Cut(annotations[Prefix+"backend-data"], ":\"")
	return strings.TrimSuffix(mac, "\"}")
}
