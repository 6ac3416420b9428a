package watch

import (
	"errors"
	"fmt"
	"reflect"

	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	policyapi "sigs.k8s.io/network-policy-api/apis/v1beta1"

	"github.com/weft-cni/weft/backend/policy"
)

// clusterPolicies makes values of ClusterNetworkPolicies. The definition in the cluster may be newer than this program,
// and have fields that it does not see. Then it fails closed, as the API asks: an Accept that is not understood matches
// nothing, and a Deny or a Pass denies everything.
func clusterPolicies() kind[policy.ClusterPolicy] {
	return kind[policy.ClusterPolicy]{
		key:  func(p *policy.ClusterPolicy) key { return key{name: p.Name} },
		uid:  func(p *policy.ClusterPolicy) string { return p.UID },
		same: func(a, b *policy.ClusterPolicy) bool { return reflect.DeepEqual(a, b) },
		parse: func(obj any) (parsed[policy.ClusterPolicy], bool) {
			cnp, ok := obj.(*policyapi.ClusterNetworkPolicy)
			if !ok {
				return parsed[policy.ClusterPolicy]{}, false
			}
			v, problems := parseClusterPolicy(cnp)
			return parsed[policy.ClusterPolicy]{key: key{name: v.Name}, uid: v.UID, value: v, problems: problems}, true
		},
	}
}

// errUnknown is what a field that this program does not know looks like: its object has none of those it knows.
var errUnknown = errors.New("nothing in it is known here; the ClusterNetworkPolicy definition may be newer than this agent")

func parseClusterPolicy(cnp *policyapi.ClusterNetworkPolicy) (*policy.ClusterPolicy, []string) {
	r := &reader{}
	p := &policy.ClusterPolicy{Name: cnp.Name, UID: string(cnp.UID), Priority: cnp.Spec.Priority}
	understood := true // else what is accepted may not be meant
	switch cnp.Spec.Tier {
	case policyapi.AdminTier:
	case policyapi.BaselineTier:
		p.Tier = policy.Baseline
	default:
		r.problem("tier %q is not known; its Deny and Pass rules are taken for Admin ones that deny", cnp.Spec.Tier)
		understood = false
	}
	var err error
	if p.Subject, err = podsOf(cnp.Spec.Subject.Namespaces, cnp.Spec.Subject.Pods); err != nil {
		r.problem("subject: %v; its Deny and Pass rules deny for every pod", err)
		p.Subject, understood = policy.Peer{Namespaces: &policy.Selector{}}, false
	}
	for i, in := range cnp.Spec.Ingress {
		c := clusterRule{at: fmt.Sprintf("ingress[%d]", i), name: in.Name, action: in.Action, protocols: in.Protocols}
		for _, from := range in.From {
			c.peers = append(c.peers, func() (policy.Peer, error) { return podsOf(from.Namespaces, from.Pods) })
		}
		p.Rules[policy.Ingress] = r.clusterRule(p.Rules[policy.Ingress], c, understood)
	}
	for i, in := range cnp.Spec.Egress {
		c := clusterRule{at: fmt.Sprintf("egress[%d]", i), name: in.Name, action: in.Action, protocols: in.Protocols}
		for _, to := range in.To {
			c.peers = append(c.peers, func() (policy.Peer, error) { return egressPeer(to) })
		}
		p.Rules[policy.Egress] = r.clusterRule(p.Rules[policy.Egress], c, understood)
	}
	return p, r.problems
}

// clusterRule is a rule of either direction.
type clusterRule struct {
	at, name  string
	action    policyapi.ClusterNetworkPolicyRuleAction
	peers     []func() (policy.Peer, error)
	protocols []policyapi.ClusterNetworkPolicyProtocol
}

// clusterRule appends a rule as it is, or what failing closed makes of it.
func (r *reader) clusterRule(to []policy.Rule, in clusterRule, understood bool) []policy.Rule {
	rule, err := in.read()
	switch {
	case err == nil && understood:
		return append(to, rule)
	case in.action == policyapi.ClusterNetworkPolicyRuleActionAccept:
		if err != nil {
			r.problem("%s: %v; it accepts nothing", in.at, err)
		}
		return to
	}
	if err != nil {
		r.problem("%s: %v; it denies everything", in.at, err)
	}
	return append(to, policy.Rule{Name: in.name, Action: policy.Deny, AllPeers: true, AllPorts: true})
}

