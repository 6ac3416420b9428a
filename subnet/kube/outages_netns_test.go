package kube_test

import (
	"encoding/json"
	"errors"
	"fmt"
	"net/http"
	"net/netip"
	"runtime"
	"strings"
	"sync/atomic"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

// outage is one way in which an API server is no help. Each begin returns its end.
type outage struct {
	name   string
	begin  func(*world) (end func())
	result string // what is counted meanwhile
	open   bool   // changes are seen all the while
	lines  int    // log lines at most: one for the loss, one for the return
}

// back is how long a source has to see what it missed. The figure that is promised, two seconds, is measured by the bench;
// here a busy machine has ten times as much.
const back = 20 * time.Second

func outages() []outage {
	answers := func(code int) func(*world) func() {
		return func(w *world) func() { return w.faulty(apiserver.Answer(code)) }
	}
	return []outage{
		{name: "away", result: kube.ResultUnreachable, lines: 2, begin: func(w *world) func() {
			w.api.Proxy.Close()
			return w.api.Proxy.Open
		}},
		{name: "answers 410", result: "410", lines: 2, begin: answers(http.StatusGone)},
		{name: "answers 429", result: "429", lines: 2, begin: answers(http.StatusTooManyRequests)},
		{name: "answers 500", result: "500", lines: 2, begin: answers(http.StatusInternalServerError)},
		{name: "answers 401", result: "401", lines: 2, begin: answers(http.StatusUnauthorized)},
		{name: "is slow", result: "200", open: true, begin: func(w *world) func() { return w.faulty(apiserver.Slow(time.Second)) }},
		{name: "cuts the watch each second", result: "200", open: true, lines: 20, begin: func(w *world) func() { return w.api.Proxy.CutEvery(time.Second) }},
		{name: "hangs and goes on", begin: func(w *world) func() {
			w.api.Proxy.Hang()
			return w.api.Proxy.Unhang
		}},
		{name: "hangs and is restarted", lines: 2, begin: func(w *world) func() {
			w.api.Proxy.Hang()
			w.api.Proxy.Cut() // so that there are new connections on which nothing is said
			return func() { w.api.Proxy.Cut(); w.api.Proxy.Unhang() }
		}},
	}
}

// faulty puts a fault in, for new connections as well as for those that are there.
func (w *world) faulty(f apiserver.Fault) (end func()) {
	w.api.Proxy.SetFault(f)
	w.api.Proxy.Cut()
	return func() { w.api.Proxy.SetFault(nil) }
}

const (
	peerB = "b 10.244.2.0/24 192.168.50.2 0a:00:00:00:00:02"
	peerC = "c 10.244.3.0/24 192.168.50.3 0a:00:00:00:00:03"
)

func testOutages(w *world) {
	w.node("b", "10.244.2.0/24", annotations(ip2, mac2))
	log := &spoken{}
	client := w.client()
	s := w.run(kube.SourceConfig{Client: client, NodeName: "n1", Log: log.logger()})
	w.peers(s, back, peerB)
	for _, o := range outages() {
		said, counted := len(log.lines()), client.Results()
		end := o.begin(w)
		w.node("c", "10.244.3.0/24", annotations(ip3, mac3))
		if o.open {
			w.Logf("%s: the change is seen after %v", o.name, w.peers(s, back, peerB, peerC))
		} else {
			w.meets(client, o.result, counted)
			w.peers(s, 0, peerB)
		}
		end()
		w.Logf("%s: caught up after %v", o.name, w.peers(s, back, peerB, peerC))
		w.hears(s)
		if lines := log.lines()[said:]; len(lines) > o.lines {
			w.Errorf("%s: %d log lines, want at most %d:\n%s", o.name, len(lines), o.lines, strings.Join(lines, ""))
		}
		w.remove("c")
		w.peers(s, back, peerB)
	}
}

// meets waits until a client has met a result three times more; without one, for a moment: a server that says nothing leaves
// nothing to wait for.
func (w *world) meets(client *kube.Client, result string, before map[string]int64) {
	w.Helper()
	if result == "" {
		time.Sleep(time.Second)
		return
	}
	nstest.Eventually(w, back, func() error {
		if now := client.Results(); now[result] < before[result]+3 {
			return fmt.Errorf("results %v, before %v", now, before)
		}
		return nil
	})
}

// hears waits until a source knows that the API server is there.
func (w *world) hears(s *kube.Source) {
	w.Helper()
	nstest.Eventually(w, back, func() error {
		if _, stale := s.Stale(); stale || s.Reason() != "" {
			return fmt.Errorf("stale=%v: %s", stale, s.Reason())
		}
		return nil
	})
}

func testStartsInOutages(w *world) {
	w.node("b", "10.244.2.0/24", annotations(ip2, mac2))
	for _, o := range outages() {
		end := o.begin(w)
		client := w.client()
		log := &spoken{}
		s := w.run(kube.SourceConfig{Client: client, NodeName: "n1", Log: log.logger()})
		if !o.open {
			w.meets(client, o.result, nil)
			if snap, complete := s.Snapshot(); complete {
				w.Errorf("%s: complete with %v", o.name, snap.Peers)
			}
			if o.result != "" && s.Reason() == "" {
				w.Errorf("%s: no reason is given", o.name)
			}
		}
		end()
		w.Logf("%s: up after %v", o.name, w.peers(s, back, peerB))
		w.hears(s)
		if lines := log.lines(); len(lines) > o.lines+1 { // that it answers is said at each start
			w.Errorf("%s: %d log lines, want at most %d:\n%s", o.name, len(lines), o.lines+1, strings.Join(lines, ""))
		}
	}
}

// testLagging has a server whose cache has fallen behind one that was asked before: in the middle of a run, and at a start
// with what the last run has kept.
func testLagging(w *world) {
	w.node("b", "10.244.2.0/24", annotations(ip2, mac2))
	old := w.list()
	w.node("c", "10.244.3.0/24", annotations(ip3, mac3))
	running := w.source("n1")
	w.peers(running, back, peerB, peerC)
	drain(running)
	snap, _ := running.Snapshot()
	if snap.ResourceVersion == "" {
		w.Fatal("the snapshot has no version")
	}
	w.api.Proxy.SetFault(apiserver.Each(
		apiserver.Only(func(r *http.Request) bool { return apiserver.IsWatch(r) && !apiserver.IsStreamedList(r) },
			apiserver.First(2, apiserver.Answer(http.StatusGone))),
		apiserver.Lagging(old)))
	w.api.Proxy.Cut()
	log := &spoken{}
	client := w.client()
	restarted := w.run(kube.SourceConfig{Client: client, NodeName: "n1", Known: snap.ResourceVersion, Log: log.logger()})
	w.peers(restarted, back, peerB, peerC)
	if n := client.Results()[kube.ResultStale]; n == 0 {
		w.Error("the old list was not met, or not counted")
	}
	if text := strings.Join(log.lines(), ""); strings.Count(text, "older than what is known") != 1 {
		w.Errorf("said:\n%s", text)
	}
	w.patch("c", string(types.MergePatchType), `{"metadata":{"annotations":{"`+string(flannelPrefix)+`public-ip":"192.168.50.9"}}}`)
	moved := strings.Replace(peerC, ip3, "192.168.50.9", 1)
	w.peers(restarted, back, peerB, moved)
	// The running one has met 410 and the old list by now: it never had fewer peers than two.
	for done := false; !done; {
		snap, _ := running.Snapshot()
		if len(snap.Peers) != 2 {
			w.Fatalf("an old list was taken: %v", snap.Peers)
		}
		done = snap.Peers[1].Endpoints[families()[0]].PublicIP.String() == in(families()[0], "192.168.50.9")
		if !done {
			select {
			case <-running.Changed():
			case <-time.After(back):
				w.Fatalf("the change is not seen: %s", running.Reason())
			}
		}
	}
}

// testRestored has a cluster whose versions are all lower than what the last run has kept, as after etcd is restored from a
// backup. The server says so, and then counts; also one that streams no lists.
func testRestored(w *world) {
	w.node("b", "10.244.2.0/24", annotations(ip2, mac2))
	for _, fault := range []apiserver.Fault{nil, noStreaming} {
		w.api.Proxy.SetFault(fault)
		log := &spoken{}
		s := w.run(kube.SourceConfig{Client: w.client(), NodeName: "n1", Known: "999999999", Log: log.logger()})
		w.Logf("followed after %v", w.peers(s, back, peerB))
		if text := strings.Join(log.lines(), ""); strings.Count(text, "gone back in time") != 1 {
			w.Errorf("said:\n%s", text)
		}
		w.node("c", "10.244.3.0/24", annotations(ip3, mac3))
		w.peers(s, back, peerB, peerC)
		w.remove("c")
		w.peers(s, back, peerB)
	}
}

func testNewAuthority(w *world) {
	w.node("b", "10.244.2.0/24", annotations(ip2, mac2))
	door := w.api.ListenTLS(w.T, nil, "127.0.0.1:0")
	s := w.run(kube.SourceConfig{Client: w.clientOf(kube.ClientOptions{KubeconfigFile: door.Kubeconfig}), NodeName: "n1"})
	w.peers(s, back, peerB)
	publish := door.NewAuthority(w)
	w.api.Proxy.Cut()
	nstest.Eventually(w, back, func() error {
		if r := s.Reason(); !strings.Contains(r, "is not trusted") {
			return errors.New("reason: " + r)
		}
		return nil
	})
	w.node("c", "10.244.3.0/24", annotations(ip3, mac3))
	w.peers(s, 0, peerB)
	publish()
	w.Logf("trusted after %v", w.peers(s, back, peerB, peerC))
	w.hears(s)
}

func testNewToken(w *world) {
	w.node("n1", "10.244.1.0/24", nil)
	w.node("b", "10.244.2.0/24", annotations(ip2, mac2))
	door := w.api.ListenTLS(w.T, nil, "127.0.0.1:0")
	log := &spoken{}
	client := w.clientOf(kube.ClientOptions{KubeconfigFile: door.Kubeconfig})
	s := w.run(kube.SourceConfig{Client: client, NodeName: "n1", Log: log.logger()})
	w.peers(s, back, peerB)
	said := len(log.lines())
	door.NewToken(w, "second")() // the kubelet has written it before the old one is refused
	w.api.Proxy.Cut()
	w.node("c", "10.244.3.0/24", annotations(ip3, mac3))
	w.Logf("the change is seen %v after the old token is refused", w.peers(s, back, peerB, peerC))
	if lines := log.lines()[said:]; len(lines) > 2 { // of the connections that were cut
		w.Errorf("%d lines for a token that was replaced:\n%s", len(lines), strings.Join(lines, ""))
	}
	publish := door.NewToken(w, "third")
	w.api.Proxy.Cut()
	nstest.Eventually(w, back, func() error {
		if r := s.Reason(); !strings.Contains(r, "credentials") {
			return errors.New("reason: " + r)
		}
		return nil
	})
	w.remove("c")
	publish()
	w.Logf("a token that came late is used after %v", w.peers(s, back, peerB))
	w.hears(s)
}

// testHalfOpen loses a connection on one side: the server's machine is back without it, and a firewall on the way has
// forgotten it and drops what belongs to it.
func testHalfOpen(w *world) {
	w.node("b", "10.244.2.0/24", annotations(ip2, mac2))
	fabric := nstest.NewFabric(w.T, 2)
	node, control := fabric.Nodes[0], fabric.Nodes[1]
	url := w.api.Proxy.Listen(w.T, control, netip.AddrPortFrom(fabric.Addr(2), 6443).String())
	client := w.clientOf(kube.ClientOptions{KubeconfigFile: w.api.KubeconfigFor(url), Dial: dialIn(node)})
	s := w.run(kube.SourceConfig{Client: client, NodeName: "n1"})
	w.peers(s, back, peerB)
	table := "add table ip hole; add chain ip hole in { type filter hook input priority 0; }; add chain ip hole out { type filter hook output priority 0; }; "
	control.Run("nft", table+"add rule ip hole in drop; add rule ip hole out drop")
	w.api.Proxy.Forget()
	w.node("c", "10.244.3.0/24", annotations(ip3, mac3))
	control.Run("nft", "delete table ip hole")
	w.Logf("a server that is back without the connection: seen after %v", w.peers(s, back, peerB, peerC))

	rules := table
	for _, port := range w.api.Proxy.Ports() {
		rules += fmt.Sprintf("add rule ip hole in tcp sport %d drop; add rule ip hole out tcp dport %d drop; ", port, port)
	}
	control.Run("nft", rules)
	w.remove("c")
	w.Logf("a firewall that has forgotten the connection: seen after %v", w.peers(s, back, peerB))
}

func testManyJoin(w *world) {
	s := w.source("n1")
	w.peers(s, back)
	began := time.Now()
	for i := range 200 {
		w.node(fmt.Sprintf("j%03d", i), fmt.Sprintf("10.244.%d.0/24", 10+i), annotations(fmt.Sprintf("192.168.50.%d", 10+i), fmt.Sprintf("0a:00:00:00:01:%02x", i)))
	}
	made := time.Since(began)
	nstest.Eventually(w, back, func() error {
		if snap, _ := s.Snapshot(); len(snap.Peers) != 200 || len(snap.Problems) != 0 {
			return fmt.Errorf("%d peers, problems %v", len(snap.Peers), snap.Problems)
		}
		return nil
	})
	w.Logf("200 nodes, made in %v, are seen %v later", made, time.Since(began)-made)
}

// testL08 has ten thousand changes come by a watch that is cut again and again.
func testL08(w *world) {
	const nodes, rounds, changes = 50, 10, 1000
	churn := func(rw http.ResponseWriter, r *http.Request) bool {
		rw.Header().Set("Content-Type", "application/json")
		out := json.NewEncoder(rw)
		for i := range changes {
			n := &corev1.Node{TypeMeta: metav1.TypeMeta{Kind: "Node", APIVersion: "v1"}}
			n.Name, n.UID, n.ResourceVersion = fmt.Sprintf("c%02d", i%nodes), "u", r.URL.Query().Get("resourceVersion")
			n.Annotations = notes(annotations(fmt.Sprintf("192.168.60.%d", i%250), fmt.Sprintf("0a:00:00:00:04:%02x", i%nodes)))
			n.Spec.PodCIDRs = cidrs(fmt.Sprintf("10.244.%d.0/24", 100+i%nodes))
			kind := []string{"MODIFIED", "DELETED"}[i/nodes%2]
			if out.Encode(map[string]any{"type": kind, "object": n}) != nil {
				break
			}
		}
		return true // which ends the watch
	}
	s := w.source("n1")
	w.peers(s, back)
	var watches atomic.Int64
	var goroutines int
	var bytes uint64
	for round := range rounds {
		met := watches.Load()
		w.api.Proxy.SetFault(apiserver.Each(
			apiserver.Only(apiserver.IsStreamedList, apiserver.Answer(http.StatusUnprocessableEntity)),
			apiserver.Only(apiserver.IsWatch, apiserver.First(1, churn)),
			apiserver.Only(apiserver.IsWatch, func(http.ResponseWriter, *http.Request) bool { watches.Add(1); return false })))
		w.api.Proxy.Cut()
		nstest.Eventually(w, back, func() error {
			if watches.Load() == met {
				return errors.New("the watch after the churn has not begun")
			}
			return nil
		})
		w.peers(s, back)
		if round == 2 {
			goroutines, bytes = runtime.NumGoroutine(), heap()
		}
	}
	nstest.Eventually(w, back, func() error { // the last connections are on their way out
		if n := runtime.NumGoroutine(); n > goroutines+5 {
			return fmt.Errorf("%d goroutines, %d after the first rounds", n, goroutines)
		}
		return nil
	})
	if now := heap(); now > bytes+4<<20 {
		w.Errorf("%d bytes of heap, %d after the first rounds", now, bytes)
	}
}
