package bench

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"math/rand/v2"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
	"github.com/weft-cni/weft/tests/reliability"
)

// patience is how long anything may take; the figures are judged elsewhere.
const patience = 3 * time.Minute

// town is a real API server with three real agents: the first node's enforces policies, the others' are told not to. The
// second node's pod is a client, the others' are servers.
type town struct {
	*reliability.Bench
	t       testing.TB
	on, off *home
	plain   *home // with a server, as the first
	probes  int   // changes of each kind that were made so far
	written []*networkingv1.NetworkPolicy
}

// home is a node with the container runtime's part played.
type home struct {
	*reliability.Node
	cni  *libcni.CNIConfig
	born int // pods ever
	stay int // pods that stay, beside the bench's own
}

func newTown(t testing.TB) *town {
	t.Helper()
	b := reliability.NewBench(t, reliability.NewSite(t), 3)
	w := &town{Bench: b, t: t}
	_, err := b.Client.CoreV1().Namespaces().Create(t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: shop}}, metav1.CreateOptions{})
	w.must(err)
	const off = "--network-policy=off"
	w.on, w.off = w.home(b.Nodes[0]), w.home(b.Nodes[1], off)
	w.plain = &home{Node: b.Nodes[2]}
	w.restart(w.plain, off)
	w.API.Store("pods", each(len(b.Nodes), func(i int) apiserver.Object {
		n := b.Nodes[i]
		p := probe(n.Name, n.Name, i, map[string]string{"app": n.Name})
		for _, a := range n.PodAddrs() {
			p.Status.PodIPs = append(p.Status.PodIPs, corev1.PodIP{IP: a.String()})
		}
		p.Status.Phase, p.Status.PodIP = corev1.PodRunning, n.PodAddrs()[0].String()
		return p
	}))
	return w
}

// probe is a Pod of the shop.
func probe(name, node string, i int, labels map[string]string) *corev1.Pod {
	return &corev1.Pod{
		TypeMeta:   metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{Namespace: shop, Name: name, UID: uid("4", i), Labels: labels},
		Spec:       corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}
}

func (w *town) home(n *reliability.Node, args ...string) *home {
	w.t.Helper()
	r, err := reliability.NewRuntime(n)
	w.must(err)
	h := &home{Node: n, cni: libcni.NewCNIConfigWithCacheDir([]string{n.Path("bin")}, n.Path("cni"), r)}
	w.restart(h, args...)
	return h
}

func (w *town) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// soon waits for a condition.
func (w *town) soon(what string, condition func() error) {
	w.t.Helper()
	if _, err := w.Await(patience, condition); err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
}

// restart ends a node's agent, starts it and waits until it is ready.
func (w *town) restart(h *home, args ...string) {
	w.t.Helper()
	h.Agent.Kill()
	w.must(h.Agent.Start(reliability.Options{Args: args}))
	w.soon("the agent is ready", h.Agent.Ready)
}

// fill makes the API server's cluster that of a crowd, but for the pods of the shop.
func (w *town) fill(c crowd, resources ...string) {
	w.t.Helper()
	all := c.all()
	if len(resources) == 0 {
		resources = slices.Sorted(maps.Keys(all))
	}
	for _, r := range resources {
		w.API.Store(r, all[r])
	}
	if c.policies > 0 && slices.Contains(resources, "networkpolicies") {
		// A watch may have missed some; a list does not.
		w.restart(w.on)
		w.guarded(c)
	}
}

// guarded waits until the rules of the newest policy are in the kernel, and the API server has nothing more to tell.
func (w *town) guarded(c crowd) {
	w.t.Helper()
	w.soon("the policies are in the kernel", func() error {
		chains, err := w.on.NS.Try("nft", "list", "chains", "inet")
		if n := strings.Count(chains, "chain in-np-"); err == nil && n <= min(c.local, c.policies-c.selecting) {
			err = fmt.Errorf("%d chains", n)
		}
		if err != nil {
			return err
		}
		// The rules may be an earlier agent's: this one has them when it says so.
		v, err := w.on.metric("weft_policy_enforced")
		if err == nil && v != 1 {
			err = errors.New("the agent does not enforce yet")
		}
		if err != nil {
			return err
		}
		return w.on.Agent.Ready()
	})
}

// metric is the sum of an agent's series of a name.
func (h *home) metric(name string) (sum float64, err error) {
	text, err := h.Agent.Get("/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		series, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		if series, _, _ = strings.Cut(series, "{"); series != name {
			continue
		}
		v, err := strconv.ParseFloat(value, 64)
		if err != nil {
			return 0, err
		}
		sum += v
	}
	return sum, nil
}

// resident is the memory that an agent's process has, and the most that it has had, in bytes.
func (h *home) resident() (now, most float64, err error) {
	text, err := os.ReadFile(fmt.Sprintf("/proc/%d/status", h.Agent.PID()))
	if err != nil {
		return 0, 0, err
	}
	for key, into := range map[string]*float64{"VmRSS:": &now, "VmHWM:": &most} {
		_, after, _ := strings.Cut(string(text), key)
		if _, err := fmt.Sscan(after, into); err != nil {
			return 0, 0, fmt.Errorf("read %s of the agent: %w", key, err)
		}
		*into *= 1024
	}
	return now, most, nil
}

// stays makes pods that stay.
func (w *town) stays(h *home, n int) {
	w.t.Helper()
	for range n {
		_, _ = w.add(h)
	}
}

// add makes a pod that the API server knows, as the kubelet does, tells how long that took, and how it is deleted.
func (w *town) add(h *home) (took time.Duration, del func()) {
	w.t.Helper()
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	h.born++
	id := fmt.Sprintf("born-%s-%d", h.Name, h.born)
	pods := w.Client.CoreV1().Pods(shop)
	p := probe(id, h.Name, 0, map[string]string{"app": "n1"})
	p.UID = ""
	_, err := pods.Create(ctx, p, metav1.CreateOptions{})
	w.must(err)
	list, err := libcni.ConfListFromFile(h.Path("net.d/10-flannel.conflist"))
	w.must(err)
	conf := &libcni.RuntimeConf{ContainerID: id, NetNS: nstest.New(w.t).Path(), IfName: "eth0", Args: [][2]string{
		{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", shop}, {"K8S_POD_NAME", id}, {"K8S_POD_INFRA_CONTAINER_ID", id},
	}}
	time.Sleep(rand.N(300 * time.Millisecond)) // the sandbox is made meanwhile, and the agent hears of the Pod
	began := time.Now()
	_, err = h.cni.AddNetworkList(ctx, list, conf)
	took = time.Since(began)
	w.must(err)
	return took, func() {
		w.must(h.cni.DelNetworkList(w.t.Context(), list, conf))
		w.must(pods.Delete(w.t.Context(), id, *metav1.NewDeleteOptions(0)))
	}
}
