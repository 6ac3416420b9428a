// Package mesh plans the whole data plane of a node: it decides by which backend each peer is reached, lets the backends'
// planners plan for their peers, and joins the plans into one kernel state. It is pure.
//
// In a cluster at rest every node has one backend. While a cluster goes from one backend to another, node by node, a node
// speaks its old one besides the new one for as long as a peer needs it, and says so; two nodes then use the better of
// what both speak. A node moves its packets to a new way only when the other end is known to hear it, and takes the old
// one away only when nobody sends by it any more, so that no packet is lost in between.
package mesh

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// Config is the own end of the data plane.
type Config struct {
	Kind          string          // net-conf.json's Backend.Type
	Former        subnet.Kinds    // spoken before, by what this node announced and by the devices that are there; without Kind
	DirectRouting bool            // peers on the same link are reached by plain routes
	MTU           int             // net-conf.json's, of the underlay; 0 means the smallest on the ways to the peers
	Blackhole     bool            // keep a blackhole route for the own pod ranges, behind all others
	Networks      [2]netip.Prefix // the pod networks
	Ends          [2]End          // by family; the zero value switches a family off
	VXLAN         VXLAN
	WireGuard     WireGuard
}

// End is the own end in one family.
type End struct {
	PodCIDR     netip.Prefix // the own pod range
	Local       netip.Addr   // address on the underlay device
	Parent      int          // ifindex of the underlay device
	ParentName  string       // for messages
	UnderlayMTU int          // MTU of the underlay device
}

// IsZero reports whether the family is switched off.
func (e End) IsZero() bool { return e == End{} }

// VXLAN is what only that backend needs to know.
type VXLAN struct {
	VNI           uint32
	Port          uint16 // ours, as vxlan.ChoosePort says
	SilentPort    uint16 // what a peer listens on that announces no port: net-conf's Port, or 0 for vxlan.FlannelPort
	GBP, Learning bool
	SoftChecksum  bool
	MACs          [2]subnet.MAC // as vxlan.ChooseMAC says
}

// WireGuard is what only that backend needs to know.
type WireGuard struct {
	Conf subnet.WireGuardConf
	Key  subnet.Secret // the node's private key
}

// Input is everything that a plan depends on.
type Input struct {
	Config   Config
	Snapshot subnet.Snapshot
	Host     kernel.Host  // for what is on-link, and for MTUs
	Have     kernel.State // for what is still in use: devices of former backends, handshakes
	Last     Ways         // of the last round that was applied; nil at the start
	Kept     Kept         // of the same round
	Now      time.Time
}

// Way is how packets go to one peer in one family.
type Way struct {
	Kind  string    // the backend that carries them, HostGW also where DirectRouting says so; "" when none can
	Since time.Time // when it was taken

	Waits   time.Time // since when a session of WireGuard is waited for; zero while none is
	Mute    Mute
	Lingers time.Time // since when the peer announces a kind besides its own that is no node's own; zero while it does not
}

// Mute is what is known of a WireGuard peer without a session, to tell one that does not answer from one that nobody talks to.
// The zero value is for one with a session.
type Mute struct {
	Since     time.Time // when that was seen
	Handshake time.Time // the last one; zero when there was none
	Sent      uint64    // bytes sent to it by then, while there was a session; what came after that are handshakes that were begun
}

// Ways holds the way to each peer, by name and family.
type Ways map[string][2]Way

// Kept holds the kinds that are kept in order to be heard: since when nobody needs one any more, or the zero time while somebody
// does, as for the own kind.
type Kept map[string]time.Time

// Result is a plan.
type Result struct {
	Want     kernel.State
	Ways     Ways
	Kept     Kept
	Problems []subnet.Problem // peers that are left out, or that are reached otherwise than they should be
	Also     subnet.Kinds     // what to announce besides Kind
	Again    time.Duration    // plan again after this time even if nothing changes; 0 means never
	PodMTU   int              // for pods: what fits on every way; 0 when no family is in use
	Devices  []string         // ours that carry pods' packets
	Largest  [2]int           // the largest packet that is sent over the underlay, by its family; 0 where none is
	// Plain are the underlay devices by which peers' packets may come without a tunnel, although ours may go by another way.
	Plain []string
	// Encrypted are the pod ranges of peers to and from which no packet may go in the clear.
	Encrypted [2][]netip.Prefix
}

// Plan says what the kernel shall hold. The error is about our own configuration, and then there is no plan.
func Plan(in Input) (Result, error) {
	if err := in.Config.Validate(); err != nil {
		return Result{}, fmt.Errorf("plan the ways to the peers: %w", err)
	}
	p := newPlanner(in)
	for i := range p.peers {
		p.choose(&p.peers[i])
	}
	p.announce()
	p.measure()
	p.join()
	p.encrypt()
	return p.out, nil
}
