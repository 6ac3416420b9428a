package watch

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/attach"
)

// podAt is a local, running pod of namespace x.
func podAt(name, uid string, addrs ...string) *policy.Pod {
	p := &policy.Pod{Namespace: "x", Name: name, UID: uid, Local: true, Phase: policy.Running}
	for _, a := range addrs {
		a := netip.MustParseAddr(a)
		p.Addrs[subnet.FamilyOf(a)] = a
	}
	return p
}

func noteAt(at int64, name, uid, container string, addrs ...string) attach.Note {
	n := attach.Note{ContainerID: container, IfName: "eth0", Namespace: "x", Pod: name, UID: uid, At: at}
	for _, a := range addrs {
		n.Addrs = append(n.Addrs, netip.MustParseAddr(a))
	}
	return n
}

// onNode picks the pods of this node.
func onNode(pods []*policy.Pod) (out []*policy.Pod) {
	for _, p := range pods {
		if p.Local {
			out = append(out, p)
		}
	}
	return out
}

func remote(p *policy.Pod) *policy.Pod { p.Local = false; return p }

func TestNotesTellWhoseAnAddressIs(t *testing.T) {
	for name, c := range map[string]struct {
		pods   []*policy.Pod
		notes  []attach.Note
		static map[key]string
		gone   []*policy.Pod
		want   string
	}{
		"the API knows nothing yet": {
			pods: []*policy.Pod{podAt("a", "1")}, notes: []attach.Note{noteAt(1, "a", "1", "c1", "10.244.1.2", "fd00::2")},
			want: "x/a local running 10.244.1.2 fd00::2",
		},
		"both say the same": {
			pods: []*policy.Pod{podAt("a", "1", "10.244.1.2")}, notes: []attach.Note{noteAt(1, "a", "1", "c1", "10.244.1.2")},
			want: "x/a local running 10.244.1.2",
		},
		"a pod that another plugin attached": {
			pods: []*policy.Pod{podAt("a", "1", "10.244.1.2")}, want: "x/a local running 10.244.1.2",
		},
		"a pod that the API does not know": {
			notes: []attach.Note{noteAt(1, "a", "1", "c1", "10.244.1.2")}, want: "gated 10.244.1.2",
		},
		"a successor of the same name": {
			pods: []*policy.Pod{podAt("a", "1")}, notes: []attach.Note{noteAt(1, "a", "2", "c1", "10.244.1.2")},
			want: "x/a local running, gated 10.244.1.2",
		},
		"a runtime that tells no UID": {
			pods: []*policy.Pod{podAt("a", "1")}, notes: []attach.Note{noteAt(1, "a", "", "c1", "10.244.1.2")},
			want: "x/a local running 10.244.1.2",
		},
		"a static pod": {
			pods: []*policy.Pod{podAt("a", "mirror")}, static: map[key]string{{"x", "a"}: "file"},
			notes: []attach.Note{noteAt(1, "a", "file", "c1", "10.244.1.2")}, want: "x/a local running 10.244.1.2",
		},
		"a sandbox that was made anew, the old one not yet gone": {
			pods:  []*policy.Pod{podAt("a", "1", "10.244.1.2")},
			notes: []attach.Note{noteAt(1, "a", "1", "c1", "10.244.1.2"), noteAt(2, "a", "1", "c2", "10.244.1.3")},
			want:  "x/a local running 10.244.1.2, x/a local running 10.244.1.3",
		},
		"a sandbox that was made anew": {
			pods: []*policy.Pod{podAt("a", "1", "10.244.1.2")}, notes: []attach.Note{noteAt(2, "a", "1", "c2", "10.244.1.3")},
			want: "x/a local running 10.244.1.3",
		},
		"N-01 an address that is used again": {
			pods:  []*policy.Pod{podAt("a", "1", "10.244.1.2"), podAt("b", "2")},
			notes: []attach.Note{noteAt(1, "a", "1", "c1", "10.244.1.2"), noteAt(2, "b", "2", "c2", "10.244.1.2")},
			want:  "x/a local running, x/b local running 10.244.1.2",
		},
		"N-01 an address that is used again by a pod that the API does not know": {
			pods:  []*policy.Pod{podAt("a", "1", "10.244.1.2")},
			notes: []attach.Note{noteAt(2, "b", "2", "c2", "10.244.1.2")},
			want:  "x/a local running, gated 10.244.1.2",
		},
		"N-02 a pod that the API has forgotten and that lives on": {
			gone: []*policy.Pod{podAt("a", "1", "10.244.1.2")}, notes: []attach.Note{noteAt(1, "a", "1", "c1", "10.244.1.2")},
			want: "x/a local terminating running 10.244.1.2",
		},
		"N-02 the same with a successor": {
			pods: []*policy.Pod{podAt("a", "2")}, gone: []*policy.Pod{podAt("a", "1", "10.244.1.2")},
			notes: []attach.Note{noteAt(1, "a", "1", "c1", "10.244.1.2"), noteAt(2, "a", "2", "c2", "10.244.1.3")},
			want:  "x/a local terminating running 10.244.1.2, x/a local running 10.244.1.3",
		},
		"a pod of another node stays as it is": {
			pods: []*policy.Pod{remote(podAt("a", "1", "10.244.2.2"))}, notes: []attach.Note{noteAt(1, "a", "9", "c1", "10.244.1.2")},
			want: "x/a running 10.244.2.2, gated 10.244.1.2",
		},
	} {
		gone := map[string]*policy.Pod{}
		for _, p := range c.gone {
			gone[p.UID] = p
		}
		var j joiner
		for turn := range 2 {
			made := j.join(c.pods, local{pods: onNode(c.pods), notes: slices.Clone(c.notes), static: c.static, gone: gone})
			var got []string
			for _, p := range made.pods {
				got = append(got, line(p))
			}
			for _, a := range made.gated {
				got = append(got, "gated "+a.String())
			}
			if d := cmp.Diff(c.want, strings.Join(got, ", ")); d != "" {
				t.Errorf("%s, turn %d (-want +got):\n%s", name, turn, d)
			}
			if !slices.Equal(made.local, onNode(made.pods)) {
				t.Errorf("%s, turn %d: %d pods of this node", name, turn, len(made.local))
			}
		}
	}
}

