package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet/ipam"
)

// valid is the list of GC.
func valid(pods ...pod) func(map[string]any) {
	list := []types.GCAttachment{}
	for _, p := range pods {
		list = append(list, types.GCAttachment{ContainerID: p.id, IfName: p.ifc})
	}
	return with("cni.dev/valid-attachments", list)
}

// attachMany makes pods, without namespaces in the way: the last ADD is some time past when GC comes.
func attachMany(w *world, n int) []pod {
	var pods []pod
	for i := range n {
		pods = append(pods, w.pod(fmt.Sprintf("gc-%d", i)))
		w.add(pods[i])
	}
	w.settle()
	return pods
}

// settle waits until GC tells what is there from what is being added.
func (w *world) settle() {
	newest := time.Now()
	w.until("the clock goes on", func() bool { return time.Since(newest) > 40*time.Millisecond })
}

func TestC18GCReleasesWhatIsNotValid(t *testing.T) {
	w := newWorld(t)
	w.version = "1.1.0"
	pods := attachMany(w, 50)
	w.write("networks/cbr0/"+w.at(200), "leaked\r\neth0")
	w.write("networks/cbr0/"+w.at(201), "")
	w.write("networks/other/"+w.at(200), "foreign\r\neth0")
	w.write("flannel/foreign", `{"name":"other","type":"bridge"}`)
	w.write("flannel/broken", ``)
	recovered := ipam.Recovered()
	w.write("networks/cbr0/"+w.at(202), recovered.ContainerID+"\r\n"+recovered.IfName)
	w.settle()

	gc := func(changes ...func(map[string]any)) {
		t.Helper()
		out, err := w.call("GC", pod{}, w.conf(changes...))
		if err != nil || out != "" {
			t.Fatalf("%v, printed %q", err, out)
		}
	}
	before := w.reserved()
	gc() // no list: nothing is known
	if d := cmp.Diff(before, w.reserved()); d != "" {
		t.Errorf("absent list (-want +got):\n%s", d)
	}
	gc(valid(pods...))
	if n := len(w.reserved()); n != 51 || slices.Contains(w.recorded(), "broken") {
		t.Errorf("all valid: %q, records %q", w.reserved(), w.recorded())
	}
	gc(valid(pods[:20]...))
	if n := len(w.reserved()); n != 21 || len(w.recorded()) != 21 {
		t.Errorf("twenty valid: %q, records %q", w.reserved(), w.recorded())
	}
	w.run("ip", "netns", "exec", pods[0].id, "ping", "-c1", "-W2", w.at(1))
	gc(with("cni.dev/valid-attachments", nil)) // libcni's empty list
	if d := cmp.Diff([]string{w.at(202) + " weft-recovered/eth0"}, w.reserved()); d != "" {
		t.Errorf("none valid (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"foreign"}, w.recorded()); d != "" || !exists(w.file("networks/other/"+w.at(200))) {
		t.Errorf("another network was touched; records (-want +got):\n%s", d)
	}
}

func TestC18GCWaitsForAnAddThatIsUnderWayAndKeepsIt(t *testing.T) {
	for ifc, after := range map[string]bool{"eth0": true, "net1": false} { // before and after it has an address
		t.Run(ifc, func(t *testing.T) { gcMeetsAdd(t, ifc, after) })
	}
}

func gcMeetsAdd(t *testing.T, ifc string, after bool) {
	w := newWorld(t)
	w.version = "1.1.0"
	old := attachMany(w, 2)
	w.slow(after)
	p := w.pod("fresh")
	p.ifc = ifc
	added, collected := make(chan error, 1), make(chan error, 1)
	go func() {
		_, err := w.quiet("ADD", p, w.conf())
		added <- err
	}()
	w.until("the delegate runs", func() bool { return exists(w.file("started")) })
	w.settle()
	list := w.conf(valid(old[0])) // the runtime knows nothing of the new pod
	go func() {
		_, err := w.quiet("GC", pod{}, list)
		collected <- err
	}()
	w.until("GC has released what it could at once", func() bool { return len(w.recorded()) == 2 })
	w.write("go", "")
	w.must(errors.Join(<-added, <-collected))
	if d := cmp.Diff([]string{w.at(2) + " gc-0/eth0", w.at(4) + " fresh/" + ifc}, w.reserved()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{ipam.RecordName(ipam.Owner{ContainerID: p.id, IfName: ifc}), "gc-0"}, w.recorded()); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
}

func TestC18AnAddWaitsForTheAddressManagersGC(t *testing.T) {
	w := newWorld(t)
	w.version = "1.1.0"
	attachMany(w, 1)
	w.write("networks/cbr0/"+w.at(77), "leaked\r\neth0")
	w.replace("host-local", `[ $CNI_COMMAND = GC ] || exec $REAL; touch `+w.file("started")+`; while [ ! -e `+w.file("go")+` ]; do sleep 0.01; done; exec $REAL`)
	collected, added := make(chan error, 1), make(chan error, 1)
	list, p := w.conf(valid()), w.pod("fresh")
	go func() {
		_, err := w.quiet("GC", pod{}, list)
		collected <- err
	}()
	w.until("host-local collects", func() bool { return exists(w.file("started")) })
	_, err := w.callWith(context.Background(), "ADD", p, w.conf(), func(p *plugin) { p.lockWait = 50 * time.Millisecond })
	wantCode(t, err, types.ErrTryAgainLater, "another call works on fresh/eth0")
	go func() {
		_, err := w.quiet("ADD", p, w.conf())
		added <- err
	}()
	w.write("go", "")
	w.must(errors.Join(<-added, <-collected))
	if d := cmp.Diff([]string{w.at(3) + " fresh/eth0"}, w.reserved()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestC18GCGivesUpWhenAnAddDoesNotEnd(t *testing.T) {
	w := newWorld(t)
	w.version = "1.1.0"
	w.slow(false)
	added := make(chan error, 1)
	p := w.pod("fresh")
	go func() {
		_, err := w.quiet("ADD", p, w.conf())
		added <- err
	}()
	w.until("the delegate runs", func() bool { return exists(w.file("started")) })
	_, err := w.callWith(context.Background(), "GC", pod{}, w.conf(valid()), func(p *plugin) { p.lockWait = 50 * time.Millisecond })
	wantCode(t, err, types.ErrTryAgainLater, "pods are being added")
	w.write("go", "")
	w.must(<-added)
}

func TestC18GCOfAnEmptyNodeIsFine(t *testing.T) {
	w := newWorld(t)
	w.version = "1.1.0"
	w.must(os.Remove(w.file("subnet.env")))
	_, err := w.call("GC", pod{}, w.conf(valid()))
	w.must(err)
	w.write("networks/cbr0/"+w.at(5), "leaked\r\neth0")
	_, err = w.call("GC", pod{}, w.conf(valid()))
	w.must(err)
	w.empty()
}

func TestC18GCWithAHostLocalThatIsOlderThanTheVerb(t *testing.T) {
	w := newWorld(t)
	w.version = "1.1.0"
	pods := attachMany(w, 2)
	w.write("networks/cbr0/"+w.at(5), "leaked\r\neth0")
	w.write("networks/cbr0/"+w.at(6), "")
	w.write("networks/cbr0/"+w.at(7), "gc-0") // without an interface, of a valid pod
	w.replace("host-local", `[ $CNI_COMMAND = GC ] || exec $REAL; echo '{"code":4,"msg":"unknown CNI_COMMAND: GC"}'; exit 1`)
	_, err := w.call("GC", pod{}, w.conf(valid(pods[:1]...)))
	w.must(err)
	if d := cmp.Diff([]string{w.at(2) + " gc-0/eth0", w.at(7) + " gc-0/"}, w.reserved()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestC18GCRefusesAListItCannotRead(t *testing.T) {
	w := newWorld(t)
	w.version = "1.1.0"
	w.write("networks/cbr0/"+w.at(5), "a\r\neth0")
	for _, list := range []any{"all", []any{map[string]any{"containerID": "a"}}, []any{map[string]any{"ifname": "eth0"}}} {
		_, err := w.call("GC", pod{}, w.conf(with("cni.dev/valid-attachments", list)))
		wantCode(t, err, types.ErrInvalidNetworkConfig, "read cni.dev/valid-attachments")
	}
	if len(w.reserved()) != 1 {
		t.Error("it freed something all the same")
	}
}

func TestC18GCGoesOnWhenOneReleaseFails(t *testing.T) {
	w := newWorld(t)
	w.version = "1.1.0"
	attachMany(w, 2)
	w.write("flannel/gc-0", `{"name":"cbr0","type":"nowhere","ipam":{"type":"host-local"}}`)
	w.settle()
	_, err := w.call("GC", pod{}, w.conf(valid()))
	if err == nil || !strings.Contains(err.Error(), `find plugin "nowhere"`) {
		t.Errorf("got %v", err)
	}
	if d := cmp.Diff([]string{"gc-0"}, w.recorded()); d != "" || len(w.reserved()) != 0 {
		t.Errorf("reserved %q, records (-want +got):\n%s", w.reserved(), d)
	}
}
