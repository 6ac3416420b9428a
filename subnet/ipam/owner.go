// Package ipam reads and mends what the attachment of a pod leaves on disk: host-local's address reservations, the CNI
// plugin's records and libcni's result cache. It knows the formats and the locks of each, and decides nothing.
package ipam

import (
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// Owner is an attachment: one interface of one container, as CNI_CONTAINERID and CNI_IFNAME name it. IfName is empty
// in reservations that host-local wrote before it knew interface names.
type Owner struct {
	ContainerID string
	IfName      string
}

// String is "containerID/ifname".
func (o Owner) String() string { return o.ContainerID + "/" + o.IfName }

// Valid reports whether both parts have the form that the CNI specification (section 2) asks for.
func (o Owner) Valid() bool {
	return validContainerID(o.ContainerID) && (o.IfName == "" || subnet.ValidIfName(o.IfName))
}

// Covers reports whether o, as a reservation names it, is the attachment a. An owner without an interface stands for
// every interface of its container.
func (o Owner) Covers(a Owner) bool {
	return o.ContainerID == a.ContainerID && (o.IfName == "" || o.IfName == a.IfName)
}

func validContainerID(s string) bool {
	alnum := func(c rune) bool {
		return '0' <= c && c <= '9' || 'a' <= c && c <= 'z' || 'A' <= c && c <= 'Z'
	}
	if s == "" || len(s) > 255 || !alnum(rune(s[0])) {
		return false
	}
	return !strings.ContainsFunc(s, func(c rune) bool { return !alnum(c) && c != '-' && c != '_' && c != '.' })
}

// Recovered owns reservations that were put back because their address was seen alive and nobody knew whose it is.
func Recovered() Owner { return Owner{ContainerID: "weft-recovered", IfName: "eth0"} }
