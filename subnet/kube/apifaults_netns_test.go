package kube_test

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"log/slog"
	"net"
	"net/http"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

func testL02(w *world) {
	w.node("n1", "10.244.1.0/24", nil)
	w.node("n2", "10.244.2.0/24", annotations(ip2, mac2))
	isNodes := func(r apiserver.Request) bool { return strings.HasPrefix(r.Path, "/api/v1/nodes") }
	w.api.Proxy.Requests(isNodes)
	s := w.source("n1")
	w.peers(s, back, "n2 10.244.2.0/24 192.168.50.2 0a:00:00:00:00:02")
	for _, r := range w.api.Proxy.Requests(isNodes) {
		if !strings.Contains(r.Accept, "application/vnd.kubernetes.protobuf") {
			w.Errorf("not asked for protobuf: %+v", r)
		}
		if strings.Contains(r.Query, "watch=true") && !strings.Contains(r.Query, "sendInitialEvents=true") {
			w.Errorf("not a streaming list: %+v", r)
		}
	}
	nstest.Eventually(w, back, func() error { // it comes by a request of its own
		if snap, _ := s.Snapshot(); snap.ClusterID == "" {
			return errors.New("the cluster has no name yet")
		}
		return nil
	})
	drain(s)
	for i := range 20 {
		w.patch("n2", string(types.StrategicMergePatchType), fmt.Sprintf(
			`{"metadata":{"labels":{"beat":"%d"}},"status":{"conditions":[{"type":"Ready","status":"True","reason":"beat%d"}]}}`, i, i), "status")
	}
	w.patch("n2", string(types.MergePatchType), `{"metadata":{"annotations":{"`+string(flannelPrefix)+`public-ip":"192.168.50.9"}}}`)
	w.peers(s, back, "n2 10.244.2.0/24 192.168.50.9 0a:00:00:00:00:02")
	if n := drain(s); n != 1 {
		w.Errorf("%d changes for 20 heartbeats and one change, want 1", n)
	}
}

// drain takes what Changed has right now; a change that is on its way comes within the builder's settling time.
func drain(s *kube.Source) int {
	n := 0
	for {
		select {
		case <-s.Changed():
			n++
		case <-time.After(200 * time.Millisecond):
			return n
		}
	}
}

func testL03(w *world) {
	w.node("n1", "10.244.1.0/24", nil)
	w.start("n1", announcement(ip1, mac1))
	w.carries("n1", back, annotations(ip1, mac1))
	w.cleared("n1", back)
	writes := func(r apiserver.Request) bool { return r.Method != http.MethodGet }
	w.api.Proxy.Requests(writes)
	again := w.start("n1", announcement(ip1, mac1))
	w.peers(again.source, back)
	again.announce <- announcement(ip1, mac1)
	again.announce <- announcement(ip1, mac1) // the loop has taken the first by now
	if got := w.api.Proxy.Requests(writes); len(got) != 0 {
		w.Errorf("a restart wrote: %v", got)
	}
}

func testServerErrors(w *world) {
	codes := []int{http.StatusConflict, http.StatusTooManyRequests, http.StatusInternalServerError, http.StatusServiceUnavailable}
	left := map[string]*atomic.Int32{} // refusals that a Node has before it
	nameOf := func(code int) string { return fmt.Sprintf("err%d", code) }
	for _, code := range codes {
		w.node(nameOf(code), fmt.Sprintf("10.244.%d.0/24", code-400+1), nil)
		left[nameOf(code)] = new(atomic.Int32)
		left[nameOf(code)].Store(3)
	}
	w.api.Proxy.SetFault(func(rw http.ResponseWriter, r *http.Request) bool {
		for _, code := range codes {
			if r.Method != http.MethodPatch || !strings.Contains(r.URL.Path, nameOf(code)) || left[nameOf(code)].Add(-1) < 0 {
				continue
			}
			if code == http.StatusTooManyRequests {
				rw.Header().Set("Retry-After", "1")
			}
			answer(rw, code)
			return true
		}
		return false
	})
	for _, code := range codes {
		w.start(nameOf(code), announcement(ip1, mac1))
	}
	for _, code := range codes {
		w.Logf("%d three times: announced after %v", code, w.carries(nameOf(code), back, annotations(ip1, mac1)))
		if left[nameOf(code)].Load() >= 0 {
			w.Errorf("%d: the fault was not met", code)
		}
	}
	// Lists and watches too: a source comes up through a server that answers 500 and 429 to nearly everything.
	var n atomic.Int32
	w.api.Proxy.SetFault(func(rw http.ResponseWriter, r *http.Request) bool {
		if i := n.Add(1); i <= 6 {
			answer(rw, []int{http.StatusInternalServerError, http.StatusTooManyRequests}[i%2])
			return true
		}
		return false
	})
	s := w.source("nobody")
	nstest.Eventually(w, back, func() error {
		if _, complete := s.Snapshot(); !complete {
			return fmt.Errorf("not complete: %s", s.Reason())
		}
		return nil
	})
}

