package main

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet/attach"
)

// traced is a call of the plugin of which one program is killed at a step.
func (w *world) traced(s step, verb string, p pod, conf []byte) *tracer {
	w.Helper()
	cmd := w.process(verb, p, conf)
	env := append(cmd.Env, "CNI_ARGS=IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=traced;K8S_POD_UID=uid")
	return trace(w, s, cmd.Path, env, conf)
}

// programs are those that an ADD or a DEL runs.
func programs() []string { return []string{"flannel", "bridge", "host-local"} }

// holds fails unless the node has just what these pods need.
func (w *world) holds(when string, pods ...pod) {
	w.Helper()
	want := []string{}
	for _, p := range pods {
		want = append(want, p.id)
	}
	slices.Sort(want)
	owners := []string{}
	for _, r := range w.reserved() {
		_, owner, _ := strings.Cut(r, " ")
		id, _, _ := strings.Cut(owner, "/")
		owners = append(owners, id)
	}
	slices.Sort(owners)
	if d := cmp.Diff(want, owners); d != "" {
		w.Errorf("%s: reservations %q (-want +got):\n%s", when, w.reserved(), d)
	}
	if d := cmp.Diff(want, w.recorded()); d != "" {
		w.Errorf("%s: records (-want +got):\n%s", when, d)
	}
	// The kernel takes a namespace that is gone, and the pod's end of the veth in it, away in its own time.
	w.until(fmt.Sprintf("%s: %d bridge ports", when, len(pods)), func() bool { return w.ports() == len(pods) })
	if n := w.notes(); slices.ContainsFunc(n, func(name string) bool { return !slices.Contains(want, strings.Split(name, "@")[0]) }) {
		w.Errorf("%s: notes %q", when, n)
	}
	notes, _ := attach.Paths(w.file("subnet.env"))
	for _, dir := range []string{w.file("flannel"), w.file("networks/cbr0"), notes.Dir} {
		entries, err := os.ReadDir(dir)
		if !errors.Is(err, fs.ErrNotExist) {
			w.must(err)
		}
		for _, e := range entries {
			if strings.HasPrefix(e.Name(), ".") && e.Name() != ".lock" {
				w.Errorf("%s: %s is left over in %s", when, e.Name(), dir)
			}
		}
	}
}

// The plugin may be killed by a runtime that lost patience, its delegates by the kernel that is short of memory. Under
// policy the plugin runs a second time, between the bridge and host-local.
func TestC11AnAddKilledAtAnyStepLeavesNothing(t *testing.T) {
	for name, policy := range map[string]bool{"without policies": false, "under policy": true} {
		t.Run(name, func(t *testing.T) {
			w := newWorld(t)
			if policy {
				w.shut()
				w.agent(func(attach.Note) error { return nil })
			}
			killAdds(w)
		})
	}
}

func killAdds(w *world) {
	w.Helper()
	neighbour, p := w.pod("neighbour"), w.pod("add")
	w.add(neighbour)
	whole := w.traced(step{}, "ADD", p, w.conf())
	w.holds("an ADD that nobody killed", neighbour, p)
	w.del(p)
	for _, victim := range programs() {
		if whole.count[victim] == 0 {
			w.Fatalf("%s made no call: %v", victim, whole.count)
		}
		for _, n := range steps(whole.count[victim]) {
			when := fmt.Sprintf("ADD with %s killed at %d of %d", victim, n, whole.count[victim])
			p.id = fmt.Sprintf("add-%s-%d", victim, n)
			end := w.traced(step{victim, n}, "ADD", p, w.conf())
			if victim != "flannel" && end.killed && end.exit.ExitStatus() == 0 {
				w.Errorf("%s: it succeeded", when)
			}
			if end.exit.ExitStatus() > 0 {
				w.holds(when, neighbour) // the plugin lived and took back what was done
			}
			w.del(p)
			w.holds(when+", then DEL", neighbour)
		}
	}
	w.Logf("calls by program: %v", whole.count)
	w.run("ip", "netns", "exec", neighbour.id, "ping", "-c1", "-W5", w.at(1))
}

func TestC11ADelKilledAtAnyStepIsFinishedByTheNext(t *testing.T) {
	w := newWorld(t)
	neighbour, p := w.pod("neighbour"), w.pod("del")
	w.add(neighbour)
	w.add(p)
	whole := w.traced(step{}, "DEL", p, w.conf())
	w.holds("a DEL that nobody killed", neighbour)
	for _, victim := range programs() {
		for _, n := range steps(whole.count[victim]) {
			when := fmt.Sprintf("DEL with %s killed at %d of %d", victim, n, whole.count[victim])
			p.id = fmt.Sprintf("del-%s-%d", victim, n)
			w.add(p)
			w.traced(step{victim, n}, "DEL", p, w.conf())
			w.del(p)
			w.holds(when+", then DEL", neighbour)
		}
	}
	t.Logf("calls by program: %v", whole.count)
	w.run("ip", "netns", "exec", neighbour.id, "ping", "-c1", "-W5", w.at(1))
}
