package kube_test

import (
	"context"
	"fmt"
	"io"
	"log/slog"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"

	"golang.org/x/sync/errgroup"

	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

// TestL01ManyNodesAreOneSnapshot has 6,000 Nodes there before the agent starts, where flannel with its queue of 5,000
// events hangs.
func TestL01ManyNodesAreOneSnapshot(t *testing.T) {
	nstest.NeedRoot(t)
	if testing.Short() {
		t.Skip("6,000 Nodes take some seconds to make")
	}
	api := apiserver.Start(t)
	admin := api.Admin()
	allow(t, admin, ourRules()...)
	fill(t, admin, 6000, 4<<10)
	w := &world{T: t, api: api, admin: admin}
	before := heap()
	began := time.Now()
	s := w.source("n00000")
	nstest.Eventually(t, 30*time.Second, func() error {
		if snap, complete := s.Snapshot(); !complete || len(snap.Peers) != 5999 {
			return fmt.Errorf("complete=%v peers=%d: %s", complete, len(snap.Peers), s.Reason())
		}
		return nil
	})
	t.Logf("6,000 Nodes after %v, %.1f MB of heap, %.1f MB resident", time.Since(began), float64(heap()-before)/1e6, float64(resident())/1e6)
	api.Proxy.SetFault(noStreaming)
	began = time.Now()
	old := w.source("n00000")
	nstest.Eventually(t, 30*time.Second, func() error {
		if snap, complete := old.Snapshot(); !complete || len(snap.Peers) != 5999 {
			return fmt.Errorf("complete=%v peers=%d: %s", complete, len(snap.Peers), old.Reason())
		}
		return nil
	})
	t.Logf("from a server without streaming lists after %v, %.1f MB resident", time.Since(began), float64(resident())/1e6)
	drain(s)
	began = time.Now()
	builds := 0
	done := make(chan struct{})
	go func() {
		defer close(done)
		touch(t, admin, 500)
	}()
	for finished := false; !finished; {
		select {
		case <-s.Changed():
			builds++
		case <-done:
			finished = true
		}
	}
	t.Logf("500 changes in %v were %d snapshots", time.Since(began), builds)
	nstest.Eventually(t, back, func() error {
		snap, _ := s.Snapshot()
		n := 0
		for _, p := range snap.Peers {
			if p.Port == 4789 {
				n++
			}
		}
		if n != 500 {
			return fmt.Errorf("%d of 500 changes are in", n)
		}
		return nil
	})
}

// BenchmarkFirstSnapshot measures from start to a complete snapshot.
func BenchmarkFirstSnapshot(b *testing.B) {
	nstest.NeedRoot(b)
	api := apiserver.Start(b)
	admin := api.Admin()
	allow(b, admin, ourRules()...)
	made := 0
	for _, n := range []int{1000, 6000} {
		fillFrom(b, admin, made, n, 4<<10)
		made = n
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var peak uint64
			for b.Loop() {
				ctx, cancel := context.WithCancel(context.Background())
				client, err := kube.NewClient(kube.ClientOptions{KubeconfigFile: api.Kubeconfig})
				if err != nil {
					b.Fatal(err)
				}
				s := kube.NewSource(kube.SourceConfig{Client: client, NodeName: "n00000", Log: slog.New(slog.NewTextHandler(io.Discard, nil)),
					Rules: kube.Rules{Prefix: flannelPrefix, Networks: podNetwork()}})
				done := make(chan error, 1)
				go func() { done <- s.Run(ctx) }()
				for {
					if snap, complete := s.Snapshot(); complete && len(snap.Peers) == n-1 {
						break
					}
					<-s.Changed()
				}
				peak = max(peak, heap())
				cancel()
				if err := <-done; err != nil {
					b.Fatal(err)
				}
			}
			b.ReportMetric(float64(peak)/1e6, "MB-heap")
			b.ReportMetric(float64(resident())/1e6, "MB-RSS")
		})
	}
}

func fill(t testing.TB, admin *kubernetes.Clientset, n, size int) { fillFrom(t, admin, 0, n, size) }

// fillFrom makes Nodes number from to n-1, each with as many bytes of status as a kubelet reports.
func fillFrom(t testing.TB, admin *kubernetes.Clientset, from, n, size int) {
	t.Helper()
	var g errgroup.Group
	g.SetLimit(32)
	for i := from; i < n; i++ {
		g.Go(func() error {
			cidr := fmt.Sprintf("10.244.%d.%d/29", i/32, i%32*8) // 8,192 of them fit into Network
			node := &corev1.Node{
				ObjectMeta: metav1.ObjectMeta{Name: fmt.Sprintf("n%05d", i),
					Annotations: annotations(fmt.Sprintf("172.16.%d.%d", i/250, 1+i%250), fmt.Sprintf("0a:00:00:00:%02x:%02x", i>>8, i&255))},
				Spec: corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
			}
			for range size / 100 {
				node.Status.Images = append(node.Status.Images, corev1.ContainerImage{Names: []string{strings.Repeat("registry.example/image", 4)}, SizeBytes: 1})
			}
			_, err := admin.CoreV1().Nodes().Create(context.Background(), node, metav1.CreateOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Fatal(err)
	}
}

// touch changes an annotation of n Nodes.
func touch(t *testing.T, admin *kubernetes.Clientset, n int) {
	var g errgroup.Group
	g.SetLimit(32)
	for i := range n {
		g.Go(func() error {
			_, err := admin.CoreV1().Nodes().Patch(context.Background(), fmt.Sprintf("n%05d", 1+i), "application/merge-patch+json",
				[]byte(`{"metadata":{"annotations":{"`+string(flannelPrefix)+`backend-port":"4789"}}}`), metav1.PatchOptions{})
			return err
		})
	}
	if err := g.Wait(); err != nil {
		t.Error(err)
	}
}

func heap() uint64 {
	runtime.GC()
	var m runtime.MemStats
	runtime.ReadMemStats(&m)
	return m.HeapAlloc
}

// resident is the memory that the kernel counts for this process, in bytes; the test's own clients are in it.
func resident() uint64 {
	data, err := os.ReadFile(filepath.Join("/proc", "self", "statm"))
	if err != nil {
		return 0
	}
	var total, pages uint64
	if _, err := fmt.Sscan(string(data), &total, &pages); err != nil {
		return 0
	}
	return pages * uint64(os.Getpagesize())
}
