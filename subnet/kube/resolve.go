package kube

import (
	"cmp"
	"fmt"
	"net/netip"
	"slices"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// View is everything that the peers of a snapshot follow from.
type View struct {
	Own    Claim // the own Node, as its peers read it
	Self   subnet.Self
	Claims []Claim // the other Nodes, in any order
	Memory Memory
	Now    time.Time
}

// Resolved is the outcome for one View.
type Resolved struct {
	Peers     []subnet.Peer
	NodeAddrs []netip.Addr
	Problems  []subnet.Problem
	Memory    Memory
	Expires   time.Time // when an entry that is kept for a bad Node runs out; zero when there is none
}

// Resolve decides among Nodes that claim the same. It depends on nothing but its argument, and the own node has no
// better place in it than any other, so that all nodes decide alike whatever order the Nodes came in:
//   - pod CIDRs that are equal or overlap: the older Node has it (then the lower name), the younger is left out.
//   - one MAC at two public IPs: likewise, since the kernel's forwarding table has one destination for a MAC.
//   - one WireGuard key: likewise, since a key has one address and one range. That also holds for a Node that announces the addresses
//     of the other besides: anybody can copy those. A machine that came back under another name makes itself a new key.
//   - a public IP that is another Node's address by now: see current.
//   - one public IP otherwise: both stay, and both are reported. The address of a machine that is gone is soon another's, and then
//     it is the younger Node that is alive.
//
// What a peer claims of the own node's is never programmed, whoever has it: packets to it would come back to this node.
func Resolve(v View) Resolved {
	r := &resolver{out: Resolved{Memory: Memory{}}}
	holder := holders(v)
	r.own = r.current(ownPeer(v), v.Own, holder)
	peers := r.candidates(v, holder)
	r.index(peers)
	r.indexKeys(peers)
	for _, p := range peers {
		p = r.admit(p)
		if p.Name != r.own.Name {
			p = r.shield(p)
			if p.Endpoints != [2]subnet.Endpoint{} {
				r.out.Peers = append(r.out.Peers, p)
			}
		}
	}
	r.reportConflicts()
	slices.SortFunc(r.out.Peers, func(a, b subnet.Peer) int { return cmp.Compare(a.Name, b.Name) })
	slices.SortFunc(r.out.NodeAddrs, netip.Addr.Compare)
	r.out.NodeAddrs = slices.Compact(r.out.NodeAddrs)
	r.out.Problems = sortProblems(r.out.Problems)
	return r.out
}

// ownPeer is the own node as a claimant: what it announces, and its ranges also when it has announced nothing yet.
func ownPeer(v View) subnet.Peer {
	own := v.Own.Peer
	own.Name = cmp.Or(own.Name, v.Self.Name)
	for _, f := range subnet.Families() {
		if p := v.Self.PodCIDRs[f]; p.IsValid() && own.Endpoints[f].IsZero() {
			own.Endpoints[f].PodCIDR = p
		}
	}
	return own
}

// sortProblems sorts by node, reason and text and drops doubles.
func sortProblems(list []subnet.Problem) []subnet.Problem {
	slices.SortFunc(list, func(a, b subnet.Problem) int {
		return cmp.Or(cmp.Compare(a.Node, b.Node), cmp.Compare(a.Reason, b.Reason), cmp.Compare(a.Text, b.Text))
	})
	return slices.Compact(list)
}

// resolver is the state of one Resolve.
type resolver struct {
	out       Resolved
	own       subnet.Peer
	ranges    [2]*ranges
	macs      [2]map[subnet.MAC]subnet.Peer
	ips       [2]map[netip.Addr]subnet.Peer
	keys      map[subnet.Key]subnet.Peer
	conflicts []conflict
}

// candidates applies the grace and sorts by age, the own node among them.
func (r *resolver) candidates(v View, holder map[netip.Addr]string) []subnet.Peer {
	peers := []subnet.Peer{r.own}
	r.out.NodeAddrs = append(r.out.NodeAddrs, v.Own.Addrs...)
	for _, c := range v.Claims {
		r.out.NodeAddrs = append(r.out.NodeAddrs, c.Addrs...)
		if !c.Managed {
			continue
		}
		peer, keep, until := recall(c, v.Memory[c.Peer.Name], v.Now)
		r.out.Memory[c.Peer.Name] = keep
		for _, p := range c.Problems {
			if !until.IsZero() {
				p.Text += fmt.Sprintf("; the last good entry is kept for %v", Grace)
			}
			r.out.Problems = append(r.out.Problems, p)
		}
		if !until.IsZero() && (r.out.Expires.IsZero() || until.Before(r.out.Expires)) {
			r.out.Expires = until
		}
		peers = append(peers, r.current(peer, c, holder))
	}
	slices.SortFunc(peers, older)
	return peers
}

// older orders by age, then by name.
func older(a, b subnet.Peer) int {
	return cmp.Or(a.Created.Compare(b.Created), cmp.Compare(a.Name, b.Name))
}

// index makes the tables of what is taken.
func (r *resolver) index(peers []subnet.Peer) {
	for _, f := range subnet.Families() {
		lengths := map[int]bool{}
		for _, p := range peers {
			if e := p.Endpoints[f]; !e.IsZero() {
				lengths[e.PodCIDR.Bits()] = true
			}
		}
		r.ranges[f] = newRanges(lengths)
		r.macs[f], r.ips[f] = map[subnet.MAC]subnet.Peer{}, map[netip.Addr]subnet.Peer{}
	}
}

// indexKeys finds out who has each WireGuard key; peers come in the order of their age.
func (r *resolver) indexKeys(peers []subnet.Peer) {
	r.keys = map[subnet.Key]subnet.Peer{}
	for _, p := range peers {
		if _, there := r.keys[p.Key]; !p.Key.IsZero() && !there {
			r.keys[p.Key] = p
		}
	}
}

// lock takes WireGuard from a peer whose key is another's. Of one that speaks nothing better nothing is left: what is meant
// to be encrypted goes encrypted or not at all.
func (r *resolver) lock(p subnet.Peer) subnet.Peer {
	holder, taken := r.keys[p.Key]
	if !taken || holder.Name == p.Name {
		return p
	}
	r.conflict(ReasonKeyConflict, p.Key.String(), holder.Name, p.Name)
	return keyless(p)
}

func keyless(p subnet.Peer) subnet.Peer {
	p.Key, p.WGPorts = subnet.Key{}, [2]uint16{}
	p.Also &^= subnet.KindsOf(subnet.WireGuard)
	if p.BackendType == subnet.WireGuard {
		p.Endpoints = [2]subnet.Endpoint{}
	}
	return p
}

// take notes a peer's MAC and public IP, the first claimant of each.
func (r *resolver) take(f subnet.Family, p subnet.Peer) {
	e := p.Endpoints[f]
	if _, there := r.ips[f][e.PublicIP]; !there && e.PublicIP.IsValid() {
		r.ips[f][e.PublicIP] = p
	}
	if _, there := r.macs[f][e.MAC]; !there && !e.MAC.IsZero() {
		r.macs[f][e.MAC] = p
	}
}

// admit returns the peer with those endpoints that nobody before it has taken.
func (r *resolver) admit(p subnet.Peer) subnet.Peer {
	p = r.lock(p)
	for _, f := range subnet.Families() {
		e := p.Endpoints[f]
		if e.IsZero() {
			continue
		}
		if holder, taken := r.ranges[f].holder(e.PodCIDR); taken {
			r.conflict(ReasonPodCIDRConflict, e.PodCIDR.String(), holder, p.Name)
			p.Endpoints[f] = subnet.Endpoint{}
			continue
		}
		if twin, same := r.ips[f][e.PublicIP]; same {
			r.conflict(ReasonPublicIPConflict, e.PublicIP.String(), twin.Name, p.Name)
		}
		clone, same := r.macs[f][e.MAC]
		// A machine that came back under another name has both the MAC and the address of its old Node: one entry in
		// the kernel serves both, and only its pods know the difference.
		if same && clone.Endpoints[f].PublicIP != e.PublicIP {
			r.conflict(ReasonMACConflict, e.MAC.String(), clone.Name, p.Name)
			p.Endpoints[f] = subnet.Endpoint{}
			continue
		}
		r.ranges[f].add(e.PodCIDR, p.Name)
		r.take(f, p)
	}
	return p
}

// shield takes out of an admitted peer what collides with the own node's. Each collision is told, since the own node may
// have lost what it claims to a third one, and then nothing has been said about the two.
func (r *resolver) shield(p subnet.Peer) subnet.Peer {
	holder, claimant := p, r.own
	if older(r.own, p) < 0 {
		holder, claimant = r.own, p
	}
	if !p.Key.IsZero() && p.Key == r.own.Key { // it has ours, as lock has said: the kernel has no peer with the own key
		p = keyless(p)
	}
	for _, f := range subnet.Families() {
		e, own := p.Endpoints[f], r.own.Endpoints[f]
		if !e.PublicIP.IsValid() { // it has its range, and nothing can be sent there for now
			p.Endpoints[f] = subnet.Endpoint{}
		}
		if !e.PublicIP.IsValid() || own.IsZero() {
			continue
		}
		reason, value := "", ""
		switch {
		case e.PodCIDR.Overlaps(own.PodCIDR):
			reason, value = ReasonPodCIDRConflict, claimant.Endpoints[f].PodCIDR.String()
		case own.PublicIP.IsValid() && e.PublicIP == own.PublicIP:
			reason, value = ReasonPublicIPConflict, e.PublicIP.String()
		case !own.MAC.IsZero() && e.MAC == own.MAC:
			reason, value = ReasonMACConflict, e.MAC.String()
		default:
			continue
		}
		r.conflict(reason, value, holder.Name, claimant.Name)
		p.Endpoints[f] = subnet.Endpoint{}
	}
	return p
}
