package watch

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"strings"
	"sync"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/subnet/attach"
	"github.com/weft-cni/weft/subnet/kube"
)

// stand is a Source on a fake server.
type stand struct {
	*testing.T
	api    *fake.Clientset
	source *Source
	notes  *attached
}

// attached are notes that a test writes.
type attached struct {
	mu      sync.Mutex // guards notes
	notes   []attach.Note
	changed chan struct{}
	ready   chan struct{}
}

func (a *attached) Notes() []attach.Note {
	a.mu.Lock()
	defer a.mu.Unlock()
	return a.notes
}
func (a *attached) Changed() <-chan struct{} { return a.changed }
func (a *attached) Ready() <-chan struct{}   { return a.ready }

func (a *attached) set(notes ...attach.Note) {
	a.mu.Lock()
	a.notes = notes
	a.mu.Unlock()
	a.changed <- struct{}{}
}

func newStand(t *testing.T, linger time.Duration) *stand {
	t.Helper()
	s := &stand{T: t, api: fake.NewClientset(), notes: &attached{changed: make(chan struct{}, 10), ready: make(chan struct{})}}
	close(s.notes.ready)
	s.source = New(Config{
		Client: &kube.Client{Interface: s.api, Server: "fake"}, NodeName: "n1", Attached: s.notes, Linger: linger,
		Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
	})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- s.source.Run(ctx) }()
	t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				t.Error(err)
			}
		case <-time.After(10 * time.Second):
			t.Error("Run goes on after its context ended")
		}
	})
	return s
}

func (s *stand) must(_ any, err error) {
	s.Helper()
	if err != nil {
		s.Fatal(err)
	}
}

func (s *stand) until(what string, ok func() bool) {
	s.Helper()
	for end := time.Now().Add(20 * time.Second); !ok(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			w, complete := s.source.World()
			s.Fatalf("waited in vain: %s\nworld: %s %t\n%s", what, text(w), complete, s.source.Reason())
		}
	}
}

// text renders a World in one line.
func text(w policy.World) string {
	var out []string
	for _, n := range w.Namespaces {
		out = append(out, "ns "+n.Name)
	}
	for _, p := range w.Pods {
		out = append(out, line(p))
	}
	for _, p := range w.Policies {
		out = append(out, "policy "+p.Key())
	}
	for _, a := range w.Gated {
		out = append(out, "gated "+a.String())
	}
	return strings.Join(out, ", ")
}

func (s *stand) worldIs(want string) {
	s.Helper()
	s.until("a World of "+want, func() bool {
		w, complete := s.source.World()
		return complete && text(w) == want
	})
}

func (s *stand) asked(resource string) (n int) {
	for _, a := range s.api.Actions() {
		if a.GetResource().Resource == resource {
			n++
		}
	}
	return n
}

func (s *stand) policy(name string) *networkingv1.NetworkPolicy {
	return &networkingv1.NetworkPolicy{ObjectMeta: metav1.ObjectMeta{Name: name, Namespace: "x"}}
}

func (s *stand) cluster() {
	ctx := s.Context()
	s.must(s.api.CoreV1().Namespaces().Create(ctx, &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "x"}}, metav1.CreateOptions{}))
	s.must(s.api.CoreV1().Pods("x").Create(ctx, somePod("a", "1", "10.244.1.2"), metav1.CreateOptions{}))
}

func TestWithoutPoliciesPodsAreNotWatched(t *testing.T) {
	s := newStand(t, time.Hour)
	s.cluster()
	s.worldIs("")
	if active, known := s.source.Active(); active || !known {
		t.Errorf("active %t, known %t", active, known)
	}
	if n := s.asked("pods") - 1; n > 0 { // the test made one
		t.Errorf("%d questions about Pods", n)
	}
	if reason := s.source.Reason(); reason != "" {
		t.Error(reason)
	}
}

func TestTheFirstPolicyBringsPodsAndTheLastTakesThemAway(t *testing.T) {
	s := newStand(t, time.Millisecond)
	s.cluster()
	s.worldIs("")
	api := s.api.NetworkingV1().NetworkPolicies("x")
	for range 3 {
		s.must(api.Create(t.Context(), s.policy("p"), metav1.CreateOptions{}))
		s.worldIs("ns x, x/a local running 10.244.1.2, policy x/p")
		s.must(nil, api.Delete(t.Context(), "p", metav1.DeleteOptions{}))
		s.worldIs("")
		s.until("the pods are forgotten", func() bool { all, synced := s.source.pods.list(); return len(all) == 0 && !synced })
	}
}

