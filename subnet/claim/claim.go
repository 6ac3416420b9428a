package claim

import (
	"cmp"
	"net/netip"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// Node is what is read of a Node object.
type Node struct {
	Name, UID   string
	Created     time.Time // in UTC
	Annotations map[string]string
	PodCIDR     string
	PodCIDRs    []string
	Addresses   []Address
	// NetworkUnavailable is the status of that condition, "" when there is none.
	NetworkUnavailable string
}

// Address is one of status.addresses.
type Address struct {
	Type, Address string // as the API has them
}

// The types of addresses that are read.
const (
	InternalIP = "InternalIP"
	ExternalIP = "ExternalIP"
)

// Rules is what a Node is read by.
type Rules struct {
	Prefix   Prefix
	Networks [2]netip.Prefix // per family; invalid when the family is off
	WGPorts  [2]uint16       // where a peer listens by WireGuard that does not say; 0 means flannel's defaults
}

// flannelPorts are the UDP ports of WireGuard that flannel has when nobody names others.
var flannelPorts = [2]uint16{51820, 51821}

// Claim is what one Node says about itself. Nothing in it has been compared with other Nodes yet.
type Claim struct {
	Peer     subnet.Peer      // holds the endpoints that can be used
	Managed  bool             // the Node takes part: kube-subnet-manager is "true"
	Bad      [2]bool          // the Node means to take part in the family, but its data cannot be used
	Addrs    []netip.Addr     // its InternalIPs and ExternalIPs
	Told     [2]bool          // an administrator's overwrite annotation says the public IP, which need not be among Addrs
	Problems []subnet.Problem // about this Node
}

// Parse reads a Node as its peers do. Annotations are hostile input: whatever they hold, the result is a claim with fixed-size
// values and a problem for each family that cannot be used; a bad half does not harm the other one. Whether we can reach the
// node by what it speaks is not judged here, only that it speaks something that there is.
func Parse(node Node, rules Rules) Claim {
	c := Claim{Peer: subnet.Peer{
		Name: node.Name, UID: node.UID, Created: node.Created,
	}, Addrs: nodeAddrs(node)}
	get := func(key string) (string, bool) { v, ok := node.Annotations[rules.Prefix.Key(key)]; return v, ok }
	if managed, _ := get(KeyManaged); managed != "true" {
		return c
	}
	c.Managed = true
	for f, port := range flannelPorts {
		rules.WGPorts[f] = cmp.Or(rules.WGPorts[f], port)
	}
	kind := backendType(get(KeyBackendType))
	text, _ := get(KeyBackendAlso)
	also, alsoErr := parseAlso(text, kind, rules.WGPorts)
	c.Peer.BackendType, c.Peer.Also = Limit(kind, 40), also.Also
	if alsoErr != nil {
		c.problem(ReasonBadBackendAlso, "annotation %s: %v", KeyBackendAlso, alsoErr)
	}
	if subnet.KindsOf(kind) == 0 && also.Also == 0 {
		c.problem(ReasonOtherBackend, "backend-type is %.40q, which this release does not have: its pods cannot be reached; "+
			"run one backend in the whole cluster", kind)
		return c
	}
	r := reader{Claim: &c, rules: rules, get: get, ear: ear{Speech: also, ports: rules.WGPorts}}
	r.read(node)
	return c
}