// answer is an error in the API's own form.
func answer(w http.ResponseWriter, code int) {
	w.Header().Set("Content-Type", "application/json")
	w.WriteHeader(code)
	_ = json.NewEncoder(w).Encode(metav1.Status{ // the client may be gone
		TypeMeta: metav1.TypeMeta{Kind: "Status", APIVersion: "v1"}, Status: metav1.StatusFailure, Code: int32(code), Message: "the test says no",
	})
}

func testP05(w *world) {
	w.node("n2", "10.244.2.0/24", annotations(ip2, mac2))
	s := w.source("n1")
	w.peers(s, back, "n2 10.244.2.0/24 192.168.50.2 0a:00:00:00:00:02")
	w.api.Proxy.Close()
	w.remove("n2")
	w.node("n2", "10.244.3.0/24", annotations(ip3, mac3))
	w.api.Proxy.Open()
	w.Logf("the new n2 is there after %v", w.peers(s, back, "n2 10.244.3.0/24 192.168.50.3 0a:00:00:00:00:03"))
}

func testP13(w *world) {
	w.node("b", "10.244.2.0/24", annotations(ip2, mac2))
	s := w.source("n1")
	w.peers(s, back, "b 10.244.2.0/24 192.168.50.2 0a:00:00:00:00:02")
	before, _ := s.Snapshot()
	if before.ClusterID == "" || s.Reason() != "" {
		w.Errorf("cluster %q, reason %q", before.ClusterID, s.Reason())
	}
	w.api.Proxy.Close()
	began := time.Now()
	nstest.Eventually(w, back, func() error {
		if since, stale := s.Stale(); !stale || !strings.Contains(s.Reason(), "not reachable") || since.Before(began.Add(-time.Second)) {
			return fmt.Errorf("stale %v since %v: %s", stale, since, s.Reason())
		}
		return nil
	})
	w.remove("b")
	w.node("c", "10.244.3.0/24", annotations(ip3, mac3))
	w.api.Compact()
	w.api.Stop()
	w.api.Resume()
	if during, complete := s.Snapshot(); !complete || len(during.Peers) != 1 || during.Peers[0].Name != "b" {
		w.Errorf("the view changed during the outage: %v", during.Peers)
	}
	w.api.Proxy.Open()
	w.Logf("converged %v after the outage", w.peers(s, back, "c 10.244.3.0/24 192.168.50.3 0a:00:00:00:00:03"))
	if _, stale := s.Stale(); stale {
		w.Error("still stale after the outage")
	}
}

// testStaleList has a server that knows no streaming lists, and one of several API servers that lags behind: the first
// list is from before a change, and the watch brings the rest.
func testStaleList(w *world) {
	w.node("b", "10.244.2.0/24", annotations(ip2, mac2))
	old := w.list()
	w.remove("b")
	w.node("c", "10.244.3.0/24", annotations(ip3, mac3))
	var lists atomic.Int32
	w.api.Proxy.SetFault(func(rw http.ResponseWriter, r *http.Request) bool {
		q := r.URL.Query()
		switch {
		case q.Get("sendInitialEvents") == "true":
			answer(rw, http.StatusUnprocessableEntity)
		case r.URL.Path == "/api/v1/nodes" && q.Get("watch") == "":
			if q.Get("resourceVersion") != "0" {
				w.Errorf("a list that is not from the server's cache: %s", r.URL)
			}
			lists.Add(1)
			rw.Header().Set("Content-Type", "application/json")
			_, _ = rw.Write(old) // the client may be gone
		default:
			return false
		}
		return true
	})
	s := w.source("n1")
	w.peers(s, back, "c 10.244.3.0/24 192.168.50.3 0a:00:00:00:00:03")
	if lists.Load() != 1 {
		w.Errorf("%d lists, want 1", lists.Load())
	}
	w.api.Proxy.SetFault(noStreaming)
	w.peers(w.source("n1"), back, "c 10.244.3.0/24 192.168.50.3 0a:00:00:00:00:03") // a real list, in protobuf
}

