package policy_test

import (
	"context"
	"fmt"
	"net/netip"
	"runtime"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/tests/nstest"
)

// bigWorld is a cluster of 5,000 namespaces, with 20 pods and 2 policies each, seen from a node with 110 pods. Each of these
// is selected by some policies of the cluster's largest namespace, half of which let in pods of all namespaces.
func bigWorld(pods, policies int) policy.World {
	var w policy.World
	spaces := max(pods/20, 1)
	names := make([]string, spaces)
	for i := range spaces {
		names[i] = fmt.Sprintf("ns%04d", i)
		w.Namespaces = append(w.Namespaces, &policy.Namespace{Name: names[i], Labels: policy.LabelsOf(map[string]string{
			"kubernetes.io/metadata.name": names[i], "team": fmt.Sprint("t", i%50),
		})})
	}
	for i := range pods {
		w.Pods = append(w.Pods, bigPod(names[i*spaces/pods], i))
	}
	for i := range 110 {
		p := bigPod(names[0], pods+i)
		p.Local, p.Name = true, fmt.Sprintf("z%03d", i)
		w.Pods = append(w.Pods, p)
	}
	for i := range policies {
		w.Policies = append(w.Policies, bigPolicy(names[i*spaces/policies], i))
	}
	for i := range 100 {
		w.Policies = append(w.Policies, bigPolicy(names[0], policies+i))
	}
	slices.SortFunc(w.Pods, func(a, b *policy.Pod) int { return strings.Compare(a.Namespace+" "+a.Name, b.Namespace+" "+b.Name) })
	slices.SortFunc(w.Policies, func(a, b *policy.NetworkPolicy) int {
		return strings.Compare(a.Namespace+" "+a.Name, b.Namespace+" "+b.Name)
	})
	return w
}

func bigPod(ns string, i int) *policy.Pod {
	name := fmt.Sprintf("pod%06d", i)
	return &policy.Pod{
		Namespace: ns, Name: name, UID: name, Phase: policy.Running,
		Labels: policy.LabelsOf(map[string]string{
			"app": fmt.Sprint("app", i%100), "pod-template-hash": fmt.Sprint(i % 1000), "tier": fmt.Sprint(i % 3), "version": "v1", "env": "prod",
		}),
		Addrs: [2]netip.Addr{netip.AddrFrom4([4]byte{10, byte(i >> 16), byte(i >> 8), byte(i)})},
		Ports: []policy.NamedPort{{Name: "http", Proto: policy.TCP, Port: 8080}},
	}
}

// bigPolicy lets in the pods of one application: those of the own namespace, or those of all.
func bigPolicy(ns string, i int) *policy.NetworkPolicy {
	app := policy.Selector{All: []policy.Requirement{{Key: "app", Op: policy.In, Values: []string{fmt.Sprint("app", i%100)}}}}
	peer := policy.Peer{Namespace: ns, Pods: app}
	if i%2 == 0 {
		peer = policy.Peer{Namespaces: &policy.Selector{}, Pods: app}
	}
	np := &policy.NetworkPolicy{Namespace: ns, Name: fmt.Sprintf("np%05d", i), Pods: policy.Selector{}}
	np.Isolates = [2]bool{true, false}
	np.Rules[policy.Ingress] = []policy.Rule{{Peers: []policy.Peer{peer}, Ports: []policy.Port{port(policy.TCP, 8080)}}}
	return np
}

// replaced is a World with another pod in one place.
func replaced(w policy.World, i int, p *policy.Pod) policy.World {
	w.Pods = slices.Clone(w.Pods)
	w.Pods[i] = p
	return w
}

func BenchmarkCompileOf100000PodsAnd10000PoliciesAfresh(b *testing.B) {
	w := bigWorld(100_000, 10_000)
	begin := cpu()
	for b.Loop() {
		policy.Compile(w, policy.Config{})
	}
	b.ReportMetric((cpu()-begin).Seconds()*1000/float64(b.N), "cpu-ms/op")
}

// cpu is the processor time of this process so far: on a machine that others use it says more than the clock.
func cpu() time.Duration {
	var u unix.Rusage
	_ = unix.Getrusage(unix.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

func BenchmarkCompileAfterOnePodOf100000Changed(b *testing.B) {
	w := bigWorld(100_000, 10_000)
	c := policy.NewCompiler()
	c.Compile(w, policy.Config{})
	i := len(w.Pods) / 2
	begin := cpu()
	for n := 0; b.Loop(); n++ {
		p := *w.Pods[i]
		p.Labels = policy.LabelsOf(map[string]string{"app": fmt.Sprint("app", n%100)})
		w = replaced(w, i, &p)
		c.Compile(w, policy.Config{})
	}
	b.ReportMetric((cpu()-begin).Seconds()*1000/float64(b.N), "cpu-ms/op")
}

func TestAChangeOfOnePodAmong100000IsSmallInTheKernelToo(t *testing.T) {
	nstest.NeedRoot(t)
	n := nstest.New(t)
	var commands int
	host := netfilter.Host{NetNS: n.Path(), OnExec: func([]string) { commands++ }}
	m := policy.NewGuarded(host)
	defer m.Close()
	defer watched(t, m)()
	w := bigWorld(100_000, 10_000)
	sync := func() time.Duration {
		t.Helper()
		begin := time.Now()
		if _, err := m.Sync(context.Background(), w, policy.Config{}); err != nil {
			t.Fatal(err)
		}
		return time.Since(begin)
	}
	t.Logf("the first sync takes %v", sync())
	var took []time.Duration
	commands = 0
	for k := range 20 {
		p := *w.Pods[500+k]
		p.Labels = policy.LabelsOf(map[string]string{"app": fmt.Sprint("app", 2*k)})
		w = replaced(w, 500+k, &p)
		took = append(took, sync())
	}
	slices.Sort(took)
	var mem runtime.MemStats
	runtime.GC()
	runtime.ReadMemStats(&mem)
	t.Logf("one pod: median %v, longest %v, %d programs for 20 changes; heap %d MiB", took[10], took[19], commands, mem.HeapAlloc>>20)
	if commands > 60 {
		t.Errorf("%d programs for 20 changes", commands)
	}
	if res, err := policy.New(host).Sync(context.Background(), w, policy.Config{}); err != nil || len(res.Changes) > 0 {
		t.Errorf("the kernel holds something else: %v %v", res.Changes, err)
	}
}
