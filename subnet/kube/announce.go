package kube

import (
	"net/netip"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/claim"
)

// Announcement is what this node tells the others about itself.
type Announcement struct {
	BackendType string       // net-conf.json's: "vxlan"
	Also        subnet.Kinds // what it speaks besides, while the cluster changes its backend
	VNI         uint32
	Port        uint16        // UDP port of VXLAN; 0 announces none
	PublicIP    [2]netip.Addr // per family; invalid takes the family out
	MAC         [2]subnet.MAC // VTEP MAC per family
	Key         subnet.Key    // WireGuard's public one
	WGPorts     [2]uint16     // UDP ports of WireGuard per family; 0 for none
	Ready       bool          // the data plane is complete, so NetworkUnavailable may become False
}

// Annotations is what the own Node has to carry for an announcement: full key to value; Prefix.Removes tells which must not
// be there. An overwrite annotation of the Node replaces the public IP here and nowhere else.
func (a Announcement) Annotations(prefix Prefix, overwrite [2]netip.Addr) map[string]string {
	public := a.PublicIP
	for f, over := range overwrite {
		if over.IsValid() && public[f].IsValid() {
			public[f] = over
		}
	}
	speech := claim.Speech{
		Type: a.BackendType, Also: a.Also, VNI: a.VNI, Port: a.Port, MACs: a.MAC, Key: a.Key, WGPorts: a.WGPorts,
	}
	want := map[string]string{}
	for key, value := range speech.Annotations(public) {
		want[prefix.Key(key)] = value
	}
	return want
}

// differing picks the keys of want whose value on the Node differs.
func differing(prefix Prefix, have, want map[string]string) map[string]string {
	diff := map[string]string{}
	for key, value := range want {
		old, there := have[key]
		if prefix.Removes(key, value) == there || old != value {
			diff[key] = value
		}
	}
	return diff
}
