package policy

import (
	"cmp"
	"slices"
	"strings"
)

// profile is the policies that have a say over a pod in one direction, in the order of the API: what the Admin tier does not
// decide goes to the NetworkPolicies, if any isolates the pod, and else to the Baseline tier. Pods with equal profiles share
// their chains.
type profile struct {
	admin    []*ClusterPolicy
	isolated []*NetworkPolicy
	baseline []*ClusterPolicy // empty when isolated is not
}

func (p profile) empty() bool { return len(p.admin)+len(p.isolated)+len(p.baseline) == 0 }

// toOwnNode is what has a say over packets to the pod's own node: NetworkPolicies always allow them, ClusterPolicies may not.
func (p profile) toOwnNode() profile { return profile{admin: p.admin, baseline: p.baseline} }

// equal tells whether two pods have the same policies.
func (p profile) equal(q profile) bool {
	return slices.Equal(p.admin, q.admin) && slices.Equal(p.isolated, q.isolated) && slices.Equal(p.baseline, q.baseline)
}

// profiles finds a pod's policies in both directions. Cluster has to be in the order of precedence.
func profiles(p *Pod, labels Labels, w World, cluster []*ClusterPolicy) [2]profile {
	var out [2]profile
	first, _ := slices.BinarySearchFunc(w.Policies, p.Namespace, func(np *NetworkPolicy, ns string) int {
		return strings.Compare(np.Namespace, ns)
	})
	for _, np := range w.Policies[first:] {
		if np.Namespace != p.Namespace {
			break
		}
		if !np.Pods.Matches(p.Labels) {
			continue
		}
		for d := range out {
			if np.Isolates[d] {
				out[d].isolated = append(out[d].isolated, np)
			}
		}
	}
	for _, cp := range cluster {
		if !cp.selects(p, labels) {
			continue
		}
		for d := range out {
			switch {
			case len(cp.Rules[d]) == 0:
			case cp.Tier == Admin:
				out[d].admin = append(out[d].admin, cp)
			case len(out[d].isolated) == 0:
				out[d].baseline = append(out[d].baseline, cp)
			}
		}
	}
	return out
}

// selects tells whether the policy's subject has the pod.
func (p *ClusterPolicy) selects(pod *Pod, labels Labels) bool {
	g := group{peer: p.Subject}
	return g.admits(pod.Namespace, labels) && g.peer.Pods.Matches(pod.Labels)
}

// precedence sorts ClusterPolicies as they are evaluated.
func precedence(in []*ClusterPolicy) []*ClusterPolicy {
	out := slices.Clone(in)
	slices.SortStableFunc(out, func(a, b *ClusterPolicy) int {
		return cmp.Or(cmp.Compare(a.Tier, b.Tier), cmp.Compare(a.Priority, b.Priority), strings.Compare(a.Name, b.Name))
	})
	return out
}

// clusterKeys names policies for a chain's name.
func clusterKeys(in []*ClusterPolicy) []string {
	out := make([]string, len(in))
	for i, p := range in {
		out[i] = p.Key()
	}
	return out
}

// policyKeys is clusterKeys for NetworkPolicies.
func policyKeys(in []*NetworkPolicy) []string {
	out := make([]string, len(in))
	for i, p := range in {
		out[i] = p.Key()
	}
	return out
}
