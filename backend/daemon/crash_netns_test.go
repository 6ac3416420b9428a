package daemon

import (
	"bytes"
	"encoding/json"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

// stopBound is within what a stop ends. On a machine that others use as well, each may take ten times as long, and most
// may not.
const stopBound = 2 * time.Second

// stride is how many steps lie between two deaths in the short form; with WEFT_RELIABILITY=long an agent dies at each.
func stride() int {
	if os.Getenv("WEFT_RELIABILITY") == "long" {
		return 1
	}
	return 7
}

func killedInItsFirstStart(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	whole := w.start(0)
	if !w.through(whole) {
		t.Fatalf("the agent died without being told to:\n%s", whole.log)
	}
	w.stop(whole)
	want := w.picture()
	r := readFiles(w)
	defer r.stop(t)
	deaths, first := 0, 1+time.Now().Nanosecond()%stride()
	for n := first; ; n += stride() {
		r.pause(func() { w.wipe() })
		if w.dieAt(n, want) {
			break
		}
		deaths++
	}
	t.Logf("%d deaths, from step %d on in strides of %d", deaths, first, stride())
	w.judgeStops()
}

func killedInARepair(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	whole := w.start(0)
	if !w.through(whole) {
		t.Fatalf("the agent died without being told to:\n%s", whole.log)
	}
	w.stop(whole)
	want := w.picture()
	from, to := w.meet()
	nstest.Eventually(t, crashPatience, func() error { return from.CanPing(to) })
	r := readFiles(w)
	defer r.stop(t)
	ping := from.StartPing(nstest.Ping{Dst: to})
	deaths, first := 0, 1+time.Now().Nanosecond()%stride()
	for n := first; ; n += stride() {
		w.damage()
		if w.dieAt(n, want) {
			break
		}
		deaths++
	}
	result := ping.Stop()
	t.Logf("%d deaths, from step %d on in strides of %d; %s", deaths, first, stride(), result)
	if len(result.Lost) > 0 {
		t.Errorf("packets to a known peer were lost: %s", result)
	}
}

func askedToStop(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	first := 1 + time.Now().Nanosecond()%stride()
	for n := first; ; n += stride() {
		w.wipe()
		a := w.startMortal(mortal{Stops: n})
		if w.through(a) {
			w.stop(a)
			break
		}
		if a.err != nil {
			t.Errorf("asked to stop at step %d: %v\n%s", n, a.err, a.log)
			continue
		}
		took, err := time.ParseDuration(strings.TrimPrefix(a.lastStep(), stoppedAfter))
		if err != nil {
			t.Errorf("asked to stop at step %d, the last it wrote is %q:\n%s", n, a.lastStep(), a.log)
			continue
		}
		if w.stops = append(w.stops, took); took > 10*stopBound {
			t.Errorf("asked to stop at step %d it took %s:\n%s", n, took, a.log)
		}
	}
	w.judgeStops()
}

// lastStep is the last line that an agent wrote about its steps.
func (a *crashAgent) lastStep() string {
	steps, _ := os.ReadFile(a.steps) // for messages
	lines := strings.Split(strings.TrimSpace(string(steps)), "\n")
	return lines[len(lines)-1]
}

// judgeStops holds the stops to their bound.
func (w *crashWorld) judgeStops() {
	w.t.Helper()
	slices.Sort(w.stops)
	median, worst := w.stops[len(w.stops)/2], w.stops[len(w.stops)-1]
	w.t.Logf("%d stops by SIGTERM: median %s, worst %s", len(w.stops), median, worst)
	if median > stopBound {
		w.t.Errorf("the median stop takes %s, want at most %s", median, stopBound)
	}
}

// dieAt lets an agent die at a step, starts a whole one, and holds what is then there to the picture. It reports whether
// the first agent got through without coming to that step.
func (w *crashWorld) dieAt(n int, want string) bool {
	w.t.Helper()
	first := w.start(n)
	through := w.through(first)
	died := "died at: " + first.lastStep()
	if through {
		w.stop(first)
		died = "did not die"
	}
	whole := w.start(0)
	if !w.through(whole) {
		w.t.Fatalf("%s; the agent after it died:\n%s", died, whole.log)
	}
	nstest.Eventually(w.t, crashPatience, func() error {
		if diff := cmp.Diff(want, w.picture()); diff != "" {
			return fmt.Errorf("%s; want, got: %s\n%s", died, diff, whole.log)
		}
		return nil
	})
	nstest.Eventually(w.t, crashPatience, func() error { // one that is there for a moment belongs to the living
		if left := w.temps(); len(left) > 0 {
			return fmt.Errorf("%s; left over: %v", died, left)
		}
		return nil
	})
	if took := w.stop(whole); took > 10*stopBound {
		w.t.Errorf("%s; the agent after it took %s to stop:\n%s", died, took, whole.log)
	}
	return through
}

// wipe takes away all that an agent made, as the first boot of a machine finds it. The Node keeps its annotations, so that
// the device gets the same MAC.
func (w *crashWorld) wipe() {
	w.t.Helper()
	_, _ = w.node.Try("ip", "link", "del", "flannel.1") // it may not be there
	w.node.Run("nft", "flush", "ruleset")
	d := daemon{cfg: w.cfg}
	for _, path := range append(d.written(), w.temps()...) {
		_ = os.Remove(path) // it may not be there
	}
}

// damage leaves something to do for every kind of step: peers that are missing and one too many, rules, and files that are
// whole but say something else. What the two pods need stays.
func (w *crashWorld) damage() {
	w.t.Helper()
	_, _ = w.node.Try("ip", "route", "del", "10.244.3.0/24")
	_, _ = w.node.Try("ip", "neigh", "del", "10.244.4.0", "dev", "flannel.1")
	w.node.Bridge("fdb replace 02:00:00:00:00:99 dev flannel.1 dst 192.168.50.99 self permanent")
	w.node.Run("nft", "add", "rule", "inet", "weft", "postrouting", "counter")
	replace := func(path, text string) {
		w.write(path+".new", text)
		if err := os.Rename(path+".new", path); err != nil {
			w.t.Fatal(err)
		}
	}
	p := w.cfg.Paths
	replace(p.SubnetFile, "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=true\n")
	replace(p.CollectFile(), `{"bootID":"other"}`)
	replace(filepath.Join(p.CNIConf, install.ConflistName), `{"name":"cbr0","cniVersion":"1.0.0","plugins":[{"type":"flannel"}]}`)
	if err := os.Remove(p.SnapshotFile()); err != nil {
		w.t.Fatal(err)
	}
	w.plugin(p.CNIBin, "bridge", "v1.9.0")
}

// reader is what everybody else on the node is: it reads the agent's files all the time, and no file may ever be a half one.
type reader struct {
	w     *crashWorld
	end   chan struct{}
	ended sync.WaitGroup

	mu    sync.Mutex // guards what follows, and is held while files are not the agent's
	reads int
	bad   []string
}

func readFiles(w *crashWorld) *reader {
	r := &reader{w: w, end: make(chan struct{})}
	r.ended.Go(func() {
		for {
			select {
			case <-r.end:
				return
			case <-time.After(2 * time.Millisecond):
				r.read()
			}
		}
	})
	return r
}

// pause lets the test itself change the files.
func (r *reader) pause(f func()) {
	r.mu.Lock()
	defer r.mu.Unlock()
	f()
}

func (r *reader) stop(t *testing.T) {
	t.Helper()
	close(r.end)
	r.ended.Wait()
	t.Logf("%d reads of each file", r.reads)
	if len(r.bad) > 0 {
		t.Errorf("%d half files, such as %s", len(r.bad), r.bad[0])
	}
}

func (r *reader) read() {
	r.mu.Lock()
	defer r.mu.Unlock()
	r.reads++
	p := r.w.cfg.Paths
	d := daemon{cfg: r.w.cfg}
	for _, path := range d.written() {
		text, err := os.ReadFile(path)
		if err != nil {
			continue // not there yet
		}
		if err := whole(p, path, text); err != nil {
			r.bad = append(r.bad, fmt.Sprintf("%s: %v: %q", path, err, text))
		}
	}
}

// whole tells what is wrong with a file.
func whole(p Paths, path string, text []byte) error {
	switch path {
	case p.SubnetFile:
		env, err := subnet.ParseEnv(text)
		if err == nil && !bytes.HasSuffix(text, []byte("FLANNEL_IPMASQ="+fmt.Sprint(env.IPMasq)+"\n")) {
			err = fmt.Errorf("the last line is missing")
		}
		return err
	case p.StatusFile():
		_, err := subnet.ParseStatus(text)
		return err
	case p.SnapshotFile():
		_, err := subnet.ParseCache(text)
		return err
	case p.CollectFile(), filepath.Join(p.CNIConf, install.ConflistName):
		var any map[string]any
		return json.Unmarshal(text, &any)
	}
	if !bytes.HasSuffix(text, []byte("\nfi\n")) {
		return fmt.Errorf("the plugin is cut")
	}
	return nil
}
