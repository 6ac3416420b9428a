// Package oracle says what the API's text says about a packet, as slowly and as plainly as it can: tests compare the rules
// that weft puts into the kernel with it. It shares the World's types with package policy, and no line of what that does.
package oracle

import (
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/backend/policy"
)

// Packet is the first packet of a connection. Addresses and port are those behind any Service.
type Packet struct {
	Src, Dst netip.Addr
	Proto    policy.Proto // 1 and 58 are the two ICMPs
	Port     uint16       // of the destination
	OwnNode  bool         // the destination is the node that the source, a pod, is on
}

// Allowed tells whether the packet may pass, from whichever node to whichever other. A packet from a pod's own node never
// has to be asked about: it is allowed. Towards the own node NetworkPolicies allow everything ("traffic to and from the node
// where a Pod is running is always allowed"), and ClusterNetworkPolicies what they say.
func Allowed(w policy.World, p Packet) bool {
	if p.Src == p.Dst {
		return true
	}
	if slices.Contains(w.Gated, p.Src) || slices.Contains(w.Gated, p.Dst) {
		// Nobody knows the pod yet, nor whether a policy keeps it from its node.
		mayNot := slices.ContainsFunc(w.Cluster, func(cp *policy.ClusterPolicy) bool { return len(cp.Rules[policy.Egress]) > 0 })
		if !p.OwnNode || mayNot {
			return false
		}
	}
	if from := podAt(w, p.Src); from != nil && !decide(w, side{from, policy.Egress}, p) {
		return false
	}
	to := podAt(w, p.Dst)
	return to == nil || decide(w, side{to, policy.Ingress}, p)
}

// podAt finds the pod that has an address. Finished pods have none, and pods on the host's network have their node's.
func podAt(w policy.World, a netip.Addr) *policy.Pod {
	var best *policy.Pod
	for _, p := range w.Pods {
		if p.HostNetwork || p.Phase == policy.Finished || p.Addrs[0] != a && p.Addrs[1] != a {
			continue
		}
		if best == nil || better(p, best) {
			best = p
		}
	}
	return best
}

// better: the running pod has the address; else the one that is not about to go; else the one that came last.
func better(a, b *policy.Pod) bool {
	if running := a.Phase == policy.Running; running != (b.Phase == policy.Running) {
		return running
	}
	if a.Terminating != b.Terminating {
		return b.Terminating
	}
	return a.Created > b.Created
}

// side is a pod at one end of the packet.
type side struct {
	pod *policy.Pod
	dir policy.Direction
}

// decide evaluates the tiers for one pod in one direction.
func decide(w policy.World, s side, p Packet) bool {
	if action, final := tier(w, s, p, policy.Admin); final {
		return action == policy.Accept
	}
	isolated := false
	for _, np := range w.Policies {
		if np.Namespace != s.pod.Namespace || !np.Isolates[s.dir] || !selects(np.Pods, s.pod.Labels) {
			continue
		}
		isolated = true
		if p.OwnNode {
			return true
		}
		for _, r := range np.Rules[s.dir] {
			if hits(w, r, s.dir, p) {
				return true
			}
		}
	}
	if isolated {
		return false
	}
	action, final := tier(w, s, p, policy.Baseline)
	return !final || action == policy.Accept
}

// tier evaluates the ClusterPolicies of a tier. Final is false when none matched, or when one passed.
func tier(w policy.World, s side, p Packet, t policy.Tier) (action policy.Action, final bool) {
	var list []*policy.ClusterPolicy
	for _, cp := range w.Cluster {
		if cp.Tier == t && podPeer(w, cp.Subject, s.pod) {
			list = append(list, cp)
		}
	}
	slices.SortFunc(list, func(a, b *policy.ClusterPolicy) int {
		switch {
		case a.Priority != b.Priority:
			return int(a.Priority) - int(b.Priority)
		case a.Name < b.Name:
			return -1
		}
		return 1
	})
	for _, cp := range list {
		for _, r := range cp.Rules[s.dir] {
			if hits(w, r, s.dir, p) {
				return r.Action, r.Action != policy.Pass
			}
		}
	}
	return policy.Pass, false
}

// hits tells whether a rule matches the packet: one of its peers and one of its ports.
func hits(w policy.World, r policy.Rule, d policy.Direction, p Packet) bool {
	other := p.Src
	if d == policy.Egress {
		other = p.Dst
	}
	peer, port := r.AllPeers, r.AllPorts
	for _, x := range r.Peers {
		peer = peer || isPeer(w, x, other)
	}
	for _, x := range r.Ports {
		port = port || isPort(w, x, p)
	}
	return peer && port
}

func isPeer(w policy.World, x policy.Peer, a netip.Addr) bool {
	switch {
	case len(x.Networks) > 0:
		return slices.ContainsFunc(x.Networks, func(n policy.Network) bool {
			return n.CIDR.Contains(a) && !slices.ContainsFunc(n.Except, func(e netip.Prefix) bool { return e.Contains(a) })
		})
	case x.Nodes != nil:
		return slices.ContainsFunc(w.Nodes, func(n *policy.Node) bool {
			return selects(*x.Nodes, n.Labels) && slices.Contains(n.Addrs, a)
		})
	}
	pod := podAt(w, a)
	return pod != nil && podPeer(w, x, pod)
}

// podPeer tells whether a pod is one that the peer's selectors mean.
func podPeer(w policy.World, x policy.Peer, pod *policy.Pod) bool {
	if x.Namespaces == nil {
		return pod.Namespace == x.Namespace && selects(x.Pods, pod.Labels)
	}
	var labels policy.Labels
	for _, ns := range w.Namespaces {
		if ns.Name == pod.Namespace {
			labels = ns.Labels
		}
	}
	return selects(*x.Namespaces, labels) && selects(x.Pods, pod.Labels)
}

func isPort(w policy.World, x policy.Port, p Packet) bool {
	if x.Name != "" {
		pod := podAt(w, p.Dst)
		return pod != nil && slices.ContainsFunc(pod.Ports, func(c policy.NamedPort) bool {
			return c.Name == x.Name && c.Port == p.Port && c.Proto == p.Proto && (x.Proto == policy.AnyProto || x.Proto == p.Proto)
		})
	}
	return x.Proto == p.Proto && (x.First == 0 && x.Last == 0 || x.First <= p.Port && p.Port <= x.Last)
}

// selects reads a selector as the API's text does: every requirement must hold; an absent label satisfies NotIn.
func selects(s policy.Selector, labels policy.Labels) bool {
	has := map[string]string{}
	for _, l := range labels {
		has[l.Key] = l.Value
	}
	for _, r := range s.All {
		v, there := has[r.Key]
		listed := there && slices.Contains(r.Values, v)
		ok := map[policy.Operator]bool{policy.In: listed, policy.NotIn: !listed, policy.Exists: there, policy.DoesNotExist: !there}[r.Op]
		if !ok {
			return false
		}
	}
	return true
}
