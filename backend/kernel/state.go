// Package kernel is the daemon's only door to netlink: it dumps what the kernel holds of ours as comparable values,
// computes the difference to what we want, and applies it.
package kernel

import (
	"context"
	"maps"
	"net/netip"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// Protocol is the route protocol number that marks a route as ours (ip route show proto 87).
const Protocol = 87

// State is everything of ours in the kernel. Keys are what the kernel itself treats as unique, so two entries that
// collide in the kernel cannot both be written down.
type State struct {
	Links  map[string]Link      // by device name: flannel.1, flannel-v6.1
	Addrs  map[Addr]struct{}    // on our devices, IPv6 link-local excluded
	Neighs map[Neigh]subnet.MAC // permanent neighbours on our devices
	FDB    map[FDBKey]FDBDest   // permanent forwarding entries of our devices
	Routes map[RouteKey]Route   // main table: protocol 87, or on one of our devices
	Peers  map[WGKey]WGPeer     // of our WireGuard devices

	// Networks are the pod networks by family; only wanted states carry them. An IPv4 address that somebody put on
	// our device is theirs while it lies outside.
	Networks [2]netip.Prefix

	// Handshakes tells when each WireGuard peer last proved that it has our key and we its, as of Read. Dump fills both in,
	// wanted states lack them. A handshake that is fresh tells Diff that the kernel knows best where the peer is.
	Handshakes map[WGKey]time.Time
	Read       time.Time

	// Sent is how many bytes went to each WireGuard peer, those of handshakes that were begun among them. Dump fills it in.
	Sent map[WGKey]uint64

	// Foreign are routes of the main table that an administrator's command or a script has made, on devices that are not
	// ours; only Dump fills it in. A wanted route of ours over the underlay takes the place of one with its key.
	Foreign map[RouteKey]Route
}

// New returns a state with nothing in it.
func New() State {
	return State{
		Links:  map[string]Link{},
		Addrs:  map[Addr]struct{}{},
		Neighs: map[Neigh]subnet.MAC{},
		FDB:    map[FDBKey]FDBDest{},
		Routes: map[RouteKey]Route{},
		Peers:  map[WGKey]WGPeer{},

		Handshakes: map[WGKey]time.Time{},
		Sent:       map[WGKey]uint64{},
		Foreign:    map[RouteKey]Route{},
	}
}

// Clone returns a copy that shares nothing with s.
func (s State) Clone() State {
	c := New()
	c.Networks, c.Read = s.Networks, s.Read
	c.Add(s)
	return c
}

// Add puts the entries of another state into s, which must come from New: plans of several backends make one wanted state.
func (s State) Add(o State) {
	maps.Copy(s.Links, o.Links)
	maps.Copy(s.Addrs, o.Addrs)
	maps.Copy(s.Neighs, o.Neighs)
	maps.Copy(s.FDB, o.FDB)
	maps.Copy(s.Routes, o.Routes)
	maps.Copy(s.Peers, o.Peers)
	maps.Copy(s.Handshakes, o.Handshakes)
	maps.Copy(s.Sent, o.Sent)
	maps.Copy(s.Foreign, o.Foreign)
}

// The kinds of device that we make, as ip(8) calls them.
const (
	KindVXLAN     = "vxlan"
	KindWireGuard = "wireguard"
	KindIPIP      = "ipip"
	KindIP6Tnl    = "ip6tnl" // IPv6 in IPv6
)

// Link is a device of ours. Index is filled by Dump and ignored by Diff. Each kind uses the fields that mean something to
// it: WireGuard has Port and Key, and neither Local nor Parent; IPIP and IP6Tnl have Local, and neither MAC nor Port.
type Link struct {
	Index    int
	Kind     string // one of the kinds above; another kind under our name has to go
	VNI      uint32
	Local    netip.Addr
	Port     uint16
	Parent   int // ifindex of the underlay device
	MTU      int
	MAC      subnet.MAC
	Learning bool
	GBP      bool
	Up       bool

	// SoftChecksum says that the kernel computes the inner checksums instead of leaving them to the NIC. A wanted false
	// means "as it is": administrators switch the offload off by themselves.
	SoftChecksum bool

	Key subnet.Secret // private key of WireGuard

	Extra string // what our devices never have, in the words of ip(8): "l2miss group 239.1.1.1"; wanted is empty
}

// WGKey is the key of a WireGuard peer: its device and its public key.
type WGKey struct {
	Link string
	Key  subnet.Key
}

// WGPeer is the rest of a WireGuard peer. Endpoint is where the kernel sends to; it follows the peer's packets by itself
// (roaming), so that a live session's endpoint is no difference. Keepalive is in whole seconds, 0 for none. Allowed are the peer's pod ranges by family; More is the
// number of further ones that Dump found.
type WGPeer struct {
	Endpoint  netip.AddrPort
	PSK       subnet.Secret
	Keepalive time.Duration
	Allowed   [2]netip.Prefix
	More      int
}

// Addr is an address on one of our devices.
type Addr struct {
	Link   string
	Prefix netip.Prefix
}

// Neigh is the key of a permanent neighbour entry.
type Neigh struct {
	Link string
	IP   netip.Addr
}

// FDBKey is the key of a forwarding entry.
type FDBKey struct {
	Link string
	MAC  subnet.MAC
}

// FDBDest is where frames for a MAC go. Port 0 means the device's own port. More is the number of further
// destinations that Dump found for the MAC (bridge fdb append), Learned marks an entry that the kernel may change or
// age by itself: wanted entries have neither.
type FDBDest struct {
	Dst     netip.Addr
	Port    uint16
	More    int
	Learned bool
}

// RouteKey is what the kernel takes as the identity of a route in the main table.
type RouteKey struct {
	Dst    netip.Prefix
	Metric int
}

// Route is the rest of a route. Link is a device of ours, or that of the underlay for a route past our devices. Ours is false for
// what Dump found on our device without our protocol number (flannel's "proto boot"): Diff replaces or removes it. More is the
// number of further routes that Dump found on the same key (ip route append), of whomever: the wanted one has none.
type Route struct {
	Link   string // empty for a route without a device
	Via    netip.Addr
	Onlink bool
	Ours   bool
	Type   string // "unicast", "blackhole"
	More   int
}

// Kernel is the kernel as the loop sees it. Conn is the real one, Fake the one for tests.
type Kernel interface {
	// Dump returns what the kernel holds of ours, or an error; never a partial state.
	Dump(ctx context.Context) (State, error)
	// Apply carries out one Op.
	Apply(ctx context.Context, op Op) error
}

// Host is the rest of the kernel's network configuration, which is not ours: the choice of the underlay and the
// preflight checks read it.
type Host struct {
	Links  []HostLink
	Addrs  []HostAddr
	Routes []HostRoute // main table, all families, in dump order
	Rules  int         // policy routing rules beyond the three the kernel starts with

	Release string // of the kernel, as uname -r prints it
}

// HostLink is any network device.
type HostLink struct {
	Index    int
	Name     string
	Kind     string // "veth", "bridge", "vxlan", "device", ...
	Driver   string // of a "device", as ethtool -i names it: "virtio_net"; "" when it has none
	MTU      int
	Up       bool // administratively up
	Carrier  bool
	Loopback bool
	Master   int // ifindex of the bridge or bond it is enslaved to
	MAC      subnet.MAC
	VNI      uint32 // vxlan only
	Port     uint16 // vxlan only
}

// HostAddr is an address on any device.
type HostAddr struct {
	Index      int          // of the device
	Prefix     netip.Prefix // address with its length, not masked
	LinkLocal  bool
	Secondary  bool
	Permanent  bool
	Deprecated bool
	Temporary  bool
	Duplicate  bool // another machine on the link has it, as IPv6's duplicate address detection found out: it cannot be used
}

// HostRoute is a route of the main table; a multipath route has more than one hop.
type HostRoute struct {
	Dst    netip.Prefix // 0.0.0.0/0 or ::/0 for default
	Src    netip.Addr   // preferred source, may be invalid
	Metric int
	MTU    int // 0 when the route names none
	Type   string
	Ours   bool // by its protocol
	ByHand bool // made by a command or a script (proto boot, static), neither by the kernel nor by a daemon
	RA     bool // learned from a router advertisement
	Hops   []Hop
}

// Hop is one next hop of a route.
type Hop struct {
	Index int
	Via   netip.Addr // invalid when on-link
}
