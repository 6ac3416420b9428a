package reliability

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/libcni"
	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/subnet/ipam"
	"github.com/weft-cni/weft/tests/nstest"
)

// guarded is a bench of two nodes with a server on the first one's pod, and the second one's pod as the client. All Pods are
// in the namespace shop, but for those that are made in yard, where no policy is.
type guarded struct {
	*Bench
	t       *testing.T
	node    *Node
	runtime *Runtime
	servers []netip.AddrPort    // in each family of the lane
	rights  *rbacv1.ClusterRole // of the agents, before some were taken away
}

// The cases share one API server and one bench, and are played in this order.
func TestNetworkPolicyInTheWholeAgent(t *testing.T) {
	beside(t)
	b := NewBench(t, NewSite(t), 2)
	w := &guarded{Bench: b, t: t, node: b.Nodes[0]}
	w.populate()
	for _, c := range []struct {
		name string
		play func(*guarded)
	}{
		{"without policies there is no table and memory as when it is off", (*guarded).idles},
		{"a default deny is enforced within a second of its write and counted", (*guarded).denies},
		{"on, audit, off and on again leave just what each needs", (*guarded).switches},
		{"a flush of the ruleset is repaired within a second", (*guarded).flushed},
		{"killed and restarted, with the API server away too, nothing passes", (*guarded).killed},
		{"another net-conf.json disturbs no policy", (*guarded).reconfigured},
		{"a node that boots without the API server holds its new pods until it is back", (*guarded).boots},
		{"a ClusterNetworkPolicy works as soon as its definition is installed", (*guarded).defined},
		{"a policy that is removed lets pods pass at once and opens the gate", (*guarded).opened},
		{"a role made for flannel holds nothing and is said once", (*guarded).forbidden},
		{"a role made for flannel opens the gate that a boot without the API server has shut", (*guarded).forbiddenAtBoot},
		{"rights that are taken away leave the last rules in force and the node not ready", (*guarded).revoked},
		{"an uninstall leaves neither table nor folder nor socket", (*guarded).uninstalled},
	} {
		if !t.Run(c.name, func(t *testing.T) {
			at := *w
			at.t = t
			c.play(&at)
		}) {
			t.Log(w.logs())
			break
		}
	}
}

// populate tells the API server of the bench's pods, and has a Runtime make more.
func (w *guarded) populate() {
	w.t.Helper()
	for _, name := range []string{"shop", "yard"} {
		_, err := w.Client.CoreV1().Namespaces().Create(w.t.Context(), &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name}}, metav1.CreateOptions{})
		w.must(err)
	}
	for _, n := range w.Nodes {
		w.pod("shop", n.Name, n, n.PodAddrs())
	}
	for _, a := range w.node.PodAddrs() {
		at := netip.AddrPortFrom(a, 80)
		w.servers = append(w.servers, at)
		w.node.Pod.TCPEcho(at)
	}
	var err error
	w.runtime, err = NewRuntime(w.node)
	w.must(err)
	w.ready()
}

func (w *guarded) must(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// soon waits for a condition and returns how long that took.
func (w *guarded) soon(what string, condition func() error) time.Duration {
	w.t.Helper()
	took, err := await(condition, patience)
	if err != nil {
		w.t.Fatalf("%s: %v", what, err)
	}
	return took
}

func (w *guarded) ready() { w.t.Helper(); w.soon("ready", w.node.Agent.Ready) }

// restart kills the agent and starts it with further arguments.
func (w *guarded) restart(args ...string) {
	w.t.Helper()
	w.node.Agent.Kill()
	w.must(w.node.Agent.Start(Options{Args: args}))
}

// pod makes a running Pod of the API.
func (w *guarded) pod(namespace, name string, n *Node, addrs []netip.Addr) {
	w.t.Helper()
	pods := w.Client.CoreV1().Pods(namespace)
	p, err := pods.Create(w.t.Context(), &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{"app": name}},
		Spec:       corev1.PodSpec{NodeName: n.Name, Containers: []corev1.Container{{Name: "c", Image: "i"}}},
	}, metav1.CreateOptions{})
	w.must(err)
	p.Status.Phase, p.Status.PodIP, p.Status.PodIPs = corev1.PodRunning, addrs[0].String(), podIPs(addrs)
	_, err = pods.UpdateStatus(w.t.Context(), p, metav1.UpdateOptions{})
	w.must(err)
}

func podIPs(addrs []netip.Addr) []corev1.PodIP {
	var out []corev1.PodIP
	for _, a := range addrs {
		out = append(out, corev1.PodIP{IP: a.String()})
	}
	return out
}

// deny writes a policy that allows the pods of shop nothing in.
func (w *guarded) deny() {
	w.t.Helper()
	_, err := w.Client.NetworkingV1().NetworkPolicies("shop").Create(w.t.Context(), &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Name: "deny"}, Spec: networkingv1.NetworkPolicySpec{PolicyTypes: []networkingv1.PolicyType{"Ingress"}},
	}, metav1.CreateOptions{})
	w.must(err)
}

func (w *guarded) allow() {
	w.t.Helper()
	err := w.Client.NetworkingV1().NetworkPolicies("shop").Delete(w.t.Context(), "deny", metav1.DeleteOptions{})
	if !apierrors.IsNotFound(err) {
		w.must(err)
	}
}

// asks makes one connection to each server, and returns what came of each. A packet that is not answered within the time is
// taken for one that was dropped.
func (w *guarded) asks() []error {
	var out []error
	for _, at := range w.servers {
		conn, err := w.Nodes[1].Pod.Dial("tcp", at, 300*time.Millisecond)
		if err == nil {
			err = conn.Close()
		}
		out = append(out, err)
	}
	return out
}

