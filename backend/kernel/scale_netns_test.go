package kernel_test

import (
	"context"
	"net/netip"
	"os"
	"strings"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/tests/nstest"
)

// The kernel bounds its neighbours over all namespaces together, to 1,024 where nobody has raised it. Permanent entries,
// which ours are, do not count: a node of a large cluster needs no sysctl.
func TestL06MoreNeighboursThanTheKernelsLimitAreProgrammed(t *testing.T) {
	host := nstest.NewFabric(t, 1).Nodes[0]
	conn, err := kernel.OpenAt(host.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h, err := conn.Host(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	want := kernel.New()
	for _, l := range h.Links {
		if l.Name == "eth0" {
			want.Links[dev] = link(l.Index)
		}
	}
	want.Addrs[addr(kernel.AddrSet, dev, "10.128.0.0/32").Addr] = struct{}{}
	for i := 1; i <= 1500; i++ {
		gateway := netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), 0})
		m := [6]byte{0x0a, 0, 0, 0, byte(i >> 8), byte(i)}
		want.FDB[kernel.FDBKey{Link: dev, MAC: m}] = kernel.FDBDest{Dst: netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})}
		want.Neighs[kernel.Neigh{Link: dev, IP: gateway}] = m
		r := route(kernel.RouteSet, dev, gateway.String()+"/24", gateway.String())
		want.Routes[r.Key] = r.Route
	}
	for _, op := range kernel.Diff(kernel.New(), want) {
		if err := conn.Apply(context.Background(), op); err != nil {
			t.Fatal(err)
		}
	}
	have, err := conn.Dump(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	if ops := kernel.Diff(have, want); len(ops) > 0 || len(have.Neighs) != 1500 {
		t.Errorf("%d neighbours, %d differences, the first is %v", len(have.Neighs), len(ops), ops)
	}
	limit, err := os.ReadFile("/proc/sys/net/ipv4/neigh/default/gc_thresh3")
	t.Logf("1,500 neighbours; the kernel's limit is %s (%v)", strings.TrimSpace(string(limit)), err)
}
