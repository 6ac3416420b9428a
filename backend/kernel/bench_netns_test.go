package kernel_test

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/tests/nstest"
)

// BenchmarkIdleRound measures what a round costs when nothing differs: a full dump and a diff.
func BenchmarkIdleRound(b *testing.B) {
	for _, peers := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("%d_peers", peers), func(b *testing.B) {
			conn, want := largeNode(b, peers)
			for _, op := range kernel.Diff(kernel.New(), want) {
				if err := conn.Apply(context.Background(), op); err != nil {
					b.Fatal(err)
				}
			}
			b.ReportAllocs()
			for b.Loop() {
				have, err := conn.Dump(context.Background())
				if err != nil {
					b.Fatal(err)
				}
				if ops := kernel.Diff(have, want); len(ops) > 0 {
					b.Fatalf("not idle: %s", ops[0])
				}
			}
		})
	}
}

// BenchmarkFirstRound measures a first start, from nothing.
func BenchmarkFirstRound(b *testing.B) {
	for _, peers := range []int{100, 1000, 5000} {
		b.Run(fmt.Sprintf("%d_peers", peers), func(b *testing.B) {
			conn, want := largeNode(b, peers)
			for b.Loop() {
				for _, op := range kernel.Diff(kernel.New(), want) {
					if err := conn.Apply(context.Background(), op); err != nil {
						b.Fatal(err)
					}
				}
				b.StopTimer()
				if err := conn.Apply(context.Background(), linkDel(dev)); err != nil {
					b.Fatal(err)
				}
				b.StartTimer()
			}
		})
	}
}

// largeNode is a namespace, and the state of a node with many peers in it.
func largeNode(b *testing.B, peers int) (*kernel.Conn, kernel.State) {
	b.Helper()
	host := nstest.NewFabric(b, 1).Nodes[0]
	conn, err := kernel.OpenAt(host.FD())
	if err != nil {
		b.Fatal(err)
	}
	b.Cleanup(conn.Close)
	h, err := conn.Host(context.Background())
	if err != nil {
		b.Fatal(err)
	}
	want := kernel.New()
	for _, l := range h.Links {
		if l.Name == "eth0" {
			want.Links[dev] = link(l.Index)
		}
	}
	want.Addrs[addr(kernel.AddrSet, dev, "10.128.0.0/32").Addr] = struct{}{}
	for i := 1; i <= peers; i++ {
		gateway := netip.AddrFrom4([4]byte{10, byte(128 + i>>8), byte(i), 0})
		m := [6]byte{0x0a, 0, 0, 0, byte(i >> 8), byte(i)}
		want.FDB[kernel.FDBKey{Link: dev, MAC: m}] = kernel.FDBDest{Dst: netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)})}
		want.Neighs[kernel.Neigh{Link: dev, IP: gateway}] = m
		r := route(kernel.RouteSet, dev, gateway.String()+"/24", gateway.String())
		want.Routes[r.Key] = r.Route
	}
	return conn, want
}