func (w *guarded) passes() error { return errors.Join(w.asks()...) }

func (w *guarded) drops() error {
	for i, err := range w.asks() {
		if err == nil {
			return fmt.Errorf("a connection to %s that the policy denies is made", w.servers[i])
		}
	}
	return nil
}

// silence sends echo requests that the policy denies while something is done, and wants none answered.
func (w *guarded) silence(do func()) {
	w.t.Helper()
	for _, a := range w.node.PodAddrs() {
		p := w.Nodes[1].Pod.StartPing(nstest.Ping{Dst: a, Interval: 5 * time.Millisecond})
		defer func() {
			r := p.Stop()
			w.t.Logf("%d echo requests to %s, %d answered", r.Sent, a, r.Sent-len(r.Lost))
			if r.Sent == 0 || len(r.Lost) != r.Sent {
				w.t.Errorf("%d of %d echo requests to %s were answered", r.Sent-len(r.Lost), r.Sent, a)
			}
		}()
	}
	do()
}

// stand tells which of the tables of policies are there.
func (w *guarded) stand() []string {
	w.t.Helper()
	text := w.node.NS.Run("nft", "list", "tables")
	var out []string
	for _, name := range []string{policy.TableName, attach.TableName} {
		if slices.Contains(strings.Split(text, "\n"), "table inet "+name) {
			out = append(out, name)
		}
	}
	return out
}

func (w *guarded) stands(want ...string) func() error {
	return func() error {
		if have := w.stand(); !slices.Equal(want, have) {
			return fmt.Errorf("tables %v; want %v", have, want)
		}
		text := w.node.NS.Run("nft", "list", "tables")
		if tags := strings.Contains(text, "table bridge "+policy.TableName); tags != (len(want) == 2) { // no frame goes around what drops
			return fmt.Errorf("the table of tags stands: %v", tags)
		}
		return nil
	}
}

func (w *guarded) both() func() error { return w.stands(policy.TableName, attach.TableName) }

// metric is the value of a series.
func (w *guarded) metric(series string) (float64, error) {
	text, err := w.node.Agent.Get("/metrics")
	if err != nil {
		return 0, err
	}
	for line := range strings.Lines(text) {
		if value, ok := strings.CutPrefix(line, series+" "); ok {
			return strconv.ParseFloat(strings.TrimSpace(value), 64)
		}
	}
	return 0, fmt.Errorf("no series %s", series)
}

func (w *guarded) shows(series string, want float64) func() error {
	return func() error {
		have, err := w.metric(series)
		if err == nil && have != want {
			err = fmt.Errorf("%s is %v; want %v", series, have, want)
		}
		return err
	}
}

// add makes a pod by the plugins, as kubelet does, and tells how long that took.
func (w *guarded) add(namespace, id string) (Sandbox, time.Duration) {
	w.t.Helper()
	l, err := w.runtime.list()
	w.must(err)
	w.must(execute("ip", "netns", "add", w.runtime.name(id)))
	ctx, cancel := context.WithTimeout(w.t.Context(), patience)
	defer cancel()
	begin := time.Now()
	result, err := w.runtime.cni.AddNetworkList(ctx, l, w.conf(namespace, id))
	took := time.Since(begin)
	w.must(err)
	raw, err := json.Marshal(result)
	w.must(err)
	return Sandbox{id, ipam.ResultAddrs(raw)}, took
}

func (w *guarded) del(namespace, id string) {
	w.t.Helper()
	l, err := w.runtime.list()
	w.must(err)
	w.must(w.runtime.cni.DelNetworkList(w.t.Context(), l, w.conf(namespace, id)))
	_ = execute("ip", "netns", "del", w.runtime.name(id))
}

// addrsOf are the addresses that a pod holds.
func (w *guarded) addrsOf(id string) []netip.Addr {
	w.t.Helper()
	all, err := ipam.Store{Dir: w.node.Path("cni/networks/cbr0")}.List()
	w.must(err)
	var out []netip.Addr
	for _, a := range all {
		if a.Owner.ContainerID == id {
			out = append(out, a.Addr)
		}
	}
	if len(out) != len(w.servers) {
		w.t.Fatalf("%s has %v in %v", id, out, all)
	}
	return out
}

func (w *guarded) conf(namespace, id string) *libcni.RuntimeConf {
	c := w.runtime.conf(id)
	c.Args = [][2]string{{"IgnoreUnknown", "1"}, {"K8S_POD_NAMESPACE", namespace}, {"K8S_POD_NAME", id}, {"K8S_POD_INFRA_CONTAINER_ID", id}}
	return c
}

// reaches asks a pod from the other node for an echo, a few times.
func (w *guarded) reaches(addrs ...netip.Addr) error {
	for _, a := range addrs {
		if r := w.Nodes[1].Pod.Ping(nstest.Ping{Dst: a}, 3); len(r.Lost) > 0 {
			return fmt.Errorf("%s: %s", a, r)
		}
	}
	return nil
}

// unreached wants a pod that is reached at none of its addresses.
func (w *guarded) unreached(addrs ...netip.Addr) error {
	for _, a := range addrs {
		if w.reaches(a) == nil {
			return fmt.Errorf("%s is reached", a)
		}
	}
	return nil
}

// exists looks for what the CNI plugin and the agent tell each other by.
func (w *guarded) exists() (out []string) {
	notes, socket := attach.Paths(w.node.Path("run/subnet.env"))
	for _, path := range []string{notes.Dir, socket} {
		if _, err := os.Lstat(path); err == nil {
			out = append(out, path)
		}
	}
	return out
}