func (in clusterRule) read() (policy.Rule, error) {
	rule := policy.Rule{Name: in.name, AllPorts: len(in.protocols) == 0}
	switch in.action {
	case policyapi.ClusterNetworkPolicyRuleActionAccept:
		rule.Action = policy.Accept
	case policyapi.ClusterNetworkPolicyRuleActionDeny:
		rule.Action = policy.Deny
	case policyapi.ClusterNetworkPolicyRuleActionPass:
		rule.Action = policy.Pass
	default:
		return rule, fmt.Errorf("action %q is not known", in.action)
	}
	if len(in.peers) == 0 {
		return rule, errors.New("no peers")
	}
	for i, read := range in.peers {
		peer, err := read()
		if err != nil {
			return rule, fmt.Errorf("peer %d: %w", i, err)
		}
		rule.Peers = append(rule.Peers, peer)
	}
	for i, p := range in.protocols {
		port, err := protocolOf(p)
		if err != nil {
			return rule, fmt.Errorf("protocol %d: %w", i, err)
		}
		rule.Ports = append(rule.Ports, port)
	}
	return rule, nil
}

// podsOf reads what subjects and peers have in common: exactly one of the two.
func podsOf(namespaces *metav1.LabelSelector, pods *policyapi.NamespacedPod) (policy.Peer, error) {
	var out policy.Peer
	switch {
	case namespaces != nil && pods != nil:
		return out, errors.New("both namespaces and pods")
	case namespaces == nil && pods == nil:
		return out, errUnknown
	case pods != nil:
		namespaces = &pods.NamespaceSelector
		var err error
		if out.Pods, err = policy.NewSelector(pods.PodSelector); err != nil {
			return out, err
		}
	}
	s, err := policy.NewSelector(*namespaces)
	out.Namespaces = &s
	return out, err
}

func egressPeer(in policyapi.ClusterNetworkPolicyEgressPeer) (policy.Peer, error) {
	var out policy.Peer
	set := 0
	for _, has := range []bool{in.Namespaces != nil, in.Pods != nil, in.Nodes != nil, len(in.Networks) > 0, len(in.DomainNames) > 0} {
		if has {
			set++
		}
	}
	switch {
	case set > 1:
		return out, errors.New("more than one kind of peer in one")
	case len(in.DomainNames) > 0:
		return out, errors.New("domainNames are not supported")
	case in.Nodes != nil:
		s, err := policy.NewSelector(*in.Nodes)
		out.Nodes = &s
		return out, err
	case len(in.Networks) > 0:
		for _, text := range in.Networks {
			cidr, err := parseCIDR(string(text))
			if err != nil {
				return out, fmt.Errorf("networks: %w", err)
			}
			out.Networks = append(out.Networks, policy.Network{CIDR: cidr})
		}
		return out, nil
	}
	return podsOf(in.Namespaces, in.Pods)
}

func protocolOf(in policyapi.ClusterNetworkPolicyProtocol) (policy.Port, error) {
	var out policy.Port
	var port *policyapi.Port
	set := 0
	if in.TCP != nil {
		out.Proto, port, set = policy.TCP, in.TCP.DestinationPort, set+1
	}
	if in.UDP != nil {
		out.Proto, port, set = policy.UDP, in.UDP.DestinationPort, set+1
	}
	if in.SCTP != nil {
		out.Proto, port, set = policy.SCTP, in.SCTP.DestinationPort, set+1
	}
	if in.DestinationNamedPort != "" {
		set++
	}
	switch {
	case set > 1:
		return out, errors.New("more than one protocol in one")
	case in.DestinationNamedPort != "":
		return policy.Port{Name: in.DestinationNamedPort}, nil
	case set == 0 || port == nil || port.Number == 0 && port.Range == nil:
		return out, errUnknown
	case port.Number != 0 && port.Range != nil:
		return out, errors.New("both number and range")
	case port.Range != nil:
		return withRange(out, port.Range.Start, port.Range.End)
	}
	return withRange(out, port.Number, port.Number)
}

// wantsNodes tells whether a policy has a peer with Nodes.
func wantsNodes(p *policy.ClusterPolicy) bool {
	for _, rules := range p.Rules {
		for _, rule := range rules {
			for _, peer := range rule.Peers {
				if peer.Nodes != nil {
					return true
				}
			}
		}
	}
	return false
}
