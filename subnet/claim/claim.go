package claim

import (
	"cmp"
	"errors"
	"fmt"
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
	c.read(node, rules, also, get)
	return c
}

// getter looks up an annotation by its key without the prefix.
type getter func(key string) (string, bool)

// read takes in the families, and what both have in common.
func (c *Claim) read(node Node, rules Rules, speech Speech, get getter) {
	cidrs, cidrErrs := podCIDRs(node)
	port, portErr := backendPort(get(KeyBackendPort))
	if c.Peer.BackendType == subnet.VXLAN {
		speech.Port = port
	} else {
		portErr = nil // it says nothing then
	}
	for _, f := range subnet.Families() {
		switch err := cidrErrs[f]; {
		case !rules.Networks[f].IsValid():
		case err != nil:
			c.Bad[f] = true
			c.problem(ReasonBadPodCIDR, "%v", err)
		default:
			speech = c.family(f, rules, cidrs[f], speech, get)
		}
	}
	c.Peer.VNI, c.Peer.Port, c.Peer.Key, c.Peer.WGPorts = speech.VNI, speech.Port, speech.Key, speech.WGPorts
	if portErr != nil {
		c.spoil(ReasonBadBackendPort, rules, portErr)
	}
	if c.Peer.Endpoints == [2]subnet.Endpoint{} && len(c.Problems) == 0 {
		c.spoil(ReasonBadPodCIDR, rules, errors.New("it has no pod CIDR, or announces no address, in a family that is on"))
	}
	if len(c.Problems) == 0 {
		c.Problems = MissingFamily(c.Peer.Name, cidrs, rules)
		c.unheard(rules)
	}
}

// unheard tells of a family that the node has a range of and does not announce (S-02); the other one works.
func (c *Claim) unheard(rules Rules) {
	for _, f := range subnet.Families() {
		if rules.Networks[f].IsValid() && c.Peer.Endpoints[f].IsZero() && len(c.Problems) == 0 {
			c.problem(ReasonNoPublicIP, "%v enabled but Node %s announces no %v address: its pods are not reached by it; "+
				"its underlay has none, or its agent has not read net-conf.json since", f, c.Peer.Name, f)
		}
	}
}

// MissingFamily tells of a family that is on and that a Node has no range of, while it has one of the other (S-02).
func MissingFamily(node string, cidrs [2]netip.Prefix, rules Rules) []subnet.Problem {
	for _, f := range subnet.Families() {
		if rules.Networks[f].IsValid() && rules.Networks[1-f].IsValid() && !cidrs[f].IsValid() && cidrs[1-f].IsValid() {
			return []subnet.Problem{{Node: node, Reason: ReasonNoPodCIDR, Text: fmt.Sprintf("%v enabled but Node %s has no %v podCIDR: "+
				"its pods have none of the family; a Node that is re-created gets one", f, node, f)}}
		}
	}
	return nil
}

// family reads one family's half of a Node, and returns the speech with what it adds. A half of which nothing is there is no
// problem: then the Node has no part in the family, as in a cluster on its way to dual-stack.
func (c *Claim) family(f subnet.Family, rules Rules, cidr netip.Prefix, speech Speech, get getter) Speech {
	keys := KeysOf(f)
	ip, hasIP := get(keys.PublicIP)
	data, hasData := get(keys.BackendData)
	if ip == noAddress && c.Peer.BackendType != subnet.VXLAN {
		hasIP, hasData = false, false
	}
	if !cidr.IsValid() || !hasIP && !hasData && rules.Networks[1-f].IsValid() {
		return speech
	}
	if !subnet.Contains(rules.Networks[f], cidr) {
		c.problem(ReasonOutsideNetwork, "pod CIDR %s is outside the Network %s: its pods are not reached over the overlay; "+
			"make Network cover it, or re-create the Node", cidr, rules.Networks[f])
		return speech
	}
	addr, err := publicIP(f, ip)
	if err != nil {
		c.bad(f, ReasonBadPublicIP, keys.PublicIP, err)
		return speech
	}
	if c.Peer.BackendType == subnet.WireGuard && (data == "" || data == noData) {
		data, _ = get(KeysOf(1 - f).BackendData) // the modes with one device have one key and one port for both families
	}
	if err := speech.hear(c.Peer.BackendType, f, data, !c.Peer.Endpoints[1-f].IsZero(), rules.WGPorts); err != nil {
		c.bad(f, ReasonBadBackendData, keys.BackendData, err)
		return speech
	}
	overwrite, _ := get(keys.Overwrite)
	c.Told[f] = overwrite != "" && overwrite == ip
	c.Peer.Endpoints[f] = subnet.Endpoint{PodCIDR: cidr, PublicIP: addr, MAC: speech.MACs[f]}
	return speech
}

// bad files a problem with an annotation of one family.
func (c *Claim) bad(f subnet.Family, reason, key string, err error) {
	c.Bad[f] = true
	c.problem(reason, "annotation %s: %v", key, err)
}

// spoil files a problem that concerns all families.
func (c *Claim) spoil(reason string, rules Rules, err error) {
	c.Peer.Endpoints, c.Peer.VNI = [2]subnet.Endpoint{}, 0
	c.Peer.Key, c.Peer.WGPorts = subnet.Key{}, [2]uint16{}
	for _, f := range subnet.Families() {
		c.Bad[f] = rules.Networks[f].IsValid()
	}
	c.problem(reason, "%v", err)
}

func (c *Claim) problem(reason, format string, args ...any) {
	c.Problems = append(c.Problems, subnet.Problem{Node: c.Peer.Name, Reason: reason, Text: fmt.Sprintf(format, args...)})
}