// noStreaming makes the server one that knows no streaming lists.
func noStreaming(w http.ResponseWriter, r *http.Request) bool {
	if r.URL.Query().Get("sendInitialEvents") != "true" {
		return false
	}
	answer(w, http.StatusUnprocessableEntity)
	return true
}

// list is a list of Nodes in JSON as the server gives it now.
func (w *world) list() []byte {
	w.Helper()
	raw, err := w.admin.CoreV1().RESTClient().Get().Resource("nodes").SetHeader("Accept", "application/json").DoRaw(w.Context())
	if err != nil {
		w.Fatal(err)
	}
	return raw
}

func testX03(w *world) {
	w.node("n1", "10.244.1.0/24", nil)
	w.start("n1", announcement(ip1, mac1))
	w.carries("n1", back, annotations(ip1, mac1))
	w.cleared("n1", back)
	w.patch("n1", string(types.MergePatchType), `{"metadata":{"annotations":{"secret":"hunter2","`+string(flannelPrefix)+`public-ip":"10.66.6.6"}}}`)
	w.carries("n1", back, annotations(ip1, mac1))
	if text := w.event("n1", "AnnotationsChanged", in(families()[0], "10.66.6.6")); strings.Contains(text, "hunter2") {
		w.Errorf("X-07: the Event shows other annotations: %s", text)
	}
}

// testTLS goes the way of a real cluster, without the proxy, through a restart of the server; and meets a server that it
// must not trust.
func testTLS(w *world) {
	w.node("n2", "10.244.2.0/24", annotations(ip2, mac2))
	run := func(o kube.ClientOptions) *kube.Source {
		client, err := kube.NewClient(o)
		if err != nil {
			w.Fatal(err)
		}
		s := kube.NewSource(kube.SourceConfig{Client: client, NodeName: "n1", Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
			Rules: kube.Rules{Prefix: flannelPrefix, Networks: podNetwork()}})
		ctx, cancel := context.WithCancel(context.Background())
		done := make(chan error, 1)
		go func() { done <- s.Run(ctx) }()
		w.Cleanup(func() {
			cancel()
			if err := <-done; err != nil {
				w.Error(err)
			}
		})
		return s
	}
	direct := w.api.DirectKubeconfig()
	s := run(kube.ClientOptions{KubeconfigFile: direct})
	w.peers(s, back, "n2 10.244.2.0/24 192.168.50.2 0a:00:00:00:00:02")
	w.api.Stop()
	nstest.Eventually(w, back, func() error {
		if _, stale := s.Stale(); !stale {
			return errors.New("not stale")
		}
		return nil
	})
	w.api.Resume()
	w.patch("n2", string(types.MergePatchType), `{"metadata":{"annotations":{"`+string(flannelPrefix)+`public-ip":"192.168.50.9"}}}`)
	w.Logf("the change came %v after the server was back", w.peers(s, back, "n2 10.244.2.0/24 192.168.50.9 0a:00:00:00:00:02"))

	text, err := os.ReadFile(direct)
	if err != nil {
		w.Fatal(err)
	}
	strange := filepath.Join(w.TempDir(), "kubeconfig")
	if err := os.WriteFile(strange, bytes.Replace(text, []byte("tls-server-name: kubernetes"), []byte("tls-server-name: elsewhere"), 1), 0o600); err != nil {
		w.Fatal(err)
	}
	s = run(kube.ClientOptions{KubeconfigFile: strange})
	nstest.Eventually(w, back, func() error {
		if r := s.Reason(); !strings.Contains(r, "is not trusted") {
			return errors.New(r)
		}
		return nil
	})
}

