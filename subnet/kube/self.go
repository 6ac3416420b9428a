package kube

import (
	"fmt"
	"net/netip"

	corev1 "k8s.io/api/core/v1"

	"github.com/weft-cni/weft/subnet"
)

// ParseSelf reads the own Node. A value that cannot be used is left out and named in a problem.
func ParseSelf(node *corev1.Node, prefix Prefix) (subnet.Self, []subnet.Problem) {
	s := subnet.Self{Name: node.Name, UID: string(node.UID), Exists: true, Announced: map[string]string{}}
	var problems []subnet.Problem
	problem := func(reason, format string, args ...any) {
		problems = append(problems, subnet.Problem{Node: node.Name, Reason: reason, Text: fmt.Sprintf(format, args...)})
	}
	all, _ := allKeys()
	for _, key := range all {
		if v, ok := node.Annotations[prefix.Key(key)]; ok {
			s.Announced[prefix.Key(key)] = v
		}
	}
	var err error
	if s.PodCIDRs, err = podCIDRs(node); err != nil {
		problem(ReasonBadPodCIDR, "%v", err)
	}
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			s.NetworkUnavailable = string(c.Status)
		}
	}
	port, there := s.Announced[prefix.Key(keyBackendPort)]
	if s.Port, err = backendPort(port, there); err != nil {
		problem(ReasonBadAnnotation, "%v", err)
	}
	for _, f := range subnet.Families() {
		keys := keysOf(f)
		s.InternalIP[f] = internalIP(node, f)
		// A MAC that cannot be read back is no problem: the device has one, or a new one is made and announced.
		if _, mac, err := vxlanData(s.Announced[prefix.Key(keys.backendData)]); err == nil {
			s.MAC[f] = mac
		}
		if ip, err := publicIP(f, s.Announced[prefix.Key(keys.publicIP)]); err == nil {
			s.PublicIP[f] = ip
		}
		for _, in := range []struct {
			key string
			dst *netip.Addr
		}{{keys.nodePublicIP, &s.NodePublicIP[f]}, {keys.overwrite, &s.Overwrite[f]}} {
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
func internalIP(node *corev1.Node, f subnet.Family) netip.Addr {
	for _, a := range node.Status.Addresses {
		ip, err := netip.ParseAddr(a.Address)
		if a.Type != corev1.NodeInternalIP || err != nil || ip.Zone() != "" {
			continue
		}
		if ip = ip.Unmap(); subnet.FamilyOf(ip) == f {
			return ip
		}
	}
	return netip.Addr{}
}

// slim copies what ParseSelf and ParsePeer read and lets go of the rest: a Node is up to 60 KB, of which we use some
// hundred bytes.
func slim(node *corev1.Node, prefix Prefix) *corev1.Node {
	out := &corev1.Node{}
	out.Name, out.UID, out.ResourceVersion = node.Name, node.UID, node.ResourceVersion
	out.CreationTimestamp = node.CreationTimestamp
	all, _ := allKeys()
	for _, key := range all {
		if v, ok := node.Annotations[prefix.Key(key)]; ok {
			if out.Annotations == nil {
				out.Annotations = map[string]string{}
			}
			out.Annotations[prefix.Key(key)] = v
		}
	}
	out.Spec.PodCIDR, out.Spec.PodCIDRs = node.Spec.PodCIDR, node.Spec.PodCIDRs
	out.Status.Addresses = node.Status.Addresses
	for _, c := range node.Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			out.Status.Conditions = append(out.Status.Conditions, corev1.NodeCondition{Type: c.Type, Status: c.Status})
		}
	}
	return out
}
