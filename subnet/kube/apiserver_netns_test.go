package kube_test

import (
	"context"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	rbacv1 "k8s.io/api/rbac/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

const flannelPrefix = kube.Prefix("flannel.alpha.coreos.com/")

// allow gives the agents' ServiceAccount rules, in the way of the manifest.
func allow(t testing.TB, admin *kubernetes.Clientset, rules ...rbacv1.PolicyRule) {
	t.Helper()
	ctx := context.Background()
	role := &rbacv1.ClusterRole{ObjectMeta: metav1.ObjectMeta{Name: "flannel"}, Rules: rules}
	_ = admin.RbacV1().ClusterRoles().Delete(ctx, "flannel", metav1.DeleteOptions{})
	if _, err := admin.RbacV1().ClusterRoles().Create(ctx, role, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
	_ = admin.RbacV1().ClusterRoleBindings().Delete(ctx, "flannel", metav1.DeleteOptions{})
	if _, err := admin.RbacV1().ClusterRoleBindings().Create(ctx, &rbacv1.ClusterRoleBinding{
		ObjectMeta: metav1.ObjectMeta{Name: "flannel"}, RoleRef: rbacv1.RoleRef{APIGroup: "rbac.authorization.k8s.io", Kind: "ClusterRole", Name: "flannel"},
		Subjects: []rbacv1.Subject{{Kind: "ServiceAccount", Name: "flannel", Namespace: "kube-flannel"}},
	}, metav1.CreateOptions{}); err != nil {
		t.Fatal(err)
	}
}

// flannelRules are those of flannel's own manifest; ours adds Events and kube-system's name.
func flannelRules() []rbacv1.PolicyRule {
	return []rbacv1.PolicyRule{
		{APIGroups: []string{""}, Resources: []string{"pods"}, Verbs: []string{"get"}},
		{APIGroups: []string{""}, Resources: []string{"nodes"}, Verbs: []string{"get", "list", "watch"}},
		{APIGroups: []string{""}, Resources: []string{"nodes/status"}, Verbs: []string{"patch"}},
	}
}

func ourRules() []rbacv1.PolicyRule {
	return append(flannelRules(),
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"events"}, Verbs: []string{"create", "patch"}},
		rbacv1.PolicyRule{APIGroups: []string{""}, Resources: []string{"namespaces"}, ResourceNames: []string{"kube-system"}, Verbs: []string{"get"}})
}

// world is the API server of a test and what is in it.
type world struct {
	*testing.T
	api   *apiserver.API
	admin *kubernetes.Clientset
}

// agent is what a daemon does with this package.
type agent struct {
	source    *kube.Source
	announce  chan kube.Announcement
	lastError chan error
}

func (w *world) client() *kube.Client {
	return w.clientOf(kube.ClientOptions{KubeconfigFile: w.api.Kubeconfig})
}

func (w *world) clientOf(o kube.ClientOptions) *kube.Client {
	w.Helper()
	o.UserAgent = "weft/test"
	c, err := kube.NewClient(o)
	if err != nil {
		w.Fatal(err)
	}
	return c
}

func (w *world) source(name string, lastGood ...subnet.Peer) *kube.Source {
	w.Helper()
	return w.run(kube.SourceConfig{Client: w.client(), NodeName: name, LastGood: lastGood})
}

// run runs a source until the test ends.
func (w *world) run(cfg kube.SourceConfig) *kube.Source {
	w.Helper()
	if cfg.Log == nil {
		cfg.Log = slog.New(slog.NewTextHandler(io.Discard, nil))
	}
	cfg.Rules = kube.Rules{Prefix: flannelPrefix, Networks: podNetwork()}
	s := kube.NewSource(cfg)
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.Run(ctx) }()
	w.Cleanup(func() {
		cancel()
		began := time.Now()
		select {
		case err := <-done:
			if err != nil {
				w.Error(err)
			}
			if took := time.Since(began); took > 2*time.Second {
				w.Logf("Run ended %v after its context", took)
			}
		case <-time.After(20 * time.Second):
			w.Error("Run goes on 20 s after its context ended")
		}
	})
	return s
}

// spoken is a log that remembers its lines from Info on.
type spoken struct {
	mu   sync.Mutex // guards text
	text []string
}