// testEvents has two processes, one after the other, say one thing.
func testEvents(w *world) {
	n := w.node("n1", "10.244.1.0/24", nil)
	self := subnet.Self{Name: "n1", UID: string(n.UID), Exists: true}
	for range 2 {
		client := w.client()
		e := kube.NewEvents(client, slog.New(slog.NewTextHandler(io.Discard, nil)))
		for range 3 {
			e.Warn(w.Context(), self, "Tested", "a thing that is said twice")
		}
	}
	list, err := w.admin.CoreV1().Events("default").List(w.Context(), metav1.ListOptions{FieldSelector: "reason=Tested"})
	if err != nil || len(list.Items) != 1 || list.Items[0].Count != 2 {
		w.Errorf("%v: %+v", err, list)
	}
}

// testProblems has every kind of bad Node at once among good ones, and their cure.
func testProblems(w *world) {
	spoiled := []map[string]string{
		{"public-ip": "nonsense"}, {"public-ip": ""}, {"public-ip": "fd00::1"}, {"backend-data": "null"}, {"backend-data": `{"VNI":1,`},
		{"backend-data": `{"VNI":1,"VtepMAC":"01:00:5e:00:00:01"}`}, {"backend-port": "0"}, {"backend-type": "extension"},
	}
	for i, spoil := range spoiled {
		notes := annotations(ip2, mac2)
		for k, v := range spoil {
			notes[string(flannelPrefix)+k] = v
		}
		w.node(fmt.Sprintf("bad%d", i), fmt.Sprintf("10.244.%d.0/24", 100+i), notes)
	}
	w.node("good", "10.244.2.0/24", annotations(ip2, mac2))
	w.node("plain", "10.244.3.0/24", nil)
	s := w.source("n1")
	w.peers(s, back, "good 10.244.2.0/24 192.168.50.2 0a:00:00:00:00:02")
	snap, _ := s.Snapshot()
	named := map[string]bool{}
	for _, p := range snap.Problems {
		named[p.Node] = true
	}
	if len(named) != len(spoiled) {
		w.Errorf("%d bad nodes of %d are named: %v", len(named), len(spoiled), snap.Problems)
	}
	want := []string{}
	for i := range spoiled {
		ip, mac := fmt.Sprintf("192.168.50.%d", 100+i), fmt.Sprintf("0a:00:00:00:01:%02x", i)
		notes := annotations(ip, mac)
		notes[string(flannelPrefix)+"backend-port"] = "4789"
		body, err := json.Marshal(map[string]any{"metadata": map[string]any{"annotations": notes}})
		if err != nil {
			w.Fatal(err)
		}
		w.patch(fmt.Sprintf("bad%d", i), string(types.MergePatchType), string(body))
		want = append(want, fmt.Sprintf("bad%d 10.244.%d.0/24 %s %s", i, 100+i, ip, mac))
	}
	w.peers(s, back, append(want, "good 10.244.2.0/24 192.168.50.2 0a:00:00:00:00:02")...)
	if snap, _ := s.Snapshot(); len(snap.Problems) != 0 {
		w.Errorf("problems after the cure: %v", snap.Problems)
	}
}

// testDuel has two agents under one name, as on a cloned machine.
func testDuel(w *world) {
	w.node("n1", "10.244.1.0/24", nil)
	a := w.start("n1", announcement(ip1, mac1))
	w.carries("n1", back, annotations(ip1, mac1))
	patches := func(r apiserver.Request) bool {
		return r.Method == http.MethodPatch && strings.HasPrefix(r.Path, "/api/v1/nodes/")
	}
	w.api.Proxy.Requests(patches)
	b := w.start("n1", announcement(ip2, mac2))
	nstest.Eventually(w, back, func() error { // the one that is slowed down first slows down the other
		if wantError(a, kube.ErrDuel) != nil {
			return wantError(b, kube.ErrDuel)
		}
		return nil
	})
	w.api.Proxy.Requests(patches)
	watched := time.NewTimer(4 * time.Second)
	<-watched.C
	if n := len(w.api.Proxy.Requests(patches)); n > 12 || n < 2 {
		w.Errorf("%d patches in 4 s, want about 8", n)
	}
	w.event("n1", "AnnotationsChanged", mac2)
}

