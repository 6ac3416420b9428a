package collect

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/tests/nstest"
)

// attach makes a pod on the host's bridge; with a name the runtime keeps its namespace in dir.
func attach(t testing.TB, host *nstest.NS, dir, name, addr string) {
	t.Helper()
	pod := host.Pod(0, netip.MustParsePrefix(addr+"/24"))
	if name != "" {
		bind(t, pod.Path(), dir+"/"+name)
	}
}

func bind(t testing.TB, from, to string) {
	t.Helper()
	if err := os.WriteFile(to, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := unix.Mount(from, to, "", unix.MS_BIND, ""); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Unmount(to, unix.MNT_DETACH) })
}

func TestC10AndC08WithPodsInNamespaces(t *testing.T) {
	n, host := newNode(t), nstest.New(t)
	n.NetnsDir = t.TempDir()
	for i, id := range []string{"named", "lost", "hidden"} {
		name, addr := id, fmt.Sprintf("10.244.1.%d", 2+i)
		if id == "hidden" {
			name = ""
		}
		attach(t, host, n.NetnsDir, name, addr)
		netns := n.NetnsDir + "/" + id
		if id == "hidden" {
			netns = "/proc/4711/ns/net"
		}
		n.result(id, addr, netns, time.Hour)
		n.record(id, time.Hour)
	}
	host.Run("ip", "addr", "add", "10.244.9.1/24", "dev", "cni0") // of the range before
	n.reserve("10.244.1.2", "named", time.Hour)                   // and none for the two others
	n.reserve("10.244.1.50", "dead", time.Hour)
	n.result("dead", "10.244.1.50", n.NetnsDir+"/dead", 2*time.Hour)
	n.record("dead", time.Hour)
	n.reserve("10.244.1.51", "unheard", time.Hour)
	n.reserve("10.244.1.52", "", time.Hour)

	conn, err := kernel.OpenAt(host.FD())
	n.must(err)
	defer conn.Close()
	n.Kernel = conn
	r := n.pass()
	want := []string{"10.244.1.2 named/eth0", "10.244.1.3 lost/eth0", "10.244.1.4 hidden/eth0"}
	if d := cmp.Diff(want, n.left()); d != "" {
		t.Errorf("%s %q: reservations (-want +got):\n%s", r, r.Problems, d)
	}
	if d := cmp.Diff([]string{"hidden", "lost", "named"}, files(n.Records)); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"cbr0-hidden-eth0", "cbr0-lost-eth0", "cbr0-named-eth0"}, files(n.Results)); d != "" {
		t.Errorf("results (-want +got):\n%s", d)
	}
	if len(r.Gateways) != 1 || r.Gateways[0] != netip.MustParsePrefix("10.244.9.1/24") {
		t.Errorf("taken off the bridge: %v", r.Gateways)
	}
	if again := n.pass(); again.String() != "" {
		t.Errorf("a second pass did something: %s", again)
	}
}

// BenchmarkPass is a node with 100 pods and nothing to do.
func BenchmarkPass(b *testing.B) {
	nstest.NeedRoot(b)
	host := nstest.New(b)
	conn, err := kernel.OpenAt(host.FD())
	if err != nil {
		b.Fatal(err)
	}
	defer conn.Close()
	dir := b.TempDir()
	opts := Options{PodCIDRs: []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}, Kernel: conn, NetnsDir: dir,
		Networks: dir + "/networks", Records: dir + "/records", Results: dir + "/results", State: dir + "/state"}
	for i := range 100 {
		attach(b, host, dir, "", fmt.Sprintf("10.244.1.%d", i+2))
	}
	if _, err := Run(context.Background(), opts); err != nil { // puts the reservations back
		b.Fatal(err)
	}
	for b.Loop() {
		if _, err := Run(context.Background(), opts); err != nil {
			b.Fatal(err)
		}
	}
}
