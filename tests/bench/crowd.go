package bench

import (
	"encoding/json"
	"fmt"
	"iter"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/lane"
)

// crowd is the rest of a cluster: what is not measured, but there. Its namespaces belong to fifty teams, its pods to
// deployments of ten, and each deployment has a policy of its own, until the policies are used up.
type crowd struct {
	pods, policies, namespaces int
	local                      int // pods that the API says are on the node that is measured, each of another deployment
	selecting                  int // policies, of the policies above, that select the server
	lane                       lane.Lane
}

const (
	shop  = "shop" // where the pods live that are measured
	teams = 50
	size0 = 10 // pods of a deployment
)

func (c crowd) all() map[string]iter.Seq[apiserver.Object] {
	return map[string]iter.Seq[apiserver.Object]{
		"namespaces": each(c.namespaces, c.namespace), "pods": each(c.pods, c.pod), "networkpolicies": each(c.policies, c.policy),
	}
}

// each is what a function makes of the first n numbers.
func each(n int, make func(int) apiserver.Object) iter.Seq[apiserver.Object] {
	return func(yield func(apiserver.Object) bool) {
		for i := 0; i < n && yield(make(i)); i++ {
		}
	}
}

// spaceOf is the namespace of a deployment.
func (c crowd) spaceOf(deployment int) string {
	return fmt.Sprintf("namespace-%04d", deployment%c.namespaces)
}

func (c crowd) namespace(i int) apiserver.Object {
	name := c.spaceOf(i)
	return &corev1.Namespace{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Namespace"},
		ObjectMeta: metav1.ObjectMeta{Name: name, UID: uid("1", i), Labels: map[string]string{
			"kubernetes.io/metadata.name": name, "team": fmt.Sprintf("team-%02d", i%teams), "environment": "production",
		}},
		Status: corev1.NamespaceStatus{Phase: corev1.NamespaceActive},
	}
}

// pod is one of a Deployment's, with the half of a page that such a thing has.
func (c crowd) pod(i int) apiserver.Object {
	env := make([]corev1.EnvVar, 12)
	for j := range env {
		env[j] = corev1.EnvVar{Name: fmt.Sprintf("SETTING_%02d", j), Value: "http://service.namespace.svc.cluster.local:8080/path"}
	}
	d, home := i/size0, fmt.Sprintf("far-%04d", i/110)
	if i%size0 == 0 && d < c.local {
		home = "n1"
	}
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Namespace: c.spaceOf(d), Name: fmt.Sprintf("deployment-%06d-5d4f8c7b9d-%05d", d, i%100_000), UID: uid("2", i),
			Labels: map[string]string{
				"app.kubernetes.io/name": fmt.Sprintf("deployment-%06d", d), "app.kubernetes.io/instance": fmt.Sprintf("release-%04d", i%5000),
				"pod-template-hash": fmt.Sprintf("%08x", d), "team": fmt.Sprintf("team-%02d", d%teams), "tier": "backend",
			},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", Operation: "Update", APIVersion: "v1", FieldsType: "FieldsV1",
				FieldsV1: metav1.NewFieldsV1(`{"f:status":{` + strings.Repeat(`"f:x":{},`, 60) + `"f:y":{}}}`)}},
		},
		Spec: corev1.PodSpec{NodeName: home, Containers: []corev1.Container{{
			Name: "app", Image: "registry.example.com/team/app:v1.2.3", Env: env,
			Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}},
		}}},
	}
	c.run(p, 0x400000+uint32(i))
	return p
}

// run gives a Pod the status of one that runs, with an address of each family.
func (c crowd) run(p *corev1.Pod, host uint32) {
	p.Status.Phase = corev1.PodRunning
	for _, f := range c.lane.Families() {
		p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: farAddr(f, host).String()})
	}
	p.Status.PodIP = p.Status.PodIPs[0].IP
}

// farAddr is the address number host of 10.0.0.0/8, or of a prefix of IPv6.
func farAddr(f subnet.Family, host uint32) netip.Addr {
	if f == subnet.IPv6 {
		return netip.AddrFrom16([16]byte{0: 0xfd, 2: 0xfa, 12: 10, 13: byte(host >> 16), 14: byte(host >> 8), 15: byte(host)})
	}
	return netip.AddrFrom4([4]byte{10, byte(host >> 16), byte(host >> 8), byte(host)})
}

// policy is a deployment's, or one of those that select the server, of which the last by name lets the client in.
func (c crowd) policy(i int) apiserver.Object {
	p := &networkingv1.NetworkPolicy{
		TypeMeta:   metav1.TypeMeta{APIVersion: "networking.k8s.io/v1", Kind: "NetworkPolicy"},
		ObjectMeta: metav1.ObjectMeta{Namespace: c.spaceOf(i), Name: fmt.Sprintf("policy-%05d", i), UID: uid("3", i)},
	}
	own := i - (c.policies - c.selecting)
	switch {
	case own < 0:
		p.Spec = spec(`{"podSelector":{"matchLabels":{"app.kubernetes.io/name":"deployment-%06[1]d"}},"policyTypes":["Ingress","Egress"],
			"ingress":[{"from":[{"namespaceSelector":{"matchLabels":{"team":"team-%02[2]d"}},"podSelector":{"matchLabels":{"tier":"backend"}}}],"ports":[{"port":"http","protocol":"TCP"}]}],
			"egress":[{"to":[{"ipBlock":{"cidr":"10.0.0.0/8","except":["10.96.0.0/12"]}}]},{"ports":[{"protocol":"UDP","port":53}]}]}`, i, i%teams)
	case own == c.selecting-1:
		p.Namespace, p.Name = shop, "select-last"
		p.Spec = spec(`{"podSelector":{"matchLabels":{"app":"n1"}},"policyTypes":["Ingress"],
			"ingress":[{"from":[{"podSelector":{"matchLabels":{"app":"n2"}}},{"podSelector":{"matchLabels":{"role":"friend"}}}]}]}`)
	default:
		p.Namespace, p.Name = shop, fmt.Sprintf("select-%05d", own)
		p.Spec = spec(`{"podSelector":{"matchLabels":{"app":"n1"}},"policyTypes":["Ingress"],
			"ingress":[{"from":[{"namespaceSelector":{},"podSelector":{"matchLabels":{"app.kubernetes.io/name":"deployment-%06d"}}}],"ports":[{"port":%d,"protocol":"TCP"}]}]}`, own, 8000+own)
	}
	return p
}

// spec is a policy's specification out of JSON.
func spec(format string, words ...any) (s networkingv1.NetworkPolicySpec) {
	if err := json.Unmarshal(fmt.Appendf(nil, format, words...), &s); err != nil {
		panic(err) // impossible: the text is this file's
	}
	return s
}

func uid(kind string, i int) types.UID {
	return types.UID(fmt.Sprintf("%sf9c1a2b-0000-4000-8000-%012d", kind, i))
}
