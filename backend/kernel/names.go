package kernel

import (
	"fmt"
	"regexp"

	"github.com/weft-cni/weft/subnet"
)

// deviceNames matches what flannel, and so weft, calls its VXLAN devices, whatever the VNI: a device of an earlier
// configuration is ours too, and has to go.
var deviceNames = regexp.MustCompile(`^flannel(-v6)?(\.[0-9]{1,8}|-old)$`)

// DeviceName is the name of the VXLAN device of a family: flannel.1, flannel-v6.1.
func DeviceName(f subnet.Family, vni uint32) string {
	return fmt.Sprintf("flannel%s.%d", [2]string{"", "-v6"}[f], vni)
}

// IsDeviceName reports whether a device of this name is ours by name.
func IsDeviceName(name string) bool { return deviceNames.MatchString(name) }

// spareName is what a device is called that its successor is being put in the place of.
func spareName(f subnet.Family) string { return [2]string{"flannel-old", "flannel-v6-old"}[f] }

// IsSpareName reports whether a device of ours is one that still hears the port its successor has left.
func IsSpareName(name string) bool {
	return name == spareName(subnet.IPv4) || name == spareName(subnet.IPv6)
}