func testK07(w *world) {
	notes := map[string]string{string(flannelPrefix) + "node-public-ip": ip1, "other": "stays"}
	w.node("n1", "10.244.1.0/24", notes)
	w.node("gone", "10.244.2.0/24", nil)
	client := w.client()
	log := slog.New(slog.NewTextHandler(io.Discard, nil))
	a := w.source("n1")
	nstest.Eventually(w, back, func() error {
		if snap, complete := a.Snapshot(); !complete || !snap.Self.Exists {
			return fmt.Errorf("no node yet")
		}
		return nil
	})
	r := kube.NewRegistrar(kube.RegistrarConfig{Client: client, NodeName: "n1", Prefix: flannelPrefix, Conf: conf(), Log: log})
	snap, _ := a.Snapshot()
	if err := r.Sync(w.Context(), snap, announcement(ip1, mac1)); err != nil {
		w.Fatal(err)
	}
	for range 2 {
		if err := r.Unregister(w.Context()); err != nil {
			w.Fatal(err)
		}
		if got := w.get("n1").Annotations; len(got) != 1+len(families()) || got["other"] != "stays" {
			w.Errorf("left: %v", got)
		}
		if left := w.get("n1").Status.Conditions; len(left) > 0 {
			w.Errorf("conditions left: %v", left)
		}
	}
	w.patch("n1", string(types.StrategicMergePatchType),
		`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","reason":"CalicoIsUp"}]}}`, "status")
	if err := r.Unregister(w.Context()); err != nil || len(w.get("n1").Status.Conditions) != 1 {
		w.Errorf("the condition of another network: %v, %v", w.get("n1").Status.Conditions, err)
	}
	w.remove("gone")
	gone := kube.NewRegistrar(kube.RegistrarConfig{Client: client, NodeName: "gone", Prefix: flannelPrefix, Log: log})
	if err := gone.Unregister(w.Context()); err != nil {
		w.Errorf("a Node that is gone: %v", err)
	}
}

func testFlannelRole(w *world) {
	allow(w.T, w.admin, flannelRules()...)
	defer allow(w.T, w.admin, ourRules()...)
	w.node("n1", "10.244.1.0/24", map[string]string{string(flannelPrefix) + "node-public-ip": "nonsense"}) // an Event that is forbidden
	a := w.start("n1", announcement(ip1, mac1))
	w.carries("n1", back, annotations(ip1, mac1))
	w.cleared("n1", back)
	if snap, complete := a.source.Snapshot(); !complete || snap.ClusterID != "" {
		w.Errorf("complete=%v cluster=%q", complete, snap.ClusterID)
	}
}

// dialIn makes connections from inside a namespace.
func dialIn(ns *nstest.NS) func(context.Context, string, string) (net.Conn, error) {
	return func(ctx context.Context, network, addr string) (net.Conn, error) {
		var conn net.Conn
		err := ns.Do(func() (err error) {
			// A numeric address only: a name would be looked up by another goroutine, outside.
			conn, err = kube.NewDialer().DialContext(ctx, network, netip.MustParseAddrPort(addr).String())
			return err
		})
		return conn, err
	}
}

func (w *world) pod(name, node string) {
	w.Helper()
	pod := &corev1.Pod{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "default"}, Spec: corev1.PodSpec{
		NodeName: node, Containers: []corev1.Container{{Name: "c", Image: "none"}},
	}}
	nstest.Eventually(w, back, func() error { // the namespace is made by the server in the background
		_, err := w.admin.CoreV1().Pods("default").Create(w.Context(), pod, metav1.CreateOptions{})
		return err
	})
}

func (w *world) condition(name string) corev1.NodeCondition {
	w.Helper()
	for _, c := range w.get(name).Status.Conditions {
		if c.Type == corev1.NodeNetworkUnavailable {
			return c
		}
	}
	return corev1.NodeCondition{}
}

func (w *world) cleared(name string, within time.Duration) {
	w.Helper()
	nstest.Eventually(w, within, func() error {
		if c := w.condition(name); c.Status != corev1.ConditionFalse {
			return fmt.Errorf("NetworkUnavailable is %q", c.Status)
		}
		return nil
	})
}

// event waits for an Event about a Node and returns its text.
func (w *world) event(node, reason, part string) string {
	w.Helper()
	text := ""
	nstest.Eventually(w, back, func() error {
		list, err := w.admin.CoreV1().Events("default").List(w.Context(), metav1.ListOptions{})
		if err != nil {
			return err
		}
		for _, e := range list.Items {
			if e.InvolvedObject.Name == node && e.Reason == reason && strings.Contains(e.Message, part) {
				text = e.Message
				return nil
			}
		}
		return fmt.Errorf("no Event %s with %q among %d", reason, part, len(list.Items))
	})
	return text
}
