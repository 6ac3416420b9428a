package watch

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/http/httptest"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/subnet/kube"
)

// The cluster that the agent has to bear, and what it may take for it in all.
const (
	manyPods, manyPolicies, manyNamespaces = 100_000, 10_000, 5_000
	mostMemory                             = 250 << 20
)

// bulk is an API server that sends lists in protobuf, made while they are sent, and has watches that say nothing.
type bulk struct{}

type message interface{ Marshal() ([]byte, error) }

func (b bulk) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	q := r.URL.Query()
	switch {
	case q.Get("sendInitialEvents") == "true": // an older server
		http.Error(w, `{"kind":"Status","apiVersion":"v1","status":"Failure","reason":"Invalid","code":422}`, http.StatusUnprocessableEntity)
	case q.Get("watch") == "true":
		w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf;stream=watch")
		w.WriteHeader(http.StatusOK)
		w.(http.Flusher).Flush()
		<-r.Context().Done()
	case strings.HasSuffix(r.URL.Path, "/pods"):
		b.list(w, manyPods, bulkPod)
	case strings.HasSuffix(r.URL.Path, "/namespaces"):
		b.list(w, manyNamespaces, bulkNamespace)
	case strings.HasSuffix(r.URL.Path, "/networkpolicies"):
		b.list(w, manyPolicies, bulkPolicy)
	case strings.HasSuffix(r.URL.Path, "/customresourcedefinitions"):
		w.Header().Set("Content-Type", "application/json")
		_, _ = io.WriteString(w, `{"kind":"PartialObjectMetadataList","apiVersion":"meta.k8s.io/v1","metadata":{"resourceVersion":"7"},"items":[]}`)
	default:
		http.NotFound(w, r)
	}
}

// list sends n objects of one size: names have a fixed width, so the length of the whole is known before the first.
func (b bulk) list(w http.ResponseWriter, n int, make func(int) message) {
	w.Header().Set("Content-Type", "application/vnd.kubernetes.protobuf")
	field := func(tag byte, body []byte) []byte {
		return append(binary.AppendUvarint([]byte{tag}, uint64(len(body))), body...)
	}
	about, _ := (&metav1.ListMeta{ResourceVersion: "7"}).Marshal()
	first, _ := make(0).Marshal()
	head, size := field(1<<3|2, about), len(field(2<<3|2, first))
	_, _ = w.Write(append([]byte("k8s\x00"), binary.AppendUvarint([]byte{2<<3 | 2}, uint64(len(head)+n*size))...))
	_, _ = w.Write(head)
	for i := range n {
		body, _ := make(i).Marshal()
		_, _ = w.Write(field(2<<3|2, body))
	}
}

// bulkPod is a Pod as a Deployment's look, some 4 KB of it.
func bulkPod(i int) message {
	env := make([]corev1.EnvVar, 30)
	for j := range env {
		env[j] = corev1.EnvVar{Name: fmt.Sprintf("SETTING_%02d", j), Value: "http://service.namespace.svc.cluster.local:8080/path"}
	}
	node, ip := fmt.Sprintf("node-%04d", i/110), fmt.Sprintf("10.%03d.%03d.%03d", 100+i/65536, 100+i/256%100, 100+i%100)
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: fmt.Sprintf("namespace-%04d", i/10%manyNamespaces), Name: fmt.Sprintf("deployment-%06d-5d4f8c7b9d-%05d", i/10, i%100_000),
			UID: types.UID(fmt.Sprintf("6f9c1a2b-0000-4000-8000-%012d", i)),
			Labels: map[string]string{
				"app.kubernetes.io/name": fmt.Sprintf("deployment-%06d", i/10), "app.kubernetes.io/instance": fmt.Sprintf("release-%04d", i%5000),
				"pod-template-hash": fmt.Sprintf("%08x", i/10), "team": fmt.Sprintf("team-%02d", i%50), "tier": "backend",
			},
			Annotations:   map[string]string{"checksum/config": strings.Repeat("0123456789abcdef", 4)},
			ManagedFields: []metav1.ManagedFieldsEntry{{Manager: "kubelet", FieldsV1: metav1.NewFieldsV1(strings.Repeat(`{"f:status":{}}`, 60))}},
		},
		Spec: corev1.PodSpec{NodeName: node, Containers: []corev1.Container{{
			Name: "app", Image: "registry.example.com/team/app:v1.2.3", Env: env, Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: 8080}, {Name: "metrics", ContainerPort: 9090}},
		}}},
		Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip, PodIPs: []corev1.PodIP{{IP: ip}}},
	}
}