func TestPodsAreWatchedForAWhileAfterTheLastPolicy(t *testing.T) {
	s := newStand(t, time.Hour)
	s.cluster()
	api := s.api.NetworkingV1().NetworkPolicies("x")
	s.must(api.Create(t.Context(), s.policy("p"), metav1.CreateOptions{}))
	s.worldIs("ns x, x/a local running 10.244.1.2, policy x/p")
	asked := s.asked("pods")
	s.must(nil, api.Delete(t.Context(), "p", metav1.DeleteOptions{}))
	s.worldIs("")
	s.must(s.api.CoreV1().Pods("x").Create(t.Context(), somePod("b", "2", "10.244.1.3"), metav1.CreateOptions{}))
	s.must(api.Create(t.Context(), s.policy("q"), metav1.CreateOptions{}))
	s.worldIs("ns x, x/a local running 10.244.1.2, x/b local running 10.244.1.3, policy x/q")
	if n := s.asked("pods") - asked; n != 1 { // the test's own
		t.Errorf("asked %d times again", n-1)
	}
}

func TestAPodHasItsAddressBeforeTheAPITells(t *testing.T) {
	s := newStand(t, time.Hour)
	s.cluster()
	s.must(s.api.NetworkingV1().NetworkPolicies("x").Create(t.Context(), s.policy("p"), metav1.CreateOptions{}))
	s.worldIs("ns x, x/a local running 10.244.1.2, policy x/p")
	s.notes.set(noteAt(1, "b", "2", "c2", "10.244.1.3"))
	s.worldIs("ns x, x/a local running 10.244.1.2, policy x/p, gated 10.244.1.3")
	s.must(s.api.CoreV1().Pods("x").Create(t.Context(), somePod("b", "2", ""), metav1.CreateOptions{}))
	s.worldIs("ns x, x/a local running 10.244.1.2, x/b local running 10.244.1.3, policy x/p")
	// Deleted by force while it lives.
	s.must(nil, s.api.CoreV1().Pods("x").Delete(t.Context(), "b", metav1.DeleteOptions{}))
	s.worldIs("ns x, x/a local running 10.244.1.2, x/b local terminating running 10.244.1.3, policy x/p")
	s.notes.set()
	s.worldIs("ns x, x/a local running 10.244.1.2, policy x/p")
}

func TestChangedSaysThatThereIsNews(t *testing.T) {
	s := newStand(t, time.Hour)
	s.worldIs("")
	wait := func() {
		t.Helper()
		select {
		case <-s.source.Changed():
		case <-time.After(20 * time.Second):
			t.Fatal("no word")
		}
	}
	wait()
	s.cluster()
	s.must(s.api.NetworkingV1().NetworkPolicies("x").Create(t.Context(), s.policy("p"), metav1.CreateOptions{}))
	for active := false; !active; active, _ = s.source.Active() {
		wait()
	}
	s.worldIs("ns x, x/a local running 10.244.1.2, policy x/p")
}

func TestProblemsAreNamedByPolicyAndGoWithIt(t *testing.T) {
	s := newStand(t, time.Hour)
	bad := s.policy("bad")
	bad.Spec.Ingress = []networkingv1.NetworkPolicyIngressRule{{From: []networkingv1.NetworkPolicyPeer{{}}}}
	api := s.api.NetworkingV1().NetworkPolicies("x")
	s.must(api.Create(t.Context(), bad, metav1.CreateOptions{}))
	s.until("a problem", func() bool { return len(s.source.Problems()) == 1 })
	if p := s.source.Problems()[0]; p.Policy != "x/bad" || !strings.Contains(p.Text, "allows nobody") {
		t.Errorf("%+v", p)
	}
	s.must(nil, api.Delete(t.Context(), "bad", metav1.DeleteOptions{}))
	s.until("no problem", func() bool { return len(s.source.Problems()) == 0 })
}

// N-22: a thousand edits, and the World is what the server has.
func TestN22AThousandEditsConverge(t *testing.T) {
	s := newStand(t, time.Hour)
	s.cluster()
	api := s.api.NetworkingV1().NetworkPolicies("x")
	for i := range 1000 {
		name := fmt.Sprintf("p%d", i%7)
		if i%3 == 0 {
			_ = api.Delete(t.Context(), name, metav1.DeleteOptions{}) // or it is not there
			continue
		}
		p := s.policy(name)
		p.Spec.PodSelector.MatchLabels = map[string]string{"turn": fmt.Sprint(i)}
		if _, err := api.Create(t.Context(), p, metav1.CreateOptions{}); err != nil {
			s.must(api.Update(t.Context(), p, metav1.UpdateOptions{}))
		}
	}
	list, err := api.List(t.Context(), metav1.ListOptions{})
	s.must(nil, err)
	s.until("what the server has", func() bool {
		w, _ := s.source.World()
		if len(w.Policies) != len(list.Items) {
			return false
		}
		for i, p := range w.Policies {
			if turn, _ := p.Pods.All[0].Values[0], 0; turn != list.Items[i].Spec.PodSelector.MatchLabels["turn"] {
				return false
			}
		}
		return true
	})
}

// safeLog can be read while it is written.
type safeLog struct {
	mu   sync.Mutex // guards text
	text strings.Builder
}

func (l *safeLog) Write(b []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(b)
}

func (l *safeLog) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}
