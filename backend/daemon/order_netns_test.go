package daemon

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// ordersFamilies starts an agent on Nodes that have IPv4 first, on ones that have IPv6 first, and on a mixture; from one to the
// other all files go, as with a node that is made anew. What the agent says and does must be the same.
func ordersFamilies(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	w.write(w.cfg.Paths.NetConf, lane.Dual.NetConf(`{"Type": "vxlan", "Port": 4789}`))
	var first string
	for i, order := range []struct {
		name      string
		own, peer subnet.Family
	}{
		{"IPv4 first", subnet.IPv4, subnet.IPv4}, {"IPv6 first", subnet.IPv6, subnet.IPv6},
		{"IPv6 first, peers IPv4", subnet.IPv6, subnet.IPv4}, {"IPv4 first, peers IPv6", subnet.IPv4, subnet.IPv6},
	} {
		for _, file := range []string{w.cfg.Paths.SubnetFile, filepath.Join(w.cfg.Paths.CNIConf, install.ConflistName)} {
			if err := os.Remove(file); err != nil && !errors.Is(err, fs.ErrNotExist) {
				t.Fatal(err)
			}
		}
		w.dual(order.own, order.peer)
		a := w.start(0)
		nstest.Eventually(t, crashPatience, w.done)
		got := born.ReplaceAllString(w.picture(), "") + w.announced("a")
		w.stop(a)
		if i == 0 {
			first = got
			for _, want := range []string{
				"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:10:244::/48\nFLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64\nFLANNEL_MTU=1430\n",
				"public-ip=192.168.50.1\n", "public-ipv6=fd00:50::1\n", "route 10.244.2.0/24 via 10.244.2.0", "route fd00:10:244:2::/64 via fd00:10:244:2::",
			} {
				if !strings.Contains(got, want) {
					t.Fatalf("%s: lacks %q:\n%s", order.name, want, got)
				}
			}
		}
		if diff := cmp.Diff(first, got); diff != "" {
			t.Errorf("%s (-IPv4 first +got):\n%s", order.name, diff)
		}
	}
}

// born is what differs between two Nodes of one name, in the file in which the agent keeps the cluster.
var born = regexp.MustCompile(`"(UID|Created)": "[^"]*"`)

// dual makes the cluster's Nodes anew in both families, each with one of them first: in podCIDRs and in its addresses.
func (w *crashWorld) dual(own, peers subnet.Family) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), crashPatience)
	defer cancel()
	nodes := w.admin.CoreV1().Nodes()
	if err := nodes.DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{}); err != nil {
		w.t.Fatal(err)
	}
	for i, name := range []string{"a", "b", "c"} {
		first := peers
		n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: map[string]string{}}}
		public := [2]string{w.fabric.Addr(i + 1).String(), w.fabric.Addr6(i + 1).String()}
		if name == "a" {
			first = own
		} else {
			for key, value := range map[string]string{
				"kube-subnet-manager": "true", "backend-type": "vxlan", "backend-port": "4789", "public-ip": public[0], "public-ipv6": public[1],
				"backend-data":    fmt.Sprintf(`{"VNI":1,"VtepMAC":"02:00:00:00:00:%02x"}`, i+1),
				"backend-v6-data": fmt.Sprintf(`{"VNI":1,"VtepMAC":"06:00:00:00:00:%02x"}`, i+1),
			} {
				n.Annotations["flannel.alpha.coreos.com/"+key] = value
			}
		}
		for _, f := range []subnet.Family{first, 1 - first} {
			n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, lane.PodCIDR(f, i+1).String())
			n.Status.Addresses = append(n.Status.Addresses, corev1.NodeAddress{Type: corev1.NodeInternalIP, Address: public[f]})
		}
		n.Spec.PodCIDR = n.Spec.PodCIDRs[0]
		made, err := nodes.Create(ctx, n, metav1.CreateOptions{})
		if err == nil {
			made.Status.Addresses = n.Status.Addresses
			_, err = nodes.UpdateStatus(ctx, made, metav1.UpdateOptions{})
		}
		if err != nil {
			w.t.Fatal(err)
		}
	}
}

// announced is what a Node carries of ours, a line each.
func (w *crashWorld) announced(name string) string {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(context.Background(), crashPatience)
	defer cancel()
	n, err := w.admin.CoreV1().Nodes().Get(ctx, name, metav1.GetOptions{})
	if err != nil {
		w.t.Fatal(err)
	}
	var lines []string
	for key, value := range n.Annotations {
		if key, ours := strings.CutPrefix(key, "flannel.alpha.coreos.com/"); ours {
			lines = append(lines, key+"="+value+"\n")
		}
	}
	slices.Sort(lines)
	return strings.Join(lines, "")
}
