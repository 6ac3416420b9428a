package kube

import (
	"fmt"
	"log/slog"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"
)

// counted is a store of node "self" that counts what is dirty.
func counted() (*store, *int) {
	n := new(int)
	return newStore("self", rules4(), slog.New(slog.DiscardHandler), func() { *n++ }), n
}

func named(name, uid string, change func(*corev1.Node, map[string]string)) *corev1.Node {
	n := goodNode(change)
	n.Name, n.UID = name, types.UID(uid)
	return n
}

func (s *store) names() string {
	var out []string
	for _, c := range s.view().claims {
		out = append(out, c.Peer.Name+"/"+c.Peer.UID)
	}
	slices.Sort(out)
	return strings.Join(out, " ")
}

func TestStoreIsDirtyOnlyWhenAClaimChanges(t *testing.T) {
	s, dirty := counted()
	steps := []struct {
		name string
		do   func() error
		want int
	}{
		{"a new node", func() error { return s.Add(named("b", "1", nil)) }, 1},
		{"the same", func() error { return s.Update(named("b", "1", nil)) }, 1},
		{"L-02 a heartbeat", func() error {
			return s.Update(named("b", "1", func(n *corev1.Node, _ map[string]string) {
				n.Labels = map[string]string{"x": "y"}
				n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: "True"}}
				n.ResourceVersion = "7"
			}))
		}, 1},
		{"P-04 another public IP", func() error {
			return s.Update(named("b", "1", func(_ *corev1.Node, m map[string]string) { m["public-ip"] = "192.168.50.9" }))
		}, 2},
		{"P-05 another identity", func() error {
			return s.Update(named("b", "2", func(_ *corev1.Node, m map[string]string) { m["public-ip"] = "192.168.50.9" }))
		}, 3},
		{"the own node", func() error { return s.Add(named("self", "9", nil)) }, 4},
		{"the own node again", func() error { return s.Update(named("self", "9", nil)) }, 4},
		{"the own node stripped", func() error {
			return s.Update(named("self", "9", func(_ *corev1.Node, m map[string]string) { clear(m) }))
		}, 5},
		{"no Node at all", func() error { return s.Add("x") }, 5},
		{"resync", s.Resync, 5},
	}
	for _, step := range steps {
		if err := step.do(); err != nil || *dirty != step.want {
			t.Errorf("%s: dirty %d times, want %d (%v)", step.name, *dirty, step.want, err)
		}
	}
}

func TestP15DeletesOfWhatIsNotThereDoNothing(t *testing.T) {
	s, dirty := counted()
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	must(s.Delete(named("never", "1", nil)))
	must(s.Delete("x"))
	must(s.Add(named("b", "2", nil)))
	must(s.Delete(cache.DeletedFinalStateUnknown{Key: "b", Obj: named("b", "1", nil)}))
	must(s.Delete(named("b", "1", nil)))
	if s.names() != "b/2" || *dirty != 1 {
		t.Errorf("a late delete of the old b: %s, dirty %d times", s.names(), *dirty)
	}
	must(s.Delete(cache.DeletedFinalStateUnknown{Key: "b", Obj: named("b", "2", nil)}))
	must(s.Delete(named("b", "2", nil)))
	if s.names() != "" || *dirty != 2 {
		t.Errorf("two deletes: %s, dirty %d times", s.names(), *dirty)
	}
	must(s.Add(named("self", "2", nil)))
	must(s.Delete(named("self", "1", nil)))
	if !s.view().own.self.Exists {
		t.Error("a late delete of the old own node took the new one")
	}
	must(s.Delete(named("self", "2", nil)))
	if own := s.view().own; own.self.Exists || own.self.Name != "self" {
		t.Errorf("the own node is deleted: %+v", own.self)
	}
}

func TestReplaceForgetsWhatIsNotInTheList(t *testing.T) {
	s, _ := counted()
	if err := s.Add(named("gone", "1", nil)); err != nil {
		t.Fatal(err)
	}
	if s.view().synced {
		t.Error("synced before a list")
	}
	if err := s.Replace([]any{named("b", "1", nil), named("self", "1", nil), "x"}, "7"); err != nil {
		t.Fatal(err)
	}
	if v := s.view(); s.names() != "b/1" || !v.synced || !v.own.self.Exists {
		t.Errorf("%s synced=%v own=%+v", s.names(), v.synced, v.own.self)
	}
	if err := s.Replace(nil, "8"); err != nil {
		t.Fatal(err)
	}
	if s.names() != "" || s.view().own.self.Exists {
		t.Error("an empty list leaves something")
	}
}

func TestTransformerKeepsSomeHundredBytesOfANode(t *testing.T) {
	s, _ := counted()
	big := named("b", "1", func(n *corev1.Node, _ map[string]string) {
		for i := range 1000 {
			n.Status.Images = append(n.Status.Images, corev1.ContainerImage{Names: []string{fmt.Sprint(i)}})
		}
		n.ManagedFields = make([]metav1.ManagedFieldsEntry, 50)
		n.Labels = map[string]string{"a": "b"}
	})
	out, err := s.Transformer()(big)
	if err != nil {
		t.Fatal(err)
	}
	if size := out.(*corev1.Node).Size(); size > 900 {
		t.Errorf("%d bytes left of %d", size, big.Size())
	}
	if out, err := s.Transformer()("x"); err != nil || out != "x" {
		t.Errorf("%v %v", out, err)
	}
}
