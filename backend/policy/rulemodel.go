package policy

import (
	"net/netip"
	"strings"
)

// NetworkPolicy is a networking.k8s.io/v1 NetworkPolicy. All its rules are allowances, and their order means nothing.
type NetworkPolicy struct {
	Namespace, Name string
	UID             string
	Pods            Selector // whom it selects, in its own namespace

	// Isolates tells in which directions it isolates the pods it selects (policyTypes, with the API's default filled in).
	// Rules of a direction that is not isolated mean nothing.
	Isolates [2]bool
	Rules    [2][]Rule // by Direction; each with the action Accept
}

// ClusterPolicy is a policy.networking.k8s.io/v1beta1 ClusterNetworkPolicy.
type ClusterPolicy struct {
	Name     string
	UID      string
	Tier     Tier
	Priority int32 // lower goes first; equal ones go by name
	Subject  Peer  // Namespaces and Pods of it
	Rules    [2][]Rule
}

// Direction is a pod's view of a packet. It indexes the per-direction arrays.
type Direction uint8

// The directions.
const (
	Ingress Direction = iota
	Egress
)

// String is "ingress" or "egress".
func (d Direction) String() string { return [2]string{"ingress", "egress"}[d] }

// Tier is where a ClusterPolicy stands: before or behind the NetworkPolicies.
type Tier uint8

// The tiers of ClusterPolicies.
const (
	Admin Tier = iota
	Baseline
)

// Action is what a rule does with the packets that it matches.
type Action uint8

// The actions. A NetworkPolicy knows only Accept.
const (
	Accept Action = iota
	Deny
	Pass // skips the rest of the tier
)

// Rule matches packets by the other end and by the destination port. What the API asks of an implementation that does not
// understand a rule is done by whoever parses it: an Accept that is not understood is left out, a Deny or a Pass becomes a
// Deny with AllPeers.
type Rule struct {
	Name   string // of the rule, may be empty; it stands in counters and traces only
	Action Action

	AllPeers bool   // the rule names no peers: whoever is at the other end, inside the cluster or not
	Peers    []Peer // else one of them; without any, the rule matches nothing

	AllPorts bool   // the rule names no ports: every protocol, ICMP too
	Ports    []Port // else one of them; without any, the rule matches nothing
}

// Peer matches the other end. Exactly one of the three kinds is used: Pods in Namespaces or in Namespace, Nodes, Networks.
type Peer struct {
	Namespace  string    // the one namespace whose pods are meant, when Namespaces is nil
	Namespaces *Selector // pods of all namespaces with such labels
	Pods       Selector  // of these, the pods with such labels

	Nodes    *Selector // addresses of the nodes with such labels
	Networks []Network // addresses, whoever has them
}

// Network is a prefix less some others.
type Network struct {
	CIDR   netip.Prefix
	Except []netip.Prefix
}

// Port matches destination ports. The zero value is no port at all: Proto is always given but with a Name.
type Port struct {
	Proto Proto
	Name  string // of a container port of the destination pod; Proto AnyProto takes the name in every protocol

	// First and Last bound the numbers, both included; zero and zero mean every port of the protocol.
	First, Last uint16
}

// Key is the policy's name in counters and traces: "namespace/name".
func (p *NetworkPolicy) Key() string { return p.Namespace + "/" + p.Name }

// Key is the policy's name in counters and traces: the bare name, which no NetworkPolicy's key can be.
func (p *ClusterPolicy) Key() string { return p.Name }

// String is "80/tcp", "8000-8080/udp", "http/tcp", "tcp".
func (p Port) String() string {
	proto := p.Proto.String()
	switch {
	case p.Name != "":
		return p.Name + "/" + proto
	case p.First == 0 && p.Last == 0:
		return proto
	}
	return portRange{p.First, p.Last}.String() + "/" + proto
}

// String is the name that nft and the API use, in lower case; "any" for AnyProto.
func (p Proto) String() string {
	switch p {
	case TCP:
		return "tcp"
	case UDP:
		return "udp"
	case SCTP:
		return "sctp"
	}
	return "any"
}

// ParseProto reads the API's "TCP", "UDP" or "SCTP".
func ParseProto(s string) (Proto, bool) {
	for _, p := range []Proto{TCP, UDP, SCTP} {
		if strings.EqualFold(s, p.String()) {
			return p, true
		}
	}
	return AnyProto, false
}
