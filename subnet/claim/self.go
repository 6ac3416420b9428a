package claim

import (
	"fmt"
	"net/netip"

	"github.com/weft-cni/weft/subnet"
)

// ParseSelf reads the own Node. A value that cannot be used is left out and named in a problem.
func ParseSelf(node Node, prefix Prefix) (subnet.Self, []subnet.Problem) {
	s := subnet.Self{Name: node.Name, UID: node.UID, Exists: true, Announced: map[string]string{}}
	var problems []subnet.Problem
	problem := func(reason, format string, args ...any) {
		problems = append(problems, subnet.Problem{Node: node.Name, Reason: reason, Text: fmt.Sprintf(format, args...)})
	}
	all, _ := AllKeys()
	for _, key := range all {
		if v, ok := node.Annotations[prefix.Key(key)]; ok {
			s.Announced[prefix.Key(key)] = v
		}
	}
	var err error
	if s.PodCIDRs, err = podCIDRs(node); err != nil {
		problem(ReasonBadPodCIDR, "%v", err)
	}
	s.NetworkUnavailable = node.NetworkUnavailable
	port, there := s.Announced[prefix.Key(KeyBackendPort)]
	if s.Port, err = backendPort(port, there); err != nil {
		problem(ReasonBadAnnotation, "%v", err)
	}
	for _, f := range subnet.Families() {
		keys := KeysOf(f)
		s.InternalIP[f] = internalIP(node, f)
		// A MAC that cannot be read back is no problem: the device has one, or a new one is made and announced.
		if _, mac, err := vxlanData(s.Announced[prefix.Key(keys.BackendData)]); err == nil {
			s.MAC[f] = mac
		}
		if ip, err := publicIP(f, s.Announced[prefix.Key(keys.PublicIP)]); err == nil {
			s.PublicIP[f] = ip
		}
		for _, in := range []struct {
			key string
			dst *netip.Addr
		}{{keys.NodePublicIP, &s.NodePublicIP[f]}, {keys.Overwrite, &s.Overwrite[f]}} {
			v := s.Announced[prefix.Key(in.key)]
			if v == "" {
				continue
			}
			if *in.dst, err = publicIP(f, v); err != nil {
				*in.dst = netip.Addr{}
				problem(ReasonBadAnnotation, "annotation %s has no effect: %v", in.key, err)
			}
		}
	}
	return s, problems
}

// internalIP is the first InternalIP of a family, in the kubelet's order.
func internalIP(node Node, f subnet.Family) netip.Addr {
	for _, a := range node.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if a.Type != InternalIP || err != nil || ip.Zone() != "" {
			continue
		}
		if ip = ip.Unmap(); subnet.FamilyOf(ip) == f {
			return ip
		}
	}
	return netip.Addr{}
}
