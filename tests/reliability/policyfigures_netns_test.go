package reliability

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/backend/policy"
)

// figuresEnv turns the figures on: they take a minute of a quiet machine.
const figuresEnv = "WEFT_POLICY_FIGURES"

func TestNetworkPolicyFigures(t *testing.T) {
	if os.Getenv(figuresEnv) == "" {
		t.Skip("figures for a quiet machine: set " + figuresEnv + "=1")
	}
	b := NewBench(t, NewSite(t), 2)
	w := &guarded{Bench: b, t: t, node: b.Nodes[0]}
	w.populate()
	w.adds("without policies")
	w.crowd(1000)
	w.deny()
	w.soon("the policy", func() error { return errors.Join(w.both()(), w.drops()) })
	w.adds("with the gate")
	w.changes(200)
}

// adds measures ADD of pods that the API server knows, as kubelet's are. They go when all have come: what the end of one costs
// is not asked.
func (w *guarded) adds(what string) {
	w.t.Helper()
	var took []time.Duration
	var ids []string
	for i := range 30 {
		id := fmt.Sprintf("born-%d-%d", i, time.Now().UnixNano())
		pods := w.Client.CoreV1().Pods("shop")
		_, err := pods.Create(w.t.Context(), &corev1.Pod{
			ObjectMeta: metav1.ObjectMeta{Name: id},
			Spec:       corev1.PodSpec{NodeName: w.node.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
		}, metav1.CreateOptions{})
		w.must(err)
		_, one := w.add("shop", id)
		took, ids = append(took, one), append(ids, id)
	}
	for _, id := range ids {
		w.del("shop", id)
		w.must(w.Client.CoreV1().Pods("shop").Delete(w.t.Context(), id, *metav1.NewDeleteOptions(0)))
	}
	slices.Sort(took)
	w.t.Logf("ADD %s: quickest %v, median %v, slowest %v", what, took[0], took[len(took)/2], took[len(took)-1])
}

// crowd makes Pods on nodes that are nowhere.
func (w *guarded) crowd(n int) {
	w.t.Helper()
	w.must(atOnce(4, func(part int) error {
		for i := part; i < n; i += 4 {
			addr := netip.AddrFrom4([4]byte{10, 244, byte(100 + i/250), byte(2 + i%250)})
			pods := w.Client.CoreV1().Pods("yard")
			p, err := pods.Create(w.t.Context(), &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("crowd-%d", i), Labels: map[string]string{"role": "none"}},
				Spec:       corev1.PodSpec{NodeName: fmt.Sprintf("far-%d", i/100), Containers: []corev1.Container{{Name: "c", Image: "i"}}},
			}, metav1.CreateOptions{})
			if err != nil {
				return err
			}
			p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, addr.String(), []corev1.PodIP{{IP: addr.String()}}
			if _, err := pods.UpdateStatus(w.t.Context(), p, metav1.UpdateOptions{}); err != nil {
				return err
			}
		}
		return nil
	}))
}

// changes writes policies that allow one address each, and labels of pods that a policy names, and measures from the API
// server's acknowledgment until the kernel has what follows.
func (w *guarded) changes(n int) {
	w.t.Helper()
	policies := w.Client.NetworkingV1().NetworkPolicies("shop")
	roles := allowing("roles", `{"podSelector":{},"ingress":[{"from":[{"namespaceSelector":{},"podSelector":{"matchLabels":{"role":"friend"}}}]}]}`)
	_, err := policies.Create(w.t.Context(), roles, metav1.CreateOptions{})
	w.must(err)
	var took []time.Duration
	for i := range n {
		var needle string
		if i%2 == 0 {
			needle = fmt.Sprintf("192.0.2.%d", 1+i/2)
			p := allowing(fmt.Sprintf("block-%d", i), fmt.Sprintf(`{"podSelector":{},"ingress":[{"from":[{"ipBlock":{"cidr":"%s/32"}}]}]}`, needle))
			_, err = policies.Create(w.t.Context(), p, metav1.CreateOptions{})
		} else {
			needle = fmt.Sprintf("10.244.100.%d", 2+i/2)
			_, err = w.Client.CoreV1().Pods("yard").Patch(w.t.Context(), fmt.Sprintf("crowd-%d", i/2), types.MergePatchType,
				[]byte(`{"metadata":{"labels":{"role":"friend"}}}`), metav1.PatchOptions{})
		}
		begin := time.Now()
		w.must(err)
		w.soon(needle, func() error {
			if !strings.Contains(w.node.NS.Run("nft", "list", "table", "inet", policy.TableName), needle) {
				return errNotYet
			}
			return nil
		})
		took = append(took, time.Since(begin))
	}
	slices.Sort(took)
	w.t.Logf("%d changes: quickest %v, p50 %v, p99 %v, slowest %v", n, took[0], took[n/2], took[n*99/100], took[n-1])
}

// allowing is a policy of a specification in JSON.
func allowing(name, spec string) *networkingv1.NetworkPolicy {
	p := &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if err := json.Unmarshal([]byte(spec), &p.Spec); err != nil {
		panic(err) // the text is this file's
	}
	return p
}
