package kube

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weft-cni/weft/subnet"
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
	Problems []subnet.Problem // about this Node
}

// ParsePeer reads a Node. Annotations are hostile input: whatever they hold, the result is a claim with fixed-size
// values and a problem for each family that cannot be used; a bad half does not harm the other one.
func ParsePeer(node *corev1.Node, rules Rules) Claim {
	c := Claim{Peer: subnet.Peer{
		Name: node.Name, UID: string(node.UID), Created: node.CreationTimestamp.UTC(),
	}, Addrs: nodeAddrs(node)}
	get := func(key string) (string, bool) { v, ok := node.Annotations[rules.Prefix.Key(key)]; return v, ok }
	if managed, _ := get(keyManaged); managed != "true" {
		return c
	}
	c.Managed = true
	c.Peer.BackendType, _ = get(keyBackendType)
	if c.Peer.BackendType != rules.BackendType {
		c.problem(ReasonOtherBackend, "backend-type is %.40q and not %q: pods of the two kinds cannot reach each other; "+
			"run one backend in the whole cluster", c.Peer.BackendType, rules.BackendType)
		c.Peer.BackendType = limit(c.Peer.BackendType, 40)
		return c
	}
	cidrs, cidrErr := podCIDRs(node)
	port, portErr := backendPort(get(keyBackendPort))
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
	keys := keysOf(f)
	ip, hasIP := get(keys.publicIP)
	data, hasData := get(keys.backendData)
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
		c.bad(f, ReasonBadPublicIP, keys.publicIP, err)
		return
	}
	vni, mac, err := vxlanData(data)
	if err != nil && rules.BackendType == "vxlan" {
		c.bad(f, ReasonBadBackendData, keys.backendData, err)
		return
	}
	if other := c.Peer.Endpoints[1-f]; !other.IsZero() && vni != c.Peer.VNI {
		c.bad(f, ReasonBadBackendData, keys.backendData, fmt.Errorf("VNI is %d here and %d in the other family", vni, c.Peer.VNI))
		return
	}
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

// podCIDRs reads spec.podCIDRs, or spec.podCIDR when that is empty: at most one masked range of each family.
func podCIDRs(node *corev1.Node) ([2]netip.Prefix, error) {
	list := node.Spec.PodCIDRs
	if len(list) == 0 && node.Spec.PodCIDR != "" {
		list = []string{node.Spec.PodCIDR}
	}
	var out [2]netip.Prefix
	if len(list) > 2 {
		return out, fmt.Errorf("it has %d pod CIDRs: want one of each family", len(list))
	}
	for _, s := range list {
		p, err := netip.ParsePrefix(s)
		if err != nil || p.Addr().Is4In6() {
			return [2]netip.Prefix{}, fmt.Errorf("pod CIDR %.60q is not a CIDR", s)
		}
		if p != p.Masked() {
			return [2]netip.Prefix{}, fmt.Errorf("pod CIDR %s has host bits set: re-create the Node with %s", p, p.Masked())
		}
		if p.Bits() > p.Addr().BitLen()-2 {
			return [2]netip.Prefix{}, fmt.Errorf("pod CIDR %s has no room for a pod", p)
		}
		f := subnet.FamilyOf(p.Addr())
		if out[f].IsValid() {
			return [2]netip.Prefix{}, fmt.Errorf("it has two %v pod CIDRs, %s and %s: want one of each family", f, out[f], p)
		}
		out[f] = p
	}
	return out, nil
}

func publicIP(f subnet.Family, s string) (netip.Addr, error) {
	if s == "" {
		return netip.Addr{}, errors.New("is missing")
	}
	a, err := netip.ParseAddr(s)
	if err != nil {
		return netip.Addr{}, fmt.Errorf("%.60q is not an address", s)
	}
	return a, subnet.CheckPublicIP(f, a)
}

// vxlanData reads backend-data as JSON: order, blanks and further keys do not matter.
func vxlanData(s string) (uint32, subnet.MAC, error) {
	if s == "" {
		return 0, subnet.MAC{}, errors.New("is missing")
	}
	var data struct {
		VNI     *uint32
		VtepMAC string
	}
	if err := json.Unmarshal([]byte(s), &data); err != nil {
		return 0, subnet.MAC{}, fmt.Errorf(`%.80q is not like {"VNI":1,"VtepMAC":"0a:1b:2c:3d:4e:5f"}`, s)
	}
	if data.VNI == nil || *data.VNI >= 1<<24 {
		return 0, subnet.MAC{}, fmt.Errorf("%.80q has no VNI from 0 to 16777215", s)
	}
	mac, err := subnet.ParseMAC(limit(data.VtepMAC, 60))
	return *data.VNI, mac, err
}

func backendPort(s string, there bool) (uint16, error) {
	if !there {
		return 0, nil
	}
	n, err := strconv.ParseUint(s, 10, 16)
	if err != nil || n == 0 {
		return 0, fmt.Errorf("annotation %s: %.40q is not a port from 1 to 65535", keyBackendPort, s)
	}
	return uint16(n), nil
}

// nodeAddrs lists the InternalIPs and ExternalIPs. Other types (host names) and what is no address are passed over:
// cloud controllers write them, and nobody can do anything about it here.
func nodeAddrs(node *corev1.Node) []netip.Addr {
	var out []netip.Addr
	for _, a := range node.Status.Addresses {
		if a.Type != corev1.NodeInternalIP && a.Type != corev1.NodeExternalIP {
			continue
		}
		if ip, err := netip.ParseAddr(a.Address); err == nil && ip.Zone() == "" {
			out = append(out, ip.Unmap())
		}
	}
	slices.SortFunc(out, netip.Addr.Compare)
	return slices.Compact(out)
}

// limit cuts text from other nodes to what a log line can take.
func limit(s string, n int) string {
	if len(s) > n {
		return strings.ToValidUTF8(s[:n], "")
	}
	return s
}
