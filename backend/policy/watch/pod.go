package watch

import (
	"net/netip"
	"slices"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/subnet"
)

// configHash is on the API's mirror of a static pod: the UID under which the kubelet runs it, and tells the CNI plugin.
const configHash = "kubernetes.io/config.hash"

// pods makes values of Pods, for the node of that name. A pod of another node is of interest as a peer only: as long as
// it has addresses of its own. A Pod is some kilobytes and changes a dozen times before it runs; what is kept is some
// hundred bytes that change twice.
func pods(node string, in *interner) kind[policy.Pod] {
	return kind[policy.Pod]{
		key:  func(p *policy.Pod) key { return key{p.Namespace, p.Name} },
		uid:  func(p *policy.Pod) string { return p.UID },
		same: samePod,
		parse: func(obj any) (parsed[policy.Pod], bool) {
			pod, ok := obj.(*corev1.Pod)
			if !ok {
				return parsed[policy.Pod]{}, false
			}
			return parsePod(pod, node, in), true
		},
	}
}

func parsePod(pod *corev1.Pod, node string, in *interner) parsed[policy.Pod] {
	p := &policy.Pod{
		Namespace: in.text(pod.Namespace), Name: strings.Clone(pod.Name), UID: strings.Clone(string(pod.UID)),
		Local: pod.Spec.NodeName == node, HostNetwork: pod.Spec.HostNetwork,
		Terminating: pod.DeletionTimestamp != nil, Phase: phaseOf(pod), Created: pod.CreationTimestamp.Unix(),
	}
	if !p.HostNetwork {
		p.Addrs = addrsOf(pod.Status)
	}
	out := parsed[policy.Pod]{key: key{p.Namespace, p.Name}, uid: p.UID}
	if !p.Local && (p.HostNetwork || p.Phase == policy.Finished || p.Addrs == [2]netip.Addr{}) {
		return out
	}
	p.Labels, p.Ports = in.labelsOf(pod.Labels), in.portsOf(portsOf(pod.Spec))
	out.value = p
	if p.Local {
		out.note = strings.Clone(pod.Annotations[configHash])
	}
	return out
}

func phaseOf(pod *corev1.Pod) policy.Phase {
	switch pod.Status.Phase {
	case corev1.PodSucceeded, corev1.PodFailed:
		return policy.Finished
	case corev1.PodRunning:
		return policy.Running
	}
	return policy.Pending
}

// addrsOf is the first address of each family.
func addrsOf(s corev1.PodStatus) (addrs [2]netip.Addr) {
	texts := []string{s.PodIP}
	for _, ip := range s.PodIPs {
		texts = append(texts, ip.IP)
	}
	for _, text := range texts {
		a, err := netip.ParseAddr(text)
		if err != nil || a.Zone() != "" {
			continue
		}
		if a = a.Unmap(); !addrs[subnet.FamilyOf(a)].IsValid() {
			addrs[subnet.FamilyOf(a)] = a
		}
	}
	return addrs
}

// portsOf are the ports with a name, those of sidecars too: an init container that is restarted always serves.
func portsOf(spec corev1.PodSpec) []policy.NamedPort {
	var out []policy.NamedPort
	take := func(c corev1.Container) {
		for _, p := range c.Ports {
			proto, ok := policy.ParseProto(string(p.Protocol))
			if p.Protocol == "" {
				proto, ok = policy.TCP, true
			}
			if ok && p.Name != "" && p.ContainerPort > 0 && p.ContainerPort < 1<<16 {
				out = append(out, policy.NamedPort{Name: p.Name, Proto: proto, Port: uint16(p.ContainerPort)})
			}
		}
	}
	for _, c := range spec.InitContainers {
		if c.RestartPolicy != nil && *c.RestartPolicy == corev1.ContainerRestartPolicyAlways {
			take(c)
		}
	}
	for _, c := range spec.Containers {
		take(c)
	}
	return out
}

func samePod(a, b *policy.Pod) bool {
	return a.Namespace == b.Namespace && a.Name == b.Name && a.UID == b.UID && a.Local == b.Local && a.HostNetwork == b.HostNetwork &&
		a.Terminating == b.Terminating && a.Phase == b.Phase && a.Created == b.Created && a.Addrs == b.Addrs &&
		slices.Equal(a.Labels, b.Labels) && slices.Equal(a.Ports, b.Ports)
}
