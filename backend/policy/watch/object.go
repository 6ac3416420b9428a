package watch

import (
	"net/netip"
	"slices"

	corev1 "k8s.io/api/core/v1"

	"github.com/weft-cni/weft/backend/policy"
)

// namespaces makes values of Namespaces.
func namespaces(in *interner) kind[policy.Namespace] {
	return kind[policy.Namespace]{
		key:  func(n *policy.Namespace) key { return key{name: n.Name} },
		uid:  func(*policy.Namespace) string { return "" },
		same: func(a, b *policy.Namespace) bool { return a.Name == b.Name && slices.Equal(a.Labels, b.Labels) },
		parse: func(obj any) (parsed[policy.Namespace], bool) {
			ns, ok := obj.(*corev1.Namespace)
			if !ok {
				return parsed[policy.Namespace]{}, false
			}
			v := &policy.Namespace{Name: in.text(ns.Name), Labels: in.labelsOf(ns.Labels)}
			return parsed[policy.Namespace]{key: key{name: v.Name}, value: v}, true
		},
	}
}

// nodes makes values of Nodes: their labels, every address that the API says they have, and those that they have for their pods.
func nodes(in *interner) kind[policy.Node] {
	return kind[policy.Node]{
		key: func(n *policy.Node) key { return key{name: n.Name} },
		uid: func(*policy.Node) string { return "" },
		same: func(a, b *policy.Node) bool {
			return a.Name == b.Name && slices.Equal(a.Addrs, b.Addrs) && slices.Equal(a.Labels, b.Labels)
		},
		parse: func(obj any) (parsed[policy.Node], bool) {
			node, ok := obj.(*corev1.Node)
			if !ok {
				return parsed[policy.Node]{}, false
			}
			v := &policy.Node{Name: in.text(node.Name), Labels: in.labelsOf(node.Labels)}
			for _, a := range node.Status.Addresses {
				if ip, err := netip.ParseAddr(a.Address); err == nil && ip.Zone() == "" {
					v.Addrs = append(v.Addrs, ip.Unmap())
				}
			}
			v.Addrs = append(v.Addrs, inPodRanges(node.Spec)...)
			slices.SortFunc(v.Addrs, netip.Addr.Compare)
			v.Addrs = slices.Compact(v.Addrs)
			return parsed[policy.Node]{key: key{name: v.Name}, value: v}, true
		},
	}
}

// inPodRanges are the addresses by which pods reach a node without the API's telling: that of its tunnels, which is the first of a
// pod range, and that of its bridge, which is the next. Who must not reach nodes must not reach them there either.
func inPodRanges(spec corev1.NodeSpec) (out []netip.Addr) {
	for _, text := range append(slices.Clone(spec.PodCIDRs), spec.PodCIDR) {
		p, err := netip.ParsePrefix(text)
		if err != nil {
			continue
		}
		first := p.Masked().Addr().Unmap()
		out = append(out, first)
		if next := first.Next(); p.Contains(next) {
			out = append(out, next)
		}
	}
	return out
}