func bulkNamespace(i int) message {
	name := fmt.Sprintf("namespace-%04d", i)
	return &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: name, Labels: map[string]string{
		"kubernetes.io/metadata.name": name, "team": fmt.Sprintf("team-%02d", i%50), "environment": "production",
	}}}
}

func bulkPolicy(i int) message {
	port, udp := intstr.FromString("http"), corev1.ProtocolUDP
	dns := intstr.FromInt32(53)
	app := metav1.LabelSelector{MatchLabels: map[string]string{"app.kubernetes.io/name": fmt.Sprintf("deployment-%06d", i)}}
	return &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprintf("namespace-%04d", i%manyNamespaces), Name: fmt.Sprintf("policy-%05d", i), UID: types.UID(fmt.Sprintf("7f9c1a2b-0000-4000-8000-%012d", i))},
		Spec: networkingv1.NetworkPolicySpec{
			PodSelector: app, PolicyTypes: []networkingv1.PolicyType{"Ingress", "Egress"},
			Ingress: []networkingv1.NetworkPolicyIngressRule{{
				From:  []networkingv1.NetworkPolicyPeer{{NamespaceSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"team": fmt.Sprintf("team-%02d", i%50)}}, PodSelector: &metav1.LabelSelector{MatchLabels: map[string]string{"tier": "backend"}}}},
				Ports: []networkingv1.NetworkPolicyPort{{Port: &port}},
			}},
			Egress: []networkingv1.NetworkPolicyEgressRule{
				{To: []networkingv1.NetworkPolicyPeer{{IPBlock: &networkingv1.IPBlock{CIDR: "10.0.0.0/8", Except: []string{"10.96.0.0/12"}}}}},
				{Ports: []networkingv1.NetworkPolicyPort{{Protocol: &udp, Port: &dns}}},
			},
		},
	}
}

// serverAt is set in the process of its own that plays the agent: memory is a process's, and the server's is none of it.
const serverAt = "WEFT_TEST_BULK_SERVER"

// The largest cluster fits: while its lists come in, by the real client from an older server, which sends each list in one
// piece; while the rules are made of it; and afterwards.
func TestAHundredThousandPodsFit(t *testing.T) {
	if url := os.Getenv(serverAt); url != "" {
		bearCluster(t, url)
		return
	}
	if testing.Short() {
		t.Skip("long: half a minute of a whole processor")
	}
	h := httptest.NewServer(bulk{})
	defer h.Close()
	agent := exec.CommandContext(t.Context(), os.Args[0], "-test.run=^TestAHundredThousandPodsFit$", "-test.v")
	agent.Env = append(os.Environ(), serverAt+"="+h.URL)
	out, err := agent.CombinedOutput()
	if err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	for said := range strings.Lines(string(out)) {
		if _, figures, ok := strings.Cut(said, "figures: "); ok {
			t.Log(strings.TrimSpace(figures))
		}
	}
}

