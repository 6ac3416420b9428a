package kube

import (
	"fmt"
	"net/netip"
	"strconv"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/claim"
)

// Announcement is what this node tells the others about itself.
type Announcement struct {
	BackendType string // "vxlan"
	VNI         uint32
	Port        uint16        // UDP port; 0 announces none
	PublicIP    [2]netip.Addr // per family; invalid takes the family out
	MAC         [2]subnet.MAC // VTEP MAC per family
	Ready       bool          // the data plane is complete, so NetworkUnavailable may become False
}

// Annotations is what the own Node has to carry for an announcement: full key to value, and "" for a key that must not
// be there. An overwrite annotation of the Node replaces the public IP here and nowhere else.
func (a Announcement) Annotations(prefix Prefix, overwrite [2]netip.Addr) map[string]string {
	want := map[string]string{
		prefix.Key(claim.KeyManaged):     "true",
		prefix.Key(claim.KeyBackendType): a.BackendType,
		prefix.Key(claim.KeyBackendPort): "",
	}
	if a.Port != 0 {
		want[prefix.Key(claim.KeyBackendPort)] = strconv.Itoa(int(a.Port))
	}
	for _, f := range subnet.Families() {
		keys := claim.KeysOf(f)
		ip, data := "", ""
		if a.PublicIP[f].IsValid() {
			ip, data = a.PublicIP[f].String(), backendData(a.VNI, a.MAC[f])
			if overwrite[f].IsValid() {
				ip = overwrite[f].String()
			}
		}
		want[prefix.Key(keys.PublicIP)], want[prefix.Key(keys.BackendData)] = ip, data
	}
	return want
}

// backendData is flannel's text byte for byte: flannel finds its MAC in it by splitting the string.
func backendData(vni uint32, mac subnet.MAC) string {
	if mac.IsZero() {
		return "null" // as flannel writes for backends without data
	}
	return fmt.Sprintf(`{"VNI":%d,"VtepMAC":"%s"}`, vni, mac)
}

// differing picks the keys of want whose value on the Node differs; "" stands for absent.
func differing(have, want map[string]string) map[string]string {
	diff := map[string]string{}
	for key, value := range want {
		if old, there := have[key]; old != value || there && value == "" {
			diff[key] = value
		}
	}
	return diff
}