func (s *spoken) logger() *slog.Logger { return slog.New(slog.NewTextHandler(s, nil)) }

// Write implements io.Writer: a handler writes one line at a time.
func (s *spoken) Write(line []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.text = append(s.text, string(line))
	return len(line), nil
}

func (s *spoken) lines() []string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return slices.Clone(s.text)
}

// start runs an agent: it syncs on each change and a second after each error, as backend.Loop does.
func (w *world) start(name string, first kube.Announcement) *agent {
	w.Helper()
	a := &agent{source: w.source(name), announce: make(chan kube.Announcement, 1), lastError: make(chan error, 100)}
	client, log := w.client(), slog.New(slog.NewTextHandler(io.Discard, nil))
	r := kube.NewRegistrar(kube.RegistrarConfig{
		Client: client, NodeName: name, Prefix: flannelPrefix, Conf: conf(), Events: kube.NewEvents(client, log), Log: log,
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan struct{})
	go func() {
		defer close(done)
		ann, retry := first, time.NewTimer(time.Hour)
		for {
			select {
			case <-ctx.Done():
				return
			case ann = <-a.announce:
			case <-a.source.Changed():
			case <-retry.C:
			}
			snap, _ := a.source.Snapshot()
			if err := r.Sync(ctx, snap, ann); err != nil {
				retry.Reset(time.Second)
				select {
				case a.lastError <- err:
				default:
				}
			}
		}
	}()
	w.Cleanup(func() { cancel(); <-done })
	return a
}

func announcement(ip, mac string) kube.Announcement {
	m, err := subnet.ParseMAC(mac)
	if err != nil {
		panic(err)
	}
	a := kube.Announcement{BackendType: "vxlan", VNI: 1, Port: 4789, Ready: true}
	for _, f := range families() {
		a.PublicIP[f], a.MAC[f] = netip.MustParseAddr(in(f, ip)), m
	}
	return a
}

func annotations(ip, mac string) map[string]string {
	return map[string]string{
		string(flannelPrefix) + "kube-subnet-manager": "true",
		string(flannelPrefix) + "backend-type":        "vxlan",
		string(flannelPrefix) + "backend-data":        `{"VNI":1,"VtepMAC":"` + mac + `"}`,
		string(flannelPrefix) + "public-ip":           ip,
	}
}

// node creates a Node and removes it with the test.
func (w *world) node(name, cidr string, said map[string]string) *corev1.Node {
	w.Helper()
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	if said != nil {
		n.Annotations = notes(said)
	}
	if cidr != "" {
		n.Spec = corev1.NodeSpec{PodCIDR: cidrs(cidr)[0], PodCIDRs: cidrs(cidr)}
	}
	n, err := w.admin.CoreV1().Nodes().Create(context.Background(), n, metav1.CreateOptions{})
	if err != nil {
		w.Fatal(err)
	}
	w.Cleanup(func() { w.remove(name) })
	return n
}

func (w *world) remove(name string) {
	_ = w.admin.CoreV1().Nodes().Delete(context.Background(), name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
}

func (w *world) get(name string) *corev1.Node {
	w.Helper()
	n, err := w.admin.CoreV1().Nodes().Get(context.Background(), name, metav1.GetOptions{})
	if err != nil {
		w.Fatal(err)
	}
	return n
}

func (w *world) patch(name, kind, body string, sub ...string) {
	w.Helper()
	text, err := patched(body)
	if err != nil {
		w.Fatal(err)
	}
	if _, err := w.admin.CoreV1().Nodes().Patch(context.Background(), name, types.PatchType(kind), text, metav1.PatchOptions{}, sub...); err != nil {
		w.Fatal(err)
	}
}

// carries waits until a Node has all of the annotations; "" means that the key is not there.
func (w *world) carries(name string, within time.Duration, want map[string]string) time.Duration {
	w.Helper()
	return nstest.Eventually(w, within, func() error {
		have := w.get(name).Annotations
		for k, v := range notes(want) {
			if have[k] != v {
				return fmt.Errorf("node %s has %s=%q, want %q", name, k, have[k], v)
			}
		}
		return nil
	})
}

// peers waits until a source has exactly these peers, each "name cidr ip mac".
func (w *world) peers(s *kube.Source, within time.Duration, want ...string) time.Duration {
	w.Helper()
	return nstest.Eventually(w, within, func() error {
		snap, complete := s.Snapshot()
		for _, f := range families() {
			var have, wanted []string
			for _, p := range snap.Peers {
				e := p.Endpoints[f]
				have = append(have, fmt.Sprintf("%s %s %s %s", p.Name, e.PodCIDR, e.PublicIP, e.MAC))
			}
			for _, line := range want {
				wanted = append(wanted, in(f, line))
			}
			if !complete || strings.Join(have, "\n") != strings.Join(wanted, "\n") {
				return fmt.Errorf("complete=%v peers:\n%s\nwant:\n%s", complete, strings.Join(have, "\n"), strings.Join(wanted, "\n"))
			}
		}
		return nil
	})
}

// apiCase is what one test does with a server that it shares with others.
type apiCase struct {
	name string
	run  func(*world)
}

// against runs cases one after the other on one API server.
func against(t *testing.T, cases ...apiCase) {
	t.Helper()
	nstest.NeedRoot(t)
	api := apiserver.Start(t)
	admin := api.Admin()
	allow(t, admin, ourRules()...)
	for _, c := range cases {
		t.Run(c.name, func(t *testing.T) {
			t.Cleanup(func() { api.Proxy.SetFault(nil); api.Proxy.Open() })
			c.run(&world{T: t, api: api, admin: admin})
		})
	}
}

func TestAgainstARealAPIServer(t *testing.T) {
	t.Parallel()
	against(t, []apiCase{
		{"a node is announced with flannel's bytes and stays so when stripped", testAnnounce},
		{"a node that changes its backend is read as it means it", testRollOut},
		{"D-01 a pod CIDR that comes late is taken without a restart", testD01},
		{"D-02 a pod CIDR outside Network is not announced", testD02},
		{"D-03 the node name is found as soon as the server is there", testD03},
		{"D-15 the condition is cleared when ready and put back", testD15},
		{"I-04 the overwrite is announced live and taken back", testI04},
		{"L-02 heartbeats change nothing and updates come as protobuf", testL02},
		{"L-03 a restart writes nothing", testL03},
		{"errors of the server are retried", testServerErrors},
		{"P-05 delete and create folded into one update", testP05},
		{"an old server without streaming lists and a stale list", testStaleList},
		{"X-03 a foreign change is put back and told", testX03},
		{"two agents of one name do not storm the server", testDuel},
		{"an Event said twice is one", testEvents},
		{"P-12 bad nodes are skipped one by one and come back", testProblems},
		{"K-07 unregistering takes off what is ours", testK07},
		{"flannel's own ClusterRole is enough", testFlannelRole},
		{"L-07 P-08 two hundred nodes that join at once are all seen", testManyJoin},
		{"L-02 five thousand updates in a second are a few snapshots", testStorm},
		{"P-12 hostile nodes are named in short, clean words", testHostile},
	}...)
}

// TestAgainstARealAPIServerThatGoesAway has those that mostly wait for it.
func TestAgainstARealAPIServerThatGoesAway(t *testing.T) {
	t.Parallel()
	against(t, []apiCase{
		{"D-03 a black hole on the way is left within two seconds of its end", testD03Blackhole},
		{"P-13 an outage ends in a relist", testP13},
		{"TLS and HTTP/2 through a restart of the server", testTLS},
		{"no outage changes the view, and what happened meanwhile is seen after it", testOutages},
		{"a source that starts in an outage comes up after it", testStartsInOutages},
		{"a server that lags behind takes nobody back in time", testLagging},
		{"K-08 a restored backup is followed", testRestored},
		{"a certificate of another authority is trusted as soon as its bundle is there", testNewAuthority},
		{"a token that was replaced is used at once", testNewToken},
		{"a connection that only one side knows of is found out", testHalfOpen},
	}...)
}

// TestWhatAgentsLeaveBehind counts the goroutines and the memory of this process, so nothing else may run in it.
func TestWhatAgentsLeaveBehind(t *testing.T) {
	against(t, apiCase{"L-08 churn and cut watches leave neither goroutines nor memory behind", testL08})
}

const (
	ip1, ip2, ip3    = "192.168.50.1", "192.168.50.2", "192.168.50.3"
	mac1, mac2, mac3 = "0a:00:00:00:00:01", "0a:00:00:00:00:02", "0a:00:00:00:00:03"
)

func testAnnounce(w *world) {
	w.node("n1", "10.244.1.0/24", nil)
	w.node("n2", "10.244.2.0/24", annotations(ip2, mac2))
	a := w.start("n1", announcement(ip1, mac1))
	want := annotations(ip1, mac1)
	want[string(flannelPrefix)+"backend-port"] = "4789"
	w.Logf("announced after %v", w.carries("n1", back, want))
	w.peers(a.source, back, "n2 10.244.2.0/24 192.168.50.2 0a:00:00:00:00:02")

	w.patch("n1", string(types.MergePatchType), `{"metadata":{"annotations":null}}`)
	w.Logf("stripped: back after %v", w.carries("n1", back, want))
	w.patch("n1", string(types.MergePatchType), `{"metadata":{"annotations":{"`+string(flannelPrefix)+`public-ip":"10.0.0.9"}}}`)
	w.Logf("changed: back after %v", w.carries("n1", back, want))

	w.remove("n1")
	w.node("n1", "10.244.7.0/24", nil)
	w.Logf("re-created: back after %v", w.carries("n1", back, want))
	nstest.Eventually(w, back, func() error {
		for _, f := range families() {
			if snap, _ := a.source.Snapshot(); snap.Self.PodCIDRs[f].String() != in(f, "10.244.7.0/24") {
				return fmt.Errorf("own pod CIDR is %v", snap.Self.PodCIDRs)
			}
		}
		return nil
	})
	a.announce <- announcement(ip1, mac3)
	want[string(flannelPrefix)+"backend-data"] = `{"VNI":1,"VtepMAC":"` + mac3 + `"}`
	w.Logf("new MAC: out after %v", w.carries("n1", back, want))
}

func testD01(w *world) {
	a := w.start("n1", announcement(ip1, mac1)) // there is no Node yet
	nstest.Eventually(w, back, func() error { return wantError(a, subnet.ErrNoNode) })
	w.node("n1", "", nil)
	nstest.Eventually(w, back, func() error { return wantError(a, subnet.ErrNoPodCIDR) })
	w.patch("n1", string(types.StrategicMergePatchType), `{"spec":{"podCIDR":"10.244.1.0/24","podCIDRs":["10.244.1.0/24"]}}`)
	w.Logf("announced %v after the range came", w.carries("n1", back, annotations(ip1, mac1)))
	w.event("n1", "NoPodCIDR", "--cluster-cidr")
}

func testD02(w *world) {
	w.node("n1", "10.42.1.0/24", nil)
	w.node("n2", "10.42.2.0/24", annotations(ip2, mac2))
	a := w.start("n1", announcement(ip1, mac1))
	nstest.Eventually(w, back, func() error { return wantError(a, subnet.ErrOutsideNetwork) })
	w.peers(a.source, back)
	if snap, _ := a.source.Snapshot(); len(snap.Problems) != len(families()) || snap.Problems[0].Reason != kube.ReasonOutsideNetwork {
		w.Errorf("problems: %v", snap.Problems)
	}
	if got := w.get("n1").Annotations; len(got) != 0 {
		w.Errorf("announced before the check: %v", got)
	}
}

func testD03(w *world) {
	w.pod("agent-1", "n1")
	w.api.Proxy.Close()
	reasons := make(chan string, 100)
	names := make(chan string, 1)
	go func() {
		name, err := kube.NodeName(w.Context(), w.client(), kube.NameSource{PodName: "agent-1", PodNamespace: "default"},
			func(r string) { reasons <- r })
		if err != nil {
			name = err.Error()
		}
		names <- name
	}()
	if r := <-reasons; !strings.Contains(r, w.api.URL) || !strings.Contains(r, "kube-proxy") {
		w.Errorf("reason %q names neither the server nor kube-proxy", r)
	}
	w.api.Proxy.Open()
	select {
	case name := <-names:
		if name != "n1" {
			w.Errorf("node name %q, want n1", name)
		}
	case <-time.After(back):
		w.Error("no node name after the server's return")
	}
}

func testD03Blackhole(w *world) {
	w.node("n2", "10.244.2.0/24", annotations(ip2, mac2))
	fabric := nstest.NewFabric(w.T, 2)
	node, control := fabric.Nodes[0], fabric.Nodes[1]
	control.Run("nft", "add table ip hole; add chain ip hole in { type filter hook input priority 0; }; add rule ip hole in drop")
	url := w.api.Proxy.Listen(w.T, control, netip.AddrPortFrom(fabric.Addr(2), 6443).String())
	client, err := kube.NewClient(kube.ClientOptions{KubeconfigFile: w.api.KubeconfigFor(url), Dial: dialIn(node)})
	if err != nil {
		w.Fatal(err)
	}
	s := kube.NewSource(kube.SourceConfig{Client: client, NodeName: "n1", Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
		Rules: kube.Rules{Prefix: flannelPrefix, Networks: podNetwork()}})
	ctx, cancel := context.WithCancel(w.Context())
	defer cancel()
	go func() { _ = s.Run(ctx) }()
	nstest.Eventually(w, back, func() error {
		if r := s.Reason(); !strings.Contains(r, "not reachable") {
			return fmt.Errorf("reason: %s", r)
		}
		return nil
	})
	// The longer it lasts, the further apart the kernel sends a lost SYN again; here the third has been sent, and the fourth is
	// 6 s away.
	hole := time.NewTimer(9 * time.Second)
	<-hole.C
	control.Run("nft", "delete table ip hole")
	w.Logf("synced %v after the hole", w.peers(s, 5*time.Second, "n2 10.244.2.0/24 192.168.50.2 0a:00:00:00:00:02")) // by itself it would take 6 s
	cancel()
}

func testD15(w *world) {
	w.node("n1", "10.244.1.0/24", nil)
	unavailable := `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"NoRouteCreated"}]}}`
	w.patch("n1", string(types.StrategicMergePatchType), unavailable, "status")
	notReady := announcement(ip1, mac1)
	notReady.Ready = false
	a := w.start("n1", notReady)
	w.carries("n1", back, annotations(ip1, mac1))
	if got := w.condition("n1"); got.Status != corev1.ConditionTrue {
		w.Errorf("cleared before ready: %v", got)
	}
	refused := time.Now().Add(3 * time.Second)
	w.api.Proxy.SetFault(func(rw http.ResponseWriter, r *http.Request) bool {
		if r.Method != http.MethodPatch || time.Now().After(refused) {
			return false
		}
		http.Error(rw, "the test refuses", http.StatusInternalServerError)
		return true
	})
	a.announce <- announcement(ip1, mac1)
	w.cleared("n1", back)
	if got := w.condition("n1"); got.Reason != "FlannelIsUp" || got.Message != "Flannel is running on this node" || got.LastTransitionTime.IsZero() {
		w.Errorf("condition: %+v", got)
	}
	w.patch("n1", string(types.StrategicMergePatchType), unavailable, "status")
	w.cleared("n1", back)
}

func testI04(w *world) {
	notes := map[string]string{string(flannelPrefix) + "public-ip-overwrite": "203.0.113.7", string(flannelPrefix) + "public-ip": "10.9.9.9"}
	w.node("n1", "10.244.1.0/24", notes)
	a := w.start("n1", announcement(ip1, mac1))
	key := string(flannelPrefix) + "public-ip"
	w.carries("n1", back, map[string]string{key: "203.0.113.7", key + "-overwrite": "203.0.113.7"})
	for _, f := range families() {
		if snap, _ := a.source.Snapshot(); snap.Self.Overwrite[f].String() != in(f, "203.0.113.7") || snap.Self.NodePublicIP[f].IsValid() {
			w.Errorf("self: %+v", snap.Self)
		}
	}
	w.patch("n1", string(types.MergePatchType), `{"metadata":{"annotations":{"`+key+`-overwrite":"203.0.113.8"}}}`)
	w.carries("n1", back, map[string]string{key: "203.0.113.8"})
	w.patch("n1", string(types.MergePatchType), `{"metadata":{"annotations":{"`+key+`-overwrite":"nonsense"}}}`)
	w.carries("n1", back, map[string]string{key: ip1, key + "-overwrite": "nonsense"})
	w.event("n1", kube.ReasonBadAnnotation, "nonsense")
}

func wantError(a *agent, want error) error {
	select {
	case err := <-a.lastError:
		if errors.Is(err, want) {
			return nil
		}
		return err
	default:
		return errors.New("no error yet")
	}
}
