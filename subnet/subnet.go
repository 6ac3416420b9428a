// Package subnet says what a cluster is, as values: who we are, who the peers are, and the files that carry it.
// It knows neither Kubernetes nor the kernel; everything else in weft is written in terms of it.
package subnet

import (
	"fmt"
	"net"
	"net/netip"
	"time"
)

// Family is an IP family. It indexes the per-family arrays of this package, so that code for one family is a loop
// over Families and never a twin of a function.
type Family uint8

// The two families, in the order in which everything lists them.
const (
	IPv4 Family = iota
	IPv6
)

// Families lists both families.
func Families() [2]Family { return [2]Family{IPv4, IPv6} }

// FamilyOf tells the family of an address; an IPv4-mapped IPv6 address is IPv6.
func FamilyOf(a netip.Addr) Family {
	if a.Is4() {
		return IPv4
	}
	return IPv6
}

// String is "IPv4" or "IPv6".
func (f Family) String() string { return [2]string{"IPv4", "IPv6"}[f] }

// MAC is an Ethernet address of fixed size: comparable, and so a map key. The zero value means "none".
type MAC [6]byte

// ParseMAC reads a unicast, non-zero Ethernet address in colon notation.
func ParseMAC(s string) (MAC, error) {
	hw, err := net.ParseMAC(s)
	if err != nil || len(hw) != len(MAC{}) {
		return MAC{}, fmt.Errorf("parse MAC %q: want six bytes like 0a:1b:2c:3d:4e:5f", s)
	}
	m := MAC(hw)
	if m.IsZero() || m[0]&1 != 0 {
		return MAC{}, fmt.Errorf("parse MAC %q: want a unicast address that is not all zero", s)
	}
	return m, nil
}

// IsZero reports whether no address is set.
func (m MAC) IsZero() bool { return m == MAC{} }

// String is the lower-case colon notation that the annotations carry.
func (m MAC) String() string { return net.HardwareAddr(m[:]).String() }

// MarshalText is String, and empty for the zero value.
func (m MAC) MarshalText() ([]byte, error) {
	if m.IsZero() {
		return nil, nil
	}
	return []byte(m.String()), nil
}

// UnmarshalText reads what MarshalText writes.
func (m *MAC) UnmarshalText(text []byte) error {
	if len(text) == 0 {
		*m = MAC{}
		return nil
	}
	mac, err := ParseMAC(string(text))
	if err != nil {
		return err
	}
	*m = mac
	return nil
}

// Endpoint is what a node announces in one family: where its pods live, and how a packet for them is sent.
// The zero value means that the node has no part in that family.
type Endpoint struct {
	PodCIDR  netip.Prefix // masked
	PublicIP netip.Addr   // outer destination address of its packets
	MAC      MAC          // VTEP MAC; zero for backends without one
}

// IsZero reports whether the node has no part in the family.
func (e Endpoint) IsZero() bool { return e == Endpoint{} }

// Peer is another node that takes part in the overlay.
type Peer struct {
	Name        string
	UID         string
	Created     time.Time // the older of two nodes that claim one range keeps it
	BackendType string    // what it is configured to speak: VXLAN, ...
	Also        Kinds     // what it speaks besides, while the cluster changes its backend
	VNI         uint32    // of VXLAN
	Port        uint16    // announced UDP port of VXLAN; 0 means the node did not say (flannel)
	Key         Key       // of WireGuard
	WGPorts     [2]uint16 // UDP ports of WireGuard, by the family of its tunnels
	Endpoints   [2]Endpoint
}

// Speaks reports whether a peer can be reached by a kind of backend, as far as it says itself.
func (p Peer) Speaks(kind string) bool { return p.BackendType == kind || p.Also.Has(kind) }

// Self is the own Node as the API server holds it.
type Self struct {
	Name       string
	UID        string
	Exists     bool            // the Node object is there
	PodCIDRs   [2]netip.Prefix // per family; invalid when unassigned
	InternalIP [2]netip.Addr   // first InternalIP of the family in status.addresses
	Announced  map[string]string
	// ^ our annotations as they stand, full key to value; never written after the snapshot is published
	NetworkUnavailable string // status of that condition: "True", "False", "Unknown" or "" when absent

	// Read back from annotations, already parsed; zero when absent or unusable.
	NodePublicIP [2]netip.Addr // node-public-ip*: selects the interface, like --public-ip
	Overwrite    [2]netip.Addr // public-ip*-overwrite: announced instead of the real address
	PublicIP     [2]netip.Addr // what the Node announces now
	MAC          [2]MAC        // VTEP MACs of the last run
	VNI          uint32        // of VXLAN in the last run; meaningless without a MAC
	Port         uint16        // of VXLAN in the last run
	BackendType  string        // backend-type of the last run; "" when it announced none
	Also         Kinds         // backend-also of the last run
}

// Problem is one Node, or one pair of Nodes, that cannot be taken as it is. It never stops the others.
type Problem struct {
	Node   string
	Reason string // one of a small fixed set, CamelCase: usable as an Event reason and a metric label
	Text   string // plain words, with the value and the cure
	Yields bool   // an older node has what this one claims, and packets for it go there
	Value  string // what both claim, when Yields is set
}

// Snapshot is the cluster at one moment. It is immutable: whoever holds one may read it without a lock.
type Snapshot struct {
	ClusterID string // UID of the kube-system namespace; empty when not known
	Self      Self
	Peers     []Peer       // sorted by name, conflicts resolved, own node excluded
	NodeAddrs []netip.Addr // InternalIPs and ExternalIPs of all nodes, sorted, unique
	Problems  []Problem    // sorted by node, then reason
	// ResourceVersion is how new the list of Nodes is, as a number; empty when not known. Two snapshots that differ in
	// nothing else say the same.
	ResourceVersion string `json:",omitempty"`
}

// Source yields snapshots.
type Source interface {
	// Snapshot returns the newest snapshot, and whether a first one is complete.
	Snapshot() (Snapshot, bool)
	// Changed has a value whenever a newer snapshot is there than the last one fetched.
	Changed() <-chan struct{}
}
