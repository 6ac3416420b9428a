package watch

import (
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/tools/cache"

	"github.com/weft-cni/weft/backend/policy"
)

func somePod(name, uid, ip string) *corev1.Pod {
	return &corev1.Pod{
		ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: name, UID: types.UID(uid)},
		Spec:       corev1.PodSpec{NodeName: "n1"}, Status: corev1.PodStatus{Phase: corev1.PodRunning, PodIP: ip},
	}
}

// counted is a table of Pods that counts what is dirty.
func counted() (*table[policy.Pod], *int) {
	n := new(int)
	return newTable(pods("n1", newInterner()), func() { *n++ }), n
}

func TestTableIsDirtyOnlyWhenAValueChanges(t *testing.T) {
	tab, dirty := counted()
	tab.keep = func(*policy.Pod) bool { return true }
	noted := func(hash string) *corev1.Pod {
		p := somePod("b", "2", "10.244.1.3")
		p.Annotations = map[string]string{configHash: hash}
		return p
	}
	busy := somePod("a", "1", "10.244.1.2")
	busy.ResourceVersion, busy.Status.Message = "77", "readiness probe ran"
	for _, step := range []struct {
		name string
		do   func() error
		want int
	}{
		{"new", func() error { return tab.Add(somePod("a", "1", "10.244.1.2")) }, 1},
		{"the same", func() error { return tab.Update(busy) }, 1},
		{"another address", func() error { return tab.Update(somePod("a", "1", "10.244.1.3")) }, 2},
		{"another pod of that name", func() error { return tab.Update(somePod("a", "2", "10.244.1.3")) }, 3},
		{"N-02 the late delete of the first", func() error { return tab.Delete(somePod("a", "1", "10.244.1.3")) }, 3},
		{"a static pod", func() error { return tab.Add(noted("h1")) }, 4},
		{"its configuration changes", func() error { return tab.Add(noted("h2")) }, 5},
		{"deleted", func() error { return tab.Delete(somePod("a", "2", "10.244.1.3")) }, 6},
		{"deleted again", func() error { return tab.Delete(somePod("a", "2", "10.244.1.3")) }, 6},
		{"a late delete", func() error {
			return tab.Delete(cache.DeletedFinalStateUnknown{Key: "x/b", Obj: noted("h2")})
		}, 7},
		{"no pod at all", func() error { return tab.Add("x") }, 7},
		{"a list", func() error { return tab.Replace([]any{somePod("c", "3", "10.244.1.4")}, "1") }, 8},
		{"resync", tab.Resync, 8},
	} {
		if err := step.do(); err != nil || *dirty != step.want {
			t.Errorf("%s: dirty %d times, want %d (%v)", step.name, *dirty, step.want, err)
		}
	}
	if gone := tab.lost(func(uid string) bool { return uid == "1" }); len(gone) != 1 || gone["1"].UID != "1" {
		t.Errorf("gone: %v", gone)
	}
	if all, synced := tab.list(); len(all) != 1 || !synced {
		t.Errorf("%v, %t", all, synced)
	}
}

// Whatever comes in whatever order, the list is what is there, sorted.
func TestTableListsWhatIsThereInAnyOrder(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 1))
	tab, _ := counted()
	model := map[string]string{}
	for turn := range 2000 {
		name, ip := fmt.Sprintf("p%02d", rng.IntN(40)), fmt.Sprintf("10.244.1.%d", rng.IntN(3)+1)
		switch rng.IntN(20) {
		case 0:
			var list []any
			model = map[string]string{}
			for range rng.IntN(30) {
				name := fmt.Sprintf("p%02d", rng.IntN(40))
				if _, twice := model[name]; !twice {
					model[name] = ip
					list = append(list, somePod(name, "1", ip))
				}
			}
			_ = tab.Replace(list, "")
		case 1, 2, 3, 4, 5:
			delete(model, name)
			_ = tab.Delete(somePod(name, "1", ip))
		default:
			model[name] = ip
			_ = tab.Add(somePod(name, "1", ip))
		}
		if rng.IntN(3) > 0 {
			continue
		}
		got, _ := tab.list()
		var have, want []string
		for _, p := range got {
			have = append(have, p.Name+" "+p.Addrs[0].String())
		}
		for name, ip := range model {
			want = append(want, name+" "+ip)
		}
		slices.Sort(want)
		if !slices.Equal(have, want) {
			t.Fatalf("seed %d, turn %d:\nhave %s\nwant %s", seed, turn, strings.Join(have, ", "), strings.Join(want, ", "))
		}
	}
}

func TestTableKeepsThePointersOfWhatAListRepeats(t *testing.T) {
	tab, _ := counted()
	_ = tab.Replace([]any{somePod("a", "1", "10.244.1.2"), somePod("b", "2", "10.244.1.3")}, "")
	first, _ := tab.list()
	_ = tab.Replace([]any{somePod("b", "2", "10.244.1.3"), somePod("a", "1", "10.244.1.9")}, "")
	second, _ := tab.list()
	if second[1] != first[1] || second[0] == first[0] {
		t.Error("b is as it was, a is not")
	}
	third, _ := tab.list()
	if &third[0] != &second[0] {
		t.Error("a new slice of the same")
	}
	if slimmed, err := tab.Transformer()(somePod("c", "1", "10.244.1.2")); err != nil {
		t.Error(err)
	} else if k, err := cache.MetaNamespaceKeyFunc(slimmed); err != nil || k != "x/c" {
		t.Errorf("%q, %v", k, err)
	}
	tab.forget()
	if all, synced := tab.list(); len(all) > 0 || synced {
		t.Errorf("%v %t", all, synced)
	}
}
