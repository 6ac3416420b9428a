package kernel

import (
	"fmt"
	"regexp"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// deviceNames matches what flannel, and so weft, calls its devices, whatever the VNI: a device of an earlier configuration is
// ours too, and has to go.
var deviceNames = regexp.MustCompile(`^flannel(-v6)?(\.[0-9]{1,8}|-old|\.ipip)$|^flannel-wg(-v6)?$`)

// suffix sets the devices of the families apart.
func suffix(f subnet.Family) string { return [2]string{"", "-v6"}[f] }

// DeviceName is the name of the VXLAN device of a family: flannel.1, flannel-v6.1.
func DeviceName(f subnet.Family, vni uint32) string {
	return fmt.Sprintf("flannel%s.%d", suffix(f), vni)
}

// WireGuardName is the name of the WireGuard device of a family: flannel-wg, flannel-wg-v6. One that serves both families has
// the name of IPv4's.
func WireGuardName(f subnet.Family) string { return "flannel-wg" + suffix(f) }

// TunnelName is the name of the device that packs IP packets of a family into IP packets of the same: flannel.ipip,
// flannel-v6.ipip.
func TunnelName(f subnet.Family) string { return "flannel" + suffix(f) + ".ipip" }

// TunnelKind is the kind of that device.
func TunnelKind(f subnet.Family) string { return [2]string{KindIPIP, KindIP6Tnl}[f] }

// IsDeviceName reports whether a device of this name is ours by name.
func IsDeviceName(name string) bool { return deviceNames.MatchString(name) }

// kindOf is the kind that a device has to be of to be ours under its name; "" for a name that is not ours.
func kindOf(name string) string {
	switch {
	case !IsDeviceName(name):
		return ""
	case strings.HasPrefix(name, "flannel-wg"):
		return KindWireGuard
	case name == TunnelName(subnet.IPv4):
		return KindIPIP
	case name == TunnelName(subnet.IPv6):
		return KindIP6Tnl
	}
	return KindVXLAN
}

// spareName is what a device is called that its successor is being put in the place of.
func spareName(f subnet.Family) string { return "flannel" + suffix(f) + "-old" }

// IsSpareName reports whether a device of ours is one that still hears the port its successor has left.
func IsSpareName(name string) bool {
	return name == spareName(subnet.IPv4) || name == spareName(subnet.IPv6)
}
