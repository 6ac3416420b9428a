package kube

import (
	corev1 "k8s.io/api/core/v1"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/claim"
)

// What is read of Nodes, and how, is said in package claim.
type (
	// Rules is what a Node is read by.
	Rules = claim.Rules
	// Claim is what one Node says about itself.
	Claim = claim.Claim
	// Prefix is a complete annotation prefix.
	Prefix = claim.Prefix
)

// ParsePeer reads a Node as its peers do.
func ParsePeer(node *corev1.Node, rules Rules) Claim { return claim.Parse(plain(node), rules) }

// ParseSelf reads the own Node. A value that cannot be used is left out and named in a problem.
func ParseSelf(node *corev1.Node, prefix Prefix) (subnet.Self, []subnet.Problem) {
	return claim.ParseSelf(plain(node), prefix)
}

// plain is a Node without the types of the API.
func plain(node *corev1.Node) claim.Node {
	out := claim.Node{
		Name: node.Name, UID: string(node.UID), Created: node.CreationTimestamp.UTC(), Annotations: node.Annotations,
		PodCIDR: node.Spec.PodCIDR, PodCIDRs: node.Spec.PodCIDRs,
	}
	for _, a := range node.Status.Addresses {
		out.Addresses = append(out.Addresses, claim.Address{Type: string(a.Type), Address: a.Address})
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			out.NetworkUnavailable = string(c.Status)
		}
	}
	return out
}

// slim copies what ParseSelf and ParsePeer read and lets go of the rest: a Node is up to 60 KB, of which we use some
// hundred bytes.
func slim(node *corev1.Node, prefix Prefix) *corev1.Node {
	out := &corev1.Node{}
	out.Name, out.UID, out.ResourceVersion = node.Name, node.UID, node.ResourceVersion
	out.CreationTimestamp = node.CreationTimestamp
	all, _ := claim.AllKeys()
	for _, key := range all {
		if v, ok := node.Annotations[prefix.Key(key)]; ok {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[prefix.Key(key)] = v
		}
	}
	out.Spec.PodCIDR, out.Spec.PodCIDRs = node.Spec.PodCIDR, node.Spec.PodCIDRs
	out.Status.Addresses = node.Status.Addresses
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			out.Status.Conditions = append(out.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
		}
	}
	return out
}
