// Package policy enforces NetworkPolicy and ClusterNetworkPolicy in the kernel: World says what the cluster has decided,
// Compile turns it into the Ruleset of this node, and Manager keeps one nftables table, "inet weft-policy", equal to it.
//
// World and Ruleset are values, and everything between them is pure. Whoever knows the API server (package watch) makes
// Worlds; nothing here does. A World is never changed once it is handed over: an object that changed is a new pointer, an
// object that did not is the same one, and so what is new is found by comparing pointers, at 100,000 pods in a millisecond.
package policy

import (
	"net/netip"
	"slices"
)

// World is all that verdicts depend on. Every slice is sorted as its comment says, and holds no nil.
type World struct {
	Namespaces []*Namespace     // by name
	Pods       []*Pod           // by namespace, name, UID
	Policies   []*NetworkPolicy // by namespace, name
	Cluster    []*ClusterPolicy // by name; the compiler orders them by tier and priority
	Nodes      []*Node          // by name; needed only while a ClusterPolicy has a peer with Nodes

	// Local are those of Pods that are on this node, so that nobody has to look for them among 100,000. Nil means that they
	// have not been picked.
	Local []*Pod

	// Gated are addresses of this node that some pod already has, while it is not known yet which policies select it.
	// Nothing passes to or from them.
	Gated []netip.Addr
}

// OnThisNode are those of Pods that are on this node.
func (w World) OnThisNode() []*Pod {
	if w.Local != nil {
		return w.Local
	}
	return slices.DeleteFunc(slices.Clone(w.Pods), func(p *Pod) bool { return !p.Local })
}

// At finds the pod that has an address, of several that claim it the one with the best claim; nil when no pod has it.
func (w World) At(a netip.Addr) *Pod {
	var best *Pod
	for _, p := range w.Pods {
		if a.IsValid() && p.member() && slices.Contains(p.Addrs[:], a) && (best == nil || rank(p, best) < 0) {
			best = p
		}
	}
	return best
}

// JudgesNode tells whether some policy may have a say over what a pod sends its own node: NetworkPolicies have none.
func (w World) JudgesNode() bool {
	return slices.ContainsFunc(w.Cluster, func(p *ClusterPolicy) bool { return len(p.Rules[Egress]) > 0 })
}

// Namespace is a namespace and its labels. A pod whose namespace is not in the World is treated as if it had no labels.
type Namespace struct {
	Name   string
	Labels Labels
}

// Phase is how far a pod is, as much of it as matters for its addresses.
type Phase uint8

// The phases. A pod that is being deleted stays what it is until its containers have ended: it may answer to the last.
const (
	Pending  Phase = iota // has, or will have, addresses; not all containers run
	Running               //
	Finished              // Succeeded or Failed: its addresses are free, so it is neither subject nor peer
)

// Pod is what policies can say about a pod.
type Pod struct {
	Namespace, Name, UID string

	Local       bool   // on this node, so its traffic is judged here
	HostNetwork bool   // shares its node's addresses: never subject, never matched by a selector
	Terminating bool   // loses an address against a pod that is not, and is otherwise the same as ever
	Phase       Phase  //
	Created     int64  // Unix time in seconds; of two pods that claim one address the running one has it, else the younger
	Labels      Labels //
	Addrs       [2]netip.Addr
	Ports       []NamedPort // the container ports that have a name, in the order of the spec
}

// NamedPort is a container port with a name. Two containers may use one name, for one protocol or for several.
type NamedPort struct {
	Name  string
	Proto Proto
	Port  uint16
}

// Node is a node as a peer.
type Node struct {
	Name   string
	Labels Labels
	Addrs  []netip.Addr // of status.addresses, what is an address
}

// Proto is the number of an IP protocol.
type Proto uint8

// The protocols that have ports. AnyProto stands for all three in a Port with a name, and for all protocols without.
const (
	AnyProto Proto = 0
	TCP      Proto = 6
	UDP      Proto = 17
	SCTP     Proto = 132
)

// member tells whether selectors can match the pod, and policies select it.
func (p *Pod) member() bool { return !p.HostNetwork && p.Phase != Finished }
