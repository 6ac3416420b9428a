package watch

import (
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weft-cni/weft/backend/policy"
)

// policies makes values of NetworkPolicies. The API server lets through little that cannot be understood; what there is
// can only allow, so that it is left out, and the policy isolates all the same.
func policies() kind[policy.NetworkPolicy] {
	return kind[policy.NetworkPolicy]{
		key: func(p *policy.NetworkPolicy) key { return key{p.Namespace, p.Name} },
		uid: func(p *policy.NetworkPolicy) string { return p.UID },
		// A policy is deep, and seldom written without being changed.
		same: func(a, b *policy.NetworkPolicy) bool { return reflect.DeepEqual(a, b) },
		parse: func(obj any) (parsed[policy.NetworkPolicy], bool) {
			np, ok := obj.(*networkingv1.NetworkPolicy)
			if !ok {
				return parsed[policy.NetworkPolicy]{}, false
			}
			v, problems := parsePolicy(np)
			return parsed[policy.NetworkPolicy]{key: key{v.Namespace, v.Name}, uid: v.UID, value: v, problems: problems}, true
		},
	}
}

// reader reads one policy and collects what is wrong with it.
type reader struct {
	namespace string
	problems  []string
}

func (r *reader) problem(format string, args ...any) {
	r.problems = append(r.problems, fmt.Sprintf(format, args...))
}

func parsePolicy(np *networkingv1.NetworkPolicy) (*policy.NetworkPolicy, []string) {
	r := &reader{namespace: np.Namespace}
	p := &policy.NetworkPolicy{Namespace: np.Namespace, Name: np.Name, UID: string(np.UID)}
	var err error
	if p.Pods, err = policy.NewSelector(np.Spec.PodSelector); err != nil {
		r.problem("podSelector: %v; it isolates every pod of its namespace", err)
	}
	p.Isolates = r.isolates(np.Spec)
	for i, in := range np.Spec.Ingress {
		if rule, ok := r.rule(fmt.Sprintf("ingress[%d]", i), in.From, in.Ports); ok {
			p.Rules[policy.Ingress] = append(p.Rules[policy.Ingress], rule)
		}
	}
	for i, out := range np.Spec.Egress {
		if rule, ok := r.rule(fmt.Sprintf("egress[%d]", i), out.To, out.Ports); ok {
			p.Rules[policy.Egress] = append(p.Rules[policy.Egress], rule)
		}
	}
	return p, r.problems
}

// isolates fills in what the API leaves to the reader: without policyTypes that is ingress, and egress if there are
// rules for it.
func (r *reader) isolates(spec networkingv1.NetworkPolicySpec) (out [2]bool) {
	if len(spec.PolicyTypes) == 0 {
		return [2]bool{policy.Ingress: true, policy.Egress: len(spec.Egress) > 0}
	}
	for _, t := range spec.PolicyTypes {
		switch t {
		case networkingv1.PolicyTypeIngress:
			out[policy.Ingress] = true
		case networkingv1.PolicyTypeEgress:
			out[policy.Egress] = true
		default:
			r.problem("policyTypes: %q is not known; it is taken for both directions", t)
			out = [2]bool{true, true}
		}
	}
	return out
}

// rule reads one rule; it is false when nothing of it is left.
func (r *reader) rule(at string, peers []networkingv1.NetworkPolicyPeer, ports []networkingv1.NetworkPolicyPort) (policy.Rule, bool) {
	rule := policy.Rule{AllPeers: len(peers) == 0, AllPorts: len(ports) == 0}
	for i, in := range peers {
		peer, err := r.peer(in)
		if err != nil {
			r.problem("%s peer %d: %v; it allows nobody", at, i, err)
			continue
		}
		rule.Peers = append(rule.Peers, peer)
	}
	for i, in := range ports {
		port, err := portOf(in)
		if err != nil {
			r.problem("%s port %d: %v; it allows nothing", at, i, err)
			continue
		}
		rule.Ports = append(rule.Ports, port)
	}
	return rule, (rule.AllPeers || len(rule.Peers) > 0) && (rule.AllPorts || len(rule.Ports) > 0)
}

func (r *reader) peer(in networkingv1.NetworkPolicyPeer) (policy.Peer, error) {
	var out policy.Peer
	var err error
	switch {
	case in.IPBlock != nil && (in.PodSelector != nil || in.NamespaceSelector != nil):
		return out, fmt.Errorf("ipBlock together with a selector")
	case in.IPBlock != nil:
		network, err := networkOf(*in.IPBlock)
		out.Networks = []policy.Network{network}
		return out, err
	case in.PodSelector == nil && in.NamespaceSelector == nil:
		return out, fmt.Errorf("none of podSelector, namespaceSelector and ipBlock")
	}
	if in.PodSelector != nil {
		if out.Pods, err = policy.NewSelector(*in.PodSelector); err != nil {
			return out, err
		}
	}
	if in.NamespaceSelector == nil {
		out.Namespace = r.namespace
		return out, nil
	}
	s, err := policy.NewSelector(*in.NamespaceSelector)
	out.Namespaces = &s
	return out, err
}

// networkOf reads an ipBlock. An exception that cannot be read takes the block with it: it would allow too much.
func networkOf(in networkingv1.IPBlock) (policy.Network, error) {
	var n policy.Network
	var err error
	if n.CIDR, err = parseCIDR(in.CIDR); err != nil {
		return n, fmt.Errorf("ipBlock: %w", err)
	}
	for _, text := range in.Except {
		p, err := parseCIDR(text)
		if err != nil {
			return n, fmt.Errorf("ipBlock: except: %w", err)
		}
		n.Except = append(n.Except, p)
	}
	slices.SortFunc(n.Except, netip.Prefix.Compare)
	return n, nil
}

// portOf reads a port. All fields may be absent: that is every TCP port.
func portOf(in networkingv1.NetworkPolicyPort) (policy.Port, error) {
	out := policy.Port{Proto: policy.TCP}
	if in.Protocol != nil {
		var ok bool
		if out.Proto, ok = parseProto(*in.Protocol); !ok {
			return out, fmt.Errorf("protocol %q is not known", *in.Protocol)
		}
	}
	switch {
	case in.Port == nil && in.EndPort != nil:
		return out, fmt.Errorf("endPort without port")
	case in.Port == nil:
		return out, nil
	case in.Port.Type == intstr.String:
		out.Name = strings.Clone(in.Port.StrVal)
		if in.EndPort != nil || out.Name == "" {
			return out, fmt.Errorf("port %q with endPort %v", in.Port.StrVal, in.EndPort)
		}
		return out, nil
	}
	last := in.Port.IntVal
	if in.EndPort != nil {
		last = *in.EndPort
	}
	return withRange(out, in.Port.IntVal, last)
}

func withRange(p policy.Port, first, last int32) (policy.Port, error) {
	if first < 1 || last < first || last > 65535 {
		return p, fmt.Errorf("ports %d to %d are no range within 1 to 65535", first, last)
	}
	p.First, p.Last = uint16(first), uint16(last)
	return p, nil
}

// parseProto reads a protocol as the API writes it.
func parseProto(p corev1.Protocol) (policy.Proto, bool) {
	switch p {
	case corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP:
		return policy.ParseProto(string(p))
	}
	return policy.AnyProto, false
}
