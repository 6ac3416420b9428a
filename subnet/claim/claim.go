package claim

import (
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
	Prefix      Prefix
	BackendType string          // the type that we speak: "vxlan"
	Networks    [2]netip.Prefix // per family; invalid when the family is off
}

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
// values and a problem for each family that cannot be used; a bad half does not harm the other one.
func Parse(node Node, rules Rules) Claim {
	c := Claim{Peer: subnet.Peer{
		Name: node.Name, UID: node.UID, Created: node.Created,
	}, Addrs: nodeAddrs(node)}
	get := func(key string) (string, bool) { v, ok := node.Annotations[rules.Prefix.Key(key)]; return v, ok }
	if managed, _ := get(KeyManaged); managed != "true" {
		return c
	}
	c.Managed = true
	c.Peer.BackendType, _ = get(KeyBackendType)
	if c.Peer.BackendType != rules.BackendType {
		c.problem(ReasonOtherBackend, "backend-type is %.40q and not %q: pods of the two kinds cannot reach each other; "+
			"run one backend in the whole cluster", c.Peer.BackendType, rules.BackendType)
		c.Peer.BackendType = Limit(c.Peer.BackendType, 40)
		return c
	}
	cidrs, cidrErr := podCIDRs(node)
	port, portErr := backendPort(get(KeyBackendPort))
	c.Peer.Port = port
	for _, f := range subnet.Families() {
		if rules.Networks[f].IsValid() {
			c.family(f, rules, cidrs[f], get)
		}
	}
	if cidrErr != nil {
		c.spoil(ReasonBadPodCIDR, rules, cidrErr)
	}
	if portErr != nil {
		c.spoil(ReasonBadBackendPort, rules, portErr)
	}
	if c.Peer.Endpoints == [2]subnet.Endpoint{} && len(c.Problems) == 0 {
		c.spoil(ReasonBadPodCIDR, rules, errors.New("it has no pod CIDR, or announces no address, in a family that is on"))
	}
	return c
}

// family reads one family's half of a Node. A half of which nothing is there is no problem: then the Node has no part
// in the family, as in a cluster on its way to dual-stack.
func (c *Claim) family(f subnet.Family, rules Rules, cidr netip.Prefix, get func(string) (string, bool)) {
	keys := KeysOf(f)
	ip, hasIP := get(keys.PublicIP)
	data, hasData := get(keys.BackendData)
	if !cidr.IsValid() || !hasIP && !hasData && rules.Networks[1-f].IsValid() {
		return
	}
	if !subnet.Contains(rules.Networks[f], cidr) {
		c.problem(ReasonOutsideNetwork, "pod CIDR %s is outside the Network %s: its pods are not reached over the overlay; "+
			"make Network cover it, or re-create the Node", cidr, rules.Networks[f])
		return
	}
	addr, err := publicIP(f, ip)
	if err != nil {
		c.bad(f, ReasonBadPublicIP, keys.PublicIP, err)
		return
	}
	vni, mac, err := vxlanData(data)
	if err != nil && rules.BackendType == "vxlan" {
		c.bad(f, ReasonBadBackendData, keys.BackendData, err)
		return
	}
	if other := c.Peer.Endpoints[1-f]; !other.IsZero() && vni != c.Peer.VNI {
		c.bad(f, ReasonBadBackendData, keys.BackendData, fmt.Errorf("VNI is %d here and %d in the other family", vni, c.Peer.VNI))
		return
	}
	overwrite, _ := get(keys.Overwrite)
	c.Told[f] = overwrite != "" && overwrite == ip
	c.Peer.VNI = vni
	c.Peer.Endpoints[f] = subnet.Endpoint{PodCIDR: cidr, PublicIP: addr, MAC: mac}
}

// bad files a problem with an annotation of one family.
func (c *Claim) bad(f subnet.Family, reason, key string, err error) {
	c.Bad[f] = true
	c.problem(reason, "annotation %s: %v", key, err)
}

// spoil files a problem that concerns all families.
func (c *Claim) spoil(reason string, rules Rules, err error) {
	c.Peer.Endpoints, c.Peer.VNI = [2]subnet.Endpoint{}, 0
	for _, f := range subnet.Families() {
		c.Bad[f] = rules.Networks[f].IsValid()
	}
	c.problem(reason, "%v", err)
}

func (c *Claim) problem(reason, format string, args ...any) {
	c.Problems = append(c.Problems, subnet.Problem{Node: c.Peer.Name, Reason: reason, Text: fmt.Sprintf(format, args...)})
}
