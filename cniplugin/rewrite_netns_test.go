package main

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"sync"
	"testing"

	"github.com/weft-cni/weft/subnet"
)

// mtuEnv is subnet.env with one MTU.
func (w *world) mtuEnv(mtu int) []byte {
	env := w.env(1, 0)
	env.MTU = mtu
	return env.Render()
}

// mtus are the MTUs of the bridge and of pods.
func (w *world) mtus(pods ...pod) []int {
	w.Helper()
	br, _ := look(w.bridge)
	out := []int{br.mtu}
	for _, p := range pods {
		l, _, err := lookIn(p.netns, p.ifc)
		w.must(err)
		out = append(out, l.mtu)
	}
	return out
}

// An agent that restarts, or follows an underlay whose MTU changes, writes the file anew at any time.
func TestD09PodsMadeWhileSubnetEnvIsRewrittenGetTheOldOrTheNewOne(t *testing.T) {
	w := newWorld(t)
	ctx, stop := context.WithCancel(context.Background())
	var writer, adders sync.WaitGroup
	var writeErr error
	writer.Go(func() {
		for i := 0; ctx.Err() == nil && writeErr == nil; i++ {
			writeErr = subnet.WriteFile(w.file("subnet.env"), w.mtuEnv(1400+50*(i%2)), 0o644)
		}
	})
	pods := make([]pod, 24)
	for i := range pods {
		pods[i] = w.pod(fmt.Sprintf("rewrite-%d", i))
	}
	errs := make([]error, 4)
	for worker := range errs {
		adders.Go(func() {
			for i := worker; i < len(pods); i += len(errs) {
				if out, err := w.process("ADD", pods[i], w.conf()).Output(); err != nil {
					errs[worker] = errors.Join(errs[worker], fmt.Errorf("ADD %s: %w: %s", pods[i].id, err, out))
				}
			}
		})
	}
	adders.Wait()
	stop()
	writer.Wait()
	w.must(errors.Join(append(errs, writeErr)...))
	seen := map[int]int{}
	for i, p := range pods {
		mtu := w.mtus(p)[1]
		seen[mtu]++
		rec, err := w.records().Read(ownerOfPod(p))
		w.must(err)
		if mtu != 1400 && mtu != 1450 || !strings.Contains(string(rec.Raw), fmt.Sprintf(`"mtu":%d,`, mtu)) {
			t.Errorf("pod %d has MTU %d, its record is %s", i, mtu, rec.Raw)
		}
		w.run("ip", "netns", "exec", p.id, "ping", "-c1", "-W5", w.at(1))
		w.del(p)
	}
	t.Logf("pods by MTU: %v", seen)
	w.empty()
}

// Pods made later get the new MTU. The bridge has the least of its pods': what it sends to a port that is smaller would
// be dropped without an answer.
func TestAfterAChangeOfTheMTUTheBridgeHasTheLeastOfItsPods(t *testing.T) {
	w := newWorld(t)
	var pods []pod
	for i, step := range []struct {
		mtu    int
		bridge int
	}{{1450, 1450}, {1350, 1350}, {8950, 1350}} {
		w.must(subnet.WriteFile(w.file("subnet.env"), w.mtuEnv(step.mtu), 0o644))
		p := w.pod(fmt.Sprintf("mtu-%d", i))
		w.add(p)
		pods = append(pods, p)
		if got := w.mtus(p); got[0] != step.bridge || got[1] != step.mtu {
			t.Errorf("with MTU %d: bridge and pod have %v", step.mtu, got)
		}
	}
	for i, want := range []int{1350, 8950} { // the pods go in the order in which they came
		w.del(pods[i])
		if got := w.mtus(pods[2]); got[0] != want || got[1] != 8950 {
			t.Errorf("%d pods gone: bridge and pod have %v, want the bridge at %d", i+1, got, want)
		}
	}
	w.del(pods[2])
	w.empty()
}
