package main

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet/ipam"
)

// walk is a random life of a node: pods come and go, calls are killed at any moment, files are harmed.
type walk struct {
	*world
	random *rand.Rand
	pods   map[string]pod // that the runtime thinks are attached
	count  int
	log    []string
}

func (w *walk) note(format string, args ...any) { w.log = append(w.log, fmt.Sprintf(format, args...)) }

func (w *walk) add() {
	w.count++
	p := w.pod(fmt.Sprintf("walk-%d", w.count))
	cmd := w.process("ADD", p, w.conf())
	w.must(cmd.Start())
	killed := w.random.IntN(3) == 0
	if killed {
		// Anywhere from before the record to after the result.
		time.Sleep(time.Duration(w.random.IntN(40)) * time.Millisecond)
		_ = cmd.Process.Kill() // or it was quicker
	}
	err := cmd.Wait()
	w.note("ADD %s: killed %v, %v", p.id, killed, err)
	if err != nil && !killed {
		w.Errorf("ADD %s: %v", p.id, err)
	}
	w.pods[p.id] = p // a runtime calls DEL also for an ADD that did not answer
}

func (w *walk) any() (pod, bool) {
	ids := []string{}
	for id := range w.pods {
		ids = append(ids, id)
	}
	if len(ids) == 0 {
		return pod{}, false
	}
	slices.Sort(ids)
	return w.pods[ids[w.random.IntN(len(ids))]], true
}

func (w *walk) del() {
	p, ok := w.any()
	if !ok {
		return
	}
	if w.random.IntN(4) == 0 {
		w.run("ip", "netns", "del", p.id)
	}
	if w.random.IntN(3) == 0 {
		cmd := w.process("DEL", p, w.conf())
		w.must(cmd.Start())
		time.Sleep(time.Duration(w.random.IntN(20)) * time.Millisecond)
		_ = cmd.Process.Kill() // or it was quicker
		w.note("DEL %s: killed, %v", p.id, cmd.Wait())
	}
	if _, err := w.call("DEL", p, w.conf()); err != nil {
		w.Errorf("DEL %s: %v", p.id, err)
	}
	w.note("DEL %s", p.id)
	if _, ok, err := lookIn(p.netns, p.ifc); ok || err != nil {
		w.Errorf("after its DEL %s has still got %s (%v)", p.id, p.ifc, err)
	}
	delete(w.pods, p.id)
}

func (w *walk) harm() {
	p, ok := w.any()
	if !ok {
		return
	}
	record := w.file("flannel/" + p.id)
	switch w.random.IntN(4) {
	case 0:
		_ = os.Remove(record) // or an ADD was killed before it
		w.note("remove the record of %s", p.id)
	case 1:
		w.write("flannel/"+p.id, "")
		w.note("empty the record of %s", p.id)
	case 2:
		files, _ := filepath.Glob(w.file("networks/cbr0/last_reserved_ip.*"))
		for _, f := range files {
			w.must(os.Remove(f))
		}
		w.note("wind the last address back")
	case 3:
		if w.random.IntN(2) == 0 {
			_ = os.Rename(w.file("subnet.env"), w.file("aside"))
			w.note("no subnet.env")
			w.del()
			w.must(os.Rename(w.file("aside"), w.file("subnet.env")))
		}
	}
}

func (w *walk) gc() {
	var list []pod
	for _, p := range w.pods {
		list = append(list, p)
	}
	w.version = "1.1.0"
	_, err := w.call("GC", pod{}, w.conf(valid(list...)))
	w.version = "1.0.0"
	w.note("GC with %d valid: %v", len(list), err)
	w.must(err)
}

// agree: whatever has an address has it alone and reserved for it, and nothing is held for a pod that is gone.
func (w *walk) agree() {
	w.Helper()
	all, err := w.store().List()
	w.must(err)
	held := map[netip.Addr]ipam.Owner{}
	for _, r := range all {
		if _, ok := w.pods[r.Owner.ContainerID]; r.Broken || !ok {
			w.Errorf("%s is held by %q, which is gone", r.Addr, r.Owner)
		}
		held[r.Addr] = r.Owner
	}
	for id, p := range w.pods {
		l, ok, err := lookIn(p.netns, p.ifc)
		w.must(err)
		for _, a := range l.addrs {
			if ok && !a.IsLinkLocalUnicast() && held[a] != (ipam.Owner{ContainerID: id, IfName: p.ifc}) {
				w.Errorf("%s has %s, which is reserved for %q", id, a, held[a])
			}
		}
	}
	for _, name := range w.recorded() {
		if _, ok := w.pods[name]; !ok {
			w.Errorf("the record %s is left over", name)
		}
	}
}

func TestC11AfterAnyLifeTheNodeAgreesWithItsPods(t *testing.T) {
	seed := uint64(time.Now().UnixNano())
	w := &walk{world: newWorld(t), random: rand.New(rand.NewPCG(seed, 1)), pods: map[string]pod{}}
	t.Cleanup(func() {
		if t.Failed() {
			t.Logf("seed %d:\n%s\n%s", seed, strings.Join(w.log, "\n"), w.run("ip", "-d", "link"))
		}
	})
	for range 60 {
		switch n := w.random.IntN(10); {
		case n < 5:
			w.add()
		case n < 7:
			w.del()
		case n < 9:
			w.harm()
		default:
			w.gc()
		}
		w.settled()
		w.agree()
		if t.Failed() {
			return
		}
	}
	for len(w.pods) > 0 {
		w.del()
	}
	w.agree()
	w.until("all ports go", func() bool { return w.ports() == 0 })
	w.empty()
}

// settled waits for delegates that outlived the call that was killed.
func (w *walk) settled() {
	for _, p := range w.pods {
		w.until("nobody works on "+p.id, func() bool { return !w.records().Busy(ipam.Owner{ContainerID: p.id, IfName: p.ifc}) })
	}
}
