package mesh

import (
	"fmt"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/backend/wireguard"
	"github.com/weft-cni/weft/subnet"
)

// planner collects one plan.
type planner struct {
	in    Input
	c     Config
	paths underlay.Paths
	local underlay.Local
	wg    wireguard.Config // without MTUs

	able      subnet.Kinds // what this node can speak
	announced subnet.Kinds // what it is known to speak, at the very moment that the snapshot shows; 0 for a newcomer
	own       subnet.Kinds // the kinds that some node, or this one, has as its own
	peers     []party
	heard     subnet.Kinds // what is kept, to hear or to send by
	base      [2]int       // the largest packet that fits on all ways of a family

	out Result
}

// party is one peer with what is decided about it.
type party struct {
	subnet.Peer
	usable  [2]bool // its endpoint of the family can be written down without harm
	path    [2]underlay.Path
	way     [2]Way
	forced  [2]bool // WireGuard carries its packets because the time to wait for a session is over
	lingers time.Time
}

func newPlanner(in Input) *planner {
	p := &planner{in: in, c: in.Config, paths: underlay.NewPaths(in.Host), local: underlay.NewLocal(in.Host), able: in.Config.able(), own: subnet.KindsOf(in.Config.Kind)}
	p.wg = p.c.wireguard([2]int{})
	p.out.Ways, p.out.Kept = Ways{}, Kept{}
	if self := in.Snapshot.Self; self.BackendType != "" {
		p.announced = subnet.KindsOf(self.BackendType) | self.Also
	}
	for _, peer := range in.Snapshot.Peers {
		p.own |= subnet.KindsOf(peer.BackendType)
	}
	keys := map[subnet.Key]string{}
	if !p.c.WireGuard.Key.IsZero() {
		keys[wireguard.PublicKey(p.c.WireGuard.Key)] = "this node"
	}
	for _, peer := range in.Snapshot.Peers {
		p.add(peer, keys)
	}
	return p
}

// add takes a peer in, as far as it can be used.
func (p *planner) add(peer subnet.Peer, keys map[subnet.Key]string) {
	q := party{Peer: peer}
	if !peer.Key.IsZero() {
		if other, taken := keys[peer.Key]; taken {
			p.report(peer, "DuplicateKey", "its WireGuard key is that of %s, as on a cloned machine: remove the key file of one of them, it makes a new key", other)
			q.Key = subnet.Key{}
		}
		keys[peer.Key] = "node " + peer.Name
	}
	for _, f := range subnet.Families() {
		e := peer.Endpoints[f]
		if e.IsZero() || p.c.Ends[f].IsZero() {
			continue
		}
		q.path[f] = p.paths.To(e.PublicIP)
		q.usable[f] = p.isUsable(f, peer) && p.isOutside(f, q)
		if !q.usable[f] {
			q.Endpoints[f] = subnet.Endpoint{} // for all that follows
		}
	}
	q.lingers = p.lingering(peer)
	p.peers = append(p.peers, q)
}

// isUsable reports whether a peer's endpoint can be written down without harm to us, whatever carries its packets.
func (p *planner) isUsable(f subnet.Family, peer subnet.Peer) bool {
	e, own, network := peer.Endpoints[f], p.c.Ends[f], p.c.Networks[f]
	switch {
	case !e.PodCIDR.IsValid() || !e.PublicIP.IsValid():
		p.report(peer, "Incomplete", "its %s announcement lacks a pod CIDR or an address: %s, %s", f, e.PodCIDR, e.PublicIP)
	case e.PublicIP == own.Local:
		p.report(peer, "DuplicateAddress", "it announces our own address %s: see its annotation public-ip", e.PublicIP)
	case p.local.Has(e.PublicIP): // of another device, such as a bridge that every machine has
		p.report(peer, "DuplicateAddress", "it announces %s, which %s of this node has: see its annotation public-ip", e.PublicIP, p.local.Owner(e.PublicIP))
	case p.local.IsBroadcast(e.PublicIP):
		p.report(peer, "BroadcastAddress", "it announces %s, the broadcast address of this node's network: see its annotation public-ip", e.PublicIP)
	case e.PodCIDR.Overlaps(own.PodCIDR):
		p.report(peer, "OverlappingPodCIDR", "its pod CIDR %s overlaps our own %s", e.PodCIDR, own.PodCIDR)
	case e.PodCIDR.Contains(own.Local) || e.PodCIDR.Contains(e.PublicIP):
		p.report(peer, "OverlappingUnderlay", "its pod CIDR %s holds an underlay address (ours is %s, its own %s): "+
			"a route to it would cut the node off", e.PodCIDR, own.Local, e.PublicIP)
	default:
		if network.IsValid() && !subnet.Contains(network, e.PodCIDR) {
			p.report(peer, "OutsideNetwork", "its pod CIDR %s lies outside the Network %s of net-conf.json: "+
				"it is reached, but with masqueraded addresses", e.PodCIDR, network)
		}
		return true
	}
	return false
}

// isOutside reports whether a peer's address is one of the underlay. Packets for one that belongs to a pod would be wrapped again
// and again, and each round would take the overlay's own MTU for that of a way, and make it smaller.
func (p *planner) isOutside(f subnet.Family, q party) bool {
	addr, link := q.Endpoints[f].PublicIP, q.path[f].Link
	if !kernel.IsDeviceName(link) && !p.c.Ends[f].PodCIDR.Contains(addr) {
		return true
	}
	p.report(q.Peer, "OverlappingUnderlay", "its address %s is one of the pod network, reached by %q: see its annotation public-ip", addr, link)
	return false
}

// report tells of a peer once, if it is the same in both families.
func (p *planner) report(peer subnet.Peer, reason, format string, args ...any) {
	problem := subnet.Problem{Node: peer.Name, Reason: reason, Text: fmt.Sprintf(format, args...)}
	if n := len(p.out.Problems); n == 0 || p.out.Problems[n-1] != problem {
		p.out.Problems = append(p.out.Problems, problem)
	}
}

// again asks for another plan after a time, or earlier.
func (p *planner) again(after time.Duration) {
	if p.out.Again == 0 || after < p.out.Again {
		p.out.Again = max(after, time.Second)
	}
}
