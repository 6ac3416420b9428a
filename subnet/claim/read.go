package claim

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/weft-cni/weft/subnet"
)

// reader fills in a claim.
type reader struct {
	*Claim
	rules Rules
	get   func(key string) (string, bool) // an annotation by its key without the prefix
	ear   ear
}

// read takes in the families, and what both have in common.
func (r *reader) read(node Node) {
	cidrs, cidrErrs := podCIDRs(node)
	port, portErr := backendPort(r.get(KeyBackendPort))
	if r.Peer.BackendType == subnet.VXLAN {
		r.ear.Port = port
	} else {
		portErr = nil // it says nothing then
	}
	for _, f := range subnet.Families() {
		switch err := cidrErrs[f]; {
		case !r.rules.Networks[f].IsValid():
		case err != nil:
			r.Bad[f] = true
			r.problem(ReasonBadPodCIDR, "%v", err)
		default:
			r.family(f, cidrs[f])
		}
	}
	r.Peer.VNI, r.Peer.Port, r.Peer.Key, r.Peer.WGPorts = r.ear.VNI, r.ear.Port, r.ear.Key, r.ear.WGPorts
	if portErr != nil {
		r.spoil(ReasonBadBackendPort, portErr)
	}
	if r.Peer.Endpoints == [2]subnet.Endpoint{} && len(r.Problems) == 0 {
		r.spoil(ReasonBadPodCIDR, errors.New("it has no pod CIDR, or announces no address, in a family that is on"))
	}
	if len(r.Problems) == 0 {
		r.Problems = MissingFamily(r.Peer.Name, cidrs, r.rules)
		r.unheard()
	}
}

// family reads one family's half of a Node. A half of which nothing is there is no error: then the Node has no part in the
// family, as in a cluster on its way to dual-stack.
func (r *reader) family(f subnet.Family, cidr netip.Prefix) {
	keys := KeysOf(f)
	ip, hasIP := r.get(keys.PublicIP)
	data, hasData := r.get(keys.BackendData)
	if ip == noAddress && r.Peer.BackendType != subnet.VXLAN {
		hasIP, hasData = false, false
	}
	if !cidr.IsValid() || !hasIP && !hasData && r.rules.Networks[1-f].IsValid() {
		return
	}
	if !subnet.Contains(r.rules.Networks[f], cidr) {
		r.problem(ReasonOutsideNetwork, "pod CIDR %s is outside the Network %s: its pods are not reached over the overlay; "+
			"make Network cover it, or re-create the Node", cidr, r.rules.Networks[f])
		return
	}
	addr, err := publicIP(f, ip)
	if err != nil {
		r.bad(f, ReasonBadPublicIP, keys.PublicIP, err)
		return
	}
	if r.Peer.BackendType == subnet.WireGuard && (data == "" || data == noData) {
		data, _ = r.get(KeysOf(1 - f).BackendData) // the modes with one device have one key and one port for both families
	}
	if err := r.ear.hear(r.Peer.BackendType, f, data); err != nil {
		r.bad(f, ReasonBadBackendData, keys.BackendData, err)
		return
	}
	overwrite, _ := r.get(keys.Overwrite)
	r.Told[f] = overwrite != "" && overwrite == ip
	r.Peer.Endpoints[f] = subnet.Endpoint{PodCIDR: cidr, PublicIP: addr, MAC: r.ear.MACs[f]}
}

// unheard tells of a family that the node has a range of and does not announce (S-02); the other one works.
func (r *reader) unheard() {
	for _, f := range subnet.Families() {
		if r.rules.Networks[f].IsValid() && r.Peer.Endpoints[f].IsZero() && len(r.Problems) == 0 {
			r.problem(ReasonNoPublicIP, "%v enabled but Node %s announces no %v address: its pods are not reached by it; "+
				"its underlay has none, or its agent has not read net-conf.json since", f, r.Peer.Name, f)
		}
	}
}

// MissingFamily tells of a family that is on and that a Node has no usable range of, while it has one of the other (S-02).
func MissingFamily(node string, cidrs [2]netip.Prefix, rules Rules) []subnet.Problem {
	for _, f := range subnet.Families() {
		network, cidr := rules.Networks[f], cidrs[f]
		if !network.IsValid() || !subnet.Contains(rules.Networks[1-f], cidrs[1-f]) || subnet.Contains(network, cidr) {
			continue
		}
		if cidr.IsValid() {
			return []subnet.Problem{{Node: node, Reason: ReasonOutsideNetwork, Text: fmt.Sprintf("pod CIDR %s is outside the Network %s: "+
				"its pods have no %v; make the Network cover it, or re-create the Node", cidr, network, f)}}
		}
		return []subnet.Problem{{Node: node, Reason: ReasonNoPodCIDR, Text: fmt.Sprintf("%v enabled but Node %s has no %v podCIDR: "+
			"its pods have none of the family; a Node that is re-created gets one", f, node, f)}}
	}
	return nil
}

// bad files a problem with an annotation of one family.
func (c *Claim) bad(f subnet.Family, reason, key string, err error) {
	c.Bad[f] = true
	c.problem(reason, "annotation %s: %v", key, err)
}

// spoil files a problem that concerns all families.
func (r *reader) spoil(reason string, err error) {
	r.Peer.Endpoints, r.Peer.VNI = [2]subnet.Endpoint{}, 0
	r.Peer.Key, r.Peer.WGPorts = subnet.Key{}, [2]uint16{}
	for _, f := range subnet.Families() {
		r.Bad[f] = r.rules.Networks[f].IsValid()
	}
	r.problem(reason, "%v", err)
}

func (c *Claim) problem(reason, format string, args ...any) {
	c.Problems = append(c.Problems, subnet.Problem{Node: c.Peer.Name, Reason: reason, Text: fmt.Sprintf(format, args...)})
}
