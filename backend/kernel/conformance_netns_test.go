package kernel_test

import (
	"fmt"
	"math/rand/v2"
	"net"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/tests/nstest"
)

// realHost is a namespace like the host of a Fake, and a Conn to it.
func realHost(t *testing.T) (*nstest.NS, *kernel.Conn, int) {
	t.Helper()
	host := nstest.NewFabric(t, 1).Nodes[0]
	return host, connect(t, host), index(t, host, "eth0")
}

func connect(t *testing.T, host *nstest.NS) *kernel.Conn {
	t.Helper()
	conn, err := kernel.OpenAt(host.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	return conn
}

func index(t *testing.T, host *nstest.NS, device string) int {
	t.Helper()
	var iface *net.Interface
	err := host.Do(func() (err error) {
		iface, err = net.InterfaceByName(device)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return iface.Index
}

func TestTheKernelHasTheMannersThatTheFakeHas(t *testing.T) {
	nstest.NeedRoot(t)
	conform(t, func(t *testing.T, kinds ...string) (kernel.Kernel, int) {
		_, conn, parent := realHost(t)
		needKinds(t, conn, kinds...)
		return conn, parent
	})
}

func TestTheFakeAnswersAsTheKernelInRandomSequences(t *testing.T) {
	nstest.NeedRoot(t)
	for seed := range uint64(12) {
		t.Run(fmt.Sprintf("seed_%d", seed), func(t *testing.T) {
			_, conn, parent := realHost(t)
			sameAnswers(t, conn, parent, seed, randomOp)
		})
	}
}

func TestTheFakeAnswersAsTheKernelForAllKindsInRandomSequences(t *testing.T) {
	nstest.NeedRoot(t)
	for seed := range uint64(6) {
		t.Run(fmt.Sprintf("seed_%d", seed), func(t *testing.T) {
			_, conn, parent := realHost(t)
			needKinds(t, conn, kernel.KindWireGuard, kernel.KindIPIP, kernel.KindIP6Tnl)
			sameAnswers(t, conn, parent, seed, randomKindOp)
		})
	}
}

// sameAnswers applies what draw draws to the kernel and to a fake.
func sameAnswers(t *testing.T, conn *kernel.Conn, parent int, seed uint64, draw func(r *rand.Rand, parent int) kernel.Op) {
	t.Helper()
	fake := kernel.NewFake()
	r := rand.New(rand.NewPCG(seed, 87))
	var done []kernel.Op
	for range 150 {
		state := r.Uint64()
		op := draw(rand.New(rand.NewPCG(state, 1)), parent)
		done = append(done, op)
		kerr, ferr := conn.Apply(t.Context(), op), fake.Apply(t.Context(), draw(rand.New(rand.NewPCG(state, 1)), 2))
		if (kerr == nil) != (ferr == nil) {
			t.Fatalf("%s: the kernel says %v, the fake %v; after\n%s", op, kerr, ferr, commands(done))
		}
		if d := cmp.Diff(text(dump(t, conn), parent), text(dump(t, fake), 2)); d != "" {
			t.Fatalf("after %s the fake is not as the kernel (-kernel +fake):\n%s\nafter\n%s", op, d, commands(done))
		}
	}
}

// needKinds ends a test on a kernel without a kind of device. Debian's kernel in the virtual machine has them all.
func needKinds(t *testing.T, conn *kernel.Conn, kinds ...string) {
	t.Helper()
	for _, feature := range conn.Probe(t.Context(), kinds...) {
		if feature.Support != kernel.Supported {
			t.Skipf("this kernel has no %s (%v); `make test-vm` runs the test on one that has", feature.Name, feature.Err)
		}
	}
}
