package claim

import (
	"errors"
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
	var cidrErrs [2]error
	s.PodCIDRs, cidrErrs = podCIDRs(node)
	for f, err := range cidrErrs {
		if err != nil && (f == 0 || cidrErrs[0] == nil || err.Error() != cidrErrs[0].Error()) {
			problem(ReasonBadPodCIDR, "%v", err)
		}
	}
	s.NetworkUnavailable = node.NetworkUnavailable
	speech, err := heard(s.Announced, prefix)
	if err != nil {
		problem(ReasonBadAnnotation, "%v", err)
	}
	s.BackendType, s.Also, s.VNI, s.Port, s.MAC = speech.Type, speech.Also, speech.VNI, speech.Port, speech.MACs
	for _, f := range subnet.Families() {
		keys := KeysOf(f)
		s.InternalIP[f] = internalIP(node, f)
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

// heard is what we said ourselves in the last run, as far as it can be read back. Data that cannot be is no problem: the device
// has it, or it is made and announced anew.
func heard(announced map[string]string, prefix Prefix) (Speech, error) {
	get := func(key string) (string, bool) { v, ok := announced[prefix.Key(key)]; return v, ok }
	kind := backendType(get(KeyBackendType))
	text, _ := get(KeyBackendAlso)
	speech, err := parseAlso(text, kind, flannelPorts)
	speech.Type = Limit(kind, 40)
	if kind != subnet.VXLAN && speech.Also.Has(subnet.VXLAN) {
		return speech, err
	}
	e := ear{Speech: speech}
	port, portErr := backendPort(get(KeyBackendPort))
	e.Port = port
	for _, f := range subnet.Families() {
		data, _ := get(KeysOf(f).BackendData)
		_ = e.hear(subnet.VXLAN, f, data)
	}
	return e.Speech, errors.Join(err, portErr)
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