// bearCluster is the agent.
func bearCluster(t *testing.T, url string) {
	debug.SetMemoryLimit(190 << 20) // as the agent does
	client, err := kube.NewClient(kube.ClientOptions{APIURL: url})
	if err != nil {
		t.Fatal(err)
	}
	s := New(Config{Client: client, NodeName: "node-0001", Log: slog.New(slog.DiscardHandler)})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	began, idle := time.Now(), resident(t)
	stop := start(ctx, func(ctx context.Context) { _ = s.Run(ctx) })
	defer stop()
	for complete := false; !complete; _, complete = s.World() {
		if time.Sleep(10 * time.Millisecond); time.Since(began) > 5*time.Minute {
			t.Fatalf("no World: %s", s.Reason())
		}
	}
	w, _ := s.World()
	listed := resident(t)
	compiler := policy.NewCompiler()
	rules := compiler.Compile(w, policy.Config{})
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	most := resident(t)
	t.Logf("figures: %d pods (%d here), %d policies, %d namespaces in %v: live heap %d MiB; the process %d MiB at its start, at most %d MiB after the lists, %d MiB after the rules",
		len(w.Pods), local110(w), len(w.Policies), len(w.Namespaces), time.Since(began).Round(time.Second), m.HeapAlloc>>20, idle>>20, listed>>20, most>>20)
	if len(w.Pods) != manyPods || len(w.Policies) != manyPolicies || len(w.Namespaces) != manyNamespaces || rules.Empty() {
		t.Error("not all is there")
	}
	if most > mostMemory {
		t.Errorf("%d MiB, want at most %d", most>>20, mostMemory>>20)
	}
	runtime.KeepAlive(compiler)
}

func local110(w policy.World) (n int) {
	for _, p := range w.Pods {
		if p.Local {
			n++
		}
	}
	return n
}

// resident is the most memory that this process has had (proc(5), VmHWM).
func resident(t *testing.T) uint64 {
	t.Helper()
	text, err := os.ReadFile("/proc/self/status")
	if err != nil {
		t.Fatal(err)
	}
	var kib uint64
	_, after, _ := strings.Cut(string(text), "VmHWM:")
	if _, err := fmt.Sscan(after, &kib); err != nil {
		t.Fatal(err)
	}
	return kib << 10
}

// BenchmarkWorldAfterOnePod is what a change of one Pod costs in the largest cluster, up to the World.
func BenchmarkWorldAfterOnePod(b *testing.B) {
	in := newInterner()
	tab := newTable(pods("node-0001", in), func() {})
	var list []any
	for i := range manyPods {
		p := parsePod(bulkPod(i).(*corev1.Pod), "node-0001", in)
		list = append(list, slimOf(&tab.kind, p, nil))
	}
	if err := tab.Replace(list, ""); err != nil {
		b.Fatal(err)
	}
	tab.list()
	one := bulkPod(77).(*corev1.Pod)
	for i := 0; b.Loop(); i++ {
		one.Labels["turn"] = fmt.Sprint(i % 2)
		if err := tab.Add(one); err != nil {
			b.Fatal(err)
		}
		if all, _ := tab.list(); len(all) != manyPods {
			b.Fatal(len(all))
		}
	}
}

// BenchmarkKept is what is kept of an object, as a metric: the largest cluster is a hundred thousand, ten thousand and five
// thousand times that.
func BenchmarkKept(b *testing.B) {
	in := newInterner()
	b.Run("pod", func(b *testing.B) { kept(b, pods("node-0001", in), bulkPod) })
	b.Run("policy", func(b *testing.B) { kept(b, policies(), bulkPolicy) })
	b.Run("namespace", func(b *testing.B) { kept(b, namespaces(in), bulkNamespace) })
}

func kept[V any](b *testing.B, k kind[V], make func(int) message) {
	const n = 10_000
	heap := func() int64 {
		runtime.GC()
		runtime.GC()
		var m runtime.MemStats
		runtime.ReadMemStats(&m)
		return int64(m.HeapAlloc)
	}
	for b.Loop() {
		before := heap()
		tab := newTable(k, func() {})
		for i := range n {
			if err := tab.Add(make(i)); err != nil {
				b.Fatal(err)
			}
		}
		all, _ := tab.list()
		b.ReportMetric(float64(heap()-before)/float64(len(all)), "B/kept")
		runtime.KeepAlive(tab)
	}
}