func TestAJoinKeepsThePointersOfWhatIsAsItWas(t *testing.T) {
	pods := []*policy.Pod{podAt("a", "1"), podAt("b", "2"), podAt("c", "3", "10.244.1.9")}
	one, two := noteAt(1, "a", "1", "c1", "10.244.1.2"), noteAt(2, "b", "2", "c2", "10.244.1.3")
	var j joiner
	first := j.join(pods, local{pods: pods, notes: []attach.Note{one}}).pods
	second := j.join(pods, local{pods: pods, notes: []attach.Note{one, two}}).pods
	if first[0] != second[0] || first[1] == second[1] || second[2] != pods[2] {
		t.Error("only b changed")
	}
	third := j.join(pods, local{pods: pods, notes: []attach.Note{two, one}}).pods
	if !slices.Equal(second, third) {
		t.Error("the order of the notes matters")
	}
}

// The gate lets an address go to the pod of its note, and the note of a static pod has another UID than the API's mirror of it.
func TestAPodIsJudgedUnderTheUIDOfItsNote(t *testing.T) {
	static := map[key]string{{"x", "a"}: "file", {"x", "b"}: "claimed"} // b's annotation is anybody's word
	pods := []*policy.Pod{podAt("a", "mirror"), podAt("b", "2"), podAt("c", "3")}
	var j joiner
	made := j.join(pods, local{pods: pods, static: static, notes: []attach.Note{
		noteAt(1, "a", "file", "c1", "10.244.1.2"), noteAt(2, "b", "2", "c2", "10.244.1.3"), noteAt(3, "c", "", "c3", "10.244.1.4"),
	}})
	for i, want := range []string{"file", "2", "3"} {
		if made.pods[i].UID != want || made.local[i] != made.pods[i] {
			t.Errorf("%s has the UID %q; want %q", made.pods[i].Name, made.pods[i].UID, want)
		}
	}
	if pods[0].UID != "mirror" {
		t.Error("what the API said has changed")
	}
}
