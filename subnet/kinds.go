package subnet

import (
	"fmt"
	"slices"
	"strings"
)

// The kinds of backend, as Backend.Type of net-conf.json and the annotation backend-type name them.
const (
	VXLAN     = "vxlan"
	HostGW    = "host-gw"
	WireGuard = "wireguard"
	IPIP      = "ipip"
	Alloc     = "alloc" // no data path: the cluster's owner routes the pod ranges
)

// BackendKinds lists the kinds that this release has.
func BackendKinds() []string { return []string{VXLAN, HostGW, WireGuard, IPIP, Alloc} }

// minIPv6MTU is what IPv6 needs of every link (RFC 8200, section 5).
const minIPv6MTU = 1280

// Overhead is how many bytes a kind of backend puts around a pod's packet on an underlay of a family: outer IP, and UDP,
// VXLAN and inner Ethernet, or what WireGuard needs in either family at most. A plain route adds nothing.
func Overhead(kind string, f Family) int {
	switch kind {
	case VXLAN:
		return [2]int{50, 70}[f]
	case WireGuard:
		return 80
	case IPIP:
		return [2]int{20, 40}[f]
	}
	return 0
}

// Kinds is a set of kinds of backend. It is comparable; the zero value is the empty set.
type Kinds uint8

// KindsOf makes a set. A kind that this release does not have is left out.
func KindsOf(kinds ...string) Kinds {
	var k Kinds
	for _, kind := range kinds {
		if i := slices.Index(BackendKinds(), kind); i >= 0 {
			k |= 1 << i
		}
	}
	return k
}

// Has reports whether a kind is in the set.
func (k Kinds) Has(kind string) bool { return k&KindsOf(kind) != 0 }

// List is the set in the order of BackendKinds.
func (k Kinds) List() []string {
	return slices.DeleteFunc(BackendKinds(), func(kind string) bool { return !k.Has(kind) })
}

// String is the list with commas.
func (k Kinds) String() string { return strings.Join(k.List(), ",") }

// MarshalText is String.
func (k Kinds) MarshalText() ([]byte, error) { return []byte(k.String()), nil }

// UnmarshalText reads what MarshalText writes.
func (k *Kinds) UnmarshalText(text []byte) error {
	*k = 0
	for word := range strings.SplitSeq(string(text), ",") {
		one := KindsOf(word)
		if word != "" && one == 0 {
			return fmt.Errorf("parse kinds of backend: %q is none", word)
		}
		*k |= one
	}
	return nil
}
