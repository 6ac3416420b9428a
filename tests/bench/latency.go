package bench

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"sync"
	"time"

	"golang.org/x/sys/unix"
	networkingv1 "k8s.io/api/networking/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/tests/apiserver"
)

// ear hears when the kernel takes an address into a set of the policies: with the end of that transaction it is enforced.
type ear struct {
	mu    sync.Mutex // guards what follows, for the listener and who waits
	want  []byte
	found bool
	heard chan time.Time
}

// listen hears a node's kernel until ctx ends.
func (e *ear) listen(ctx context.Context, h *home) {
	ready := make(chan struct{})
	var once sync.Once
	go netfilter.Host{NetNS: h.NS.Path()}.Listen(ctx, func(c netfilter.Change) {
		once.Do(func() { close(ready) })
		e.hear(c)
	})
	<-ready
}

func (e *ear) hear(c netfilter.Change) {
	now := time.Now()
	e.mu.Lock()
	defer e.mu.Unlock()
	switch {
	case e.want == nil:
	case c.End && e.found:
		e.heard <- now
		e.want = nil
	case c.Kind == unix.NFT_MSG_NEWSETELEM && c.Table == "inet "+policy.TableName:
		e.found = e.found || bytes.Contains(c.Data, e.want)
	}
}

// until tells how long after an acknowledged write the kernel has what follows from it.
func (e *ear) until(needle netip.Addr, write func() error) (time.Duration, error) {
	e.mu.Lock()
	e.want, e.found, e.heard = needle.AsSlice(), false, make(chan time.Time, 1)
	e.mu.Unlock()
	if err := write(); err != nil {
		return 0, err
	}
	acknowledged := time.Now()
	select {
	case at := <-e.heard:
		return max(at.Sub(acknowledged), 0), nil
	case <-time.After(patience):
		return 0, fmt.Errorf("%s is in no set after %v", needle, patience)
	}
}

// The numbers that addresses of 10.0.0.0/8 begin with, by what is written.
const (
	labelled = 0x100000
	newborn  = 0x200000
	blocked  = 0x300000
)

// latency measures n changes of each kind, one at a time, in turns, with random rests between them.
func (w *town) latency(c crowd, n int) []Figure {
	w.t.Helper()
	first := w.probes
	w.probes += n
	w.API.Store("pods", each(n, func(i int) apiserver.Object {
		p := probe(fmt.Sprintf("label-%05d", first+i), "far", first+i, map[string]string{"role": "stranger"})
		c.run(p, labelled+uint32(first+i))
		return p
	}))
	w.soon("the pods are told of", func() error {
		_, err := w.Client.CoreV1().Pods(shop).Get(w.t.Context(), fmt.Sprintf("label-%05d", first+n-1), metav1.GetOptions{ResourceVersion: "0"})
		return err
	})
	ctx, cancel := context.WithCancel(w.t.Context())
	defer cancel()
	e := &ear{}
	e.listen(ctx, w.on)
	kinds := []struct {
		what string
		do   func(int) (time.Duration, error)
	}{
		{"a pod's label changes", func(i int) (time.Duration, error) { return w.relabel(e, c, i) }},
		{"a pod is born", func(i int) (time.Duration, error) { return w.bear(e, c, i) }},
		{"a policy is written", func(i int) (time.Duration, error) { return w.write(e, c, i) }},
	}
	limit := 500 * time.Millisecond
	if c.pods <= 1000 {
		limit = 100 * time.Millisecond
	}
	took := make([][]time.Duration, len(kinds))
	for i := range n {
		for k := range kinds {
			time.Sleep(rand.N(300 * time.Millisecond)) // how the world goes on is not measured: changes come when they come
			one, err := kinds[k].do(first + i)
			w.must(err)
			took[k] = append(took[k], one)
			if one > limit {
				w.t.Logf("%s, number %d: %v; load %s", kinds[k].what, i, one, load())
			}
		}
	}
	var out []Figure
	for k := range kinds {
		p99 := quantile(took[k], 0.99)
		out = append(out, Figure{
			What: fmt.Sprintf("%s: until it is in the kernel; %d pods, %d policies; p50, p99 of %d", kinds[k].what, c.pods, c.policies, n),
			Got:  short(quantile(took[k], 0.5)) + ", " + short(p99), Limit: "p99 < " + short(limit), Kept: p99 < limit,
		})
	}
	return out
}

// relabel gives a pod the label that the server's policies let in.
func (w *town) relabel(e *ear, c crowd, i int) (time.Duration, error) {
	return e.until(farAddr(c.lane.First(), labelled+uint32(i)), func() error {
		_, err := w.Client.CoreV1().Pods(shop).Patch(w.t.Context(), fmt.Sprintf("label-%05d", i), types.MergePatchType,
			[]byte(`{"metadata":{"labels":{"role":"friend"}}}`), metav1.PatchOptions{})
		return err
	})
}

// bear makes a pod that is let in. It counts from when the API server knows its address.
func (w *town) bear(e *ear, c crowd, i int) (time.Duration, error) {
	pods := w.Client.CoreV1().Pods(shop)
	p := probe(fmt.Sprintf("birth-%05d", i), "far", i, map[string]string{"role": "friend"})
	p.UID = ""
	p, err := pods.Create(w.t.Context(), p, metav1.CreateOptions{})
	if err != nil {
		return 0, err
	}
	c.run(p, newborn+uint32(i))
	return e.until(farAddr(c.lane.First(), newborn+uint32(i)), func() error {
		_, err := pods.UpdateStatus(w.t.Context(), p, metav1.UpdateOptions{})
		return err
	})
}

// write makes a policy of its own for one of the node's pods.
func (w *town) write(e *ear, c crowd, i int) (time.Duration, error) {
	d, addr := i%c.local, farAddr(c.lane.First(), blocked+2*uint32(i))
	p := &networkingv1.NetworkPolicy{
		ObjectMeta: metav1.ObjectMeta{Namespace: c.spaceOf(d), Name: fmt.Sprintf("block-%05d", i)},
		Spec: spec(`{"podSelector":{"matchLabels":{"app.kubernetes.io/name":"deployment-%06d"}},"policyTypes":["Ingress"],"ingress":[{"from":[{"ipBlock":{"cidr":"%s/%d"}}]}]}`,
			d, addr, addr.BitLen()),
	}
	w.written = append(w.written, p)
	return e.until(addr, func() error {
		_, err := w.Client.NetworkingV1().NetworkPolicies(p.Namespace).Create(w.t.Context(), p, metav1.CreateOptions{})
		return err
	})
}

// unwrite takes the policies away again.
func (w *town) unwrite() {
	w.t.Helper()
	var errs []error
	for _, p := range w.written {
		errs = append(errs, w.Client.NetworkingV1().NetworkPolicies(p.Namespace).Delete(w.t.Context(), p.Name, metav1.DeleteOptions{}))
	}
	w.written = nil
	w.must(errors.Join(errs...))
}
