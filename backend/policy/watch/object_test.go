package watch

import (
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
)

// A ClusterNetworkPolicy that keeps pods from nodes would be none if the bridge's address, which every pod knows, led there.
func TestANodeHasTheAddressesOfItsTunnelsAndItsBridgeToo(t *testing.T) { // N-11
	for _, c := range []struct {
		spec corev1.NodeSpec
		want string
	}{
		{corev1.NodeSpec{}, "[192.168.0.1]"},
		{corev1.NodeSpec{PodCIDR: "10.244.1.0/24", PodCIDRs: []string{"10.244.1.0/24", "fd00:244:1::/64"}},
			"[10.244.1.0 10.244.1.1 192.168.0.1 fd00:244:1:: fd00:244:1::1]"},
		{corev1.NodeSpec{PodCIDR: "10.244.1.5/24"}, "[10.244.1.0 10.244.1.1 192.168.0.1]"},
		{corev1.NodeSpec{PodCIDRs: []string{"10.244.1.7/32", "nonsense"}}, "[10.244.1.7 192.168.0.1]"},
		{corev1.NodeSpec{PodCIDR: "255.255.255.255/32"}, "[192.168.0.1 255.255.255.255]"},
	} {
		node := &corev1.Node{Spec: c.spec}
		node.Status.Addresses = []corev1.NodeAddress{{Type: corev1.NodeInternalIP, Address: "192.168.0.1"}, {Type: corev1.NodeHostName, Address: "n1"}}
		p, ok := nodes(newInterner()).parse(node)
		if d := cmp.Diff(c.want, fmt.Sprint(p.value.Addrs)); !ok || d != "" {
			t.Errorf("%+v: %s", c.spec, d)
		}
	}
}
