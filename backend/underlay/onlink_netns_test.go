package underlay

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// TestPathsAgreeWithTheKernel gives a namespace random routes and asks the kernel itself for the way to random addresses.
func TestPathsAgreeWithTheKernel(t *testing.T) {
	nstest.NeedRoot(t)
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	rng := rand.New(rand.NewPCG(seed, 0))
	ns := nstest.New(t)
	for i := range 3 {
		ns.IP(fmt.Sprintf("link add eth%d type veth peer name far%d", i, i))
		ns.IP(fmt.Sprintf("link set far%d up", i))
		ns.IP(fmt.Sprintf("link set eth%d up mtu %d", i, 1400+100*i))
		ns.IP(fmt.Sprintf("addr add 10.%d.0.1/16 dev eth%d", i, i))
		ns.IP(fmt.Sprintf("-6 addr add fd00:%d::1/32 dev eth%d nodad", i, i))
	}
	for range 60 {
		_, _ = ns.Try(append([]string{"ip"}, strings.Fields(randomRoute(rng))...)...) // the kernel refuses some: that one is there, no such gateway
	}
	ns.IP("route replace default via 10.0.0.254")
	conn, err := kernel.OpenAt(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h, err := conn.Host(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	paths := NewPaths(h)
	for range 300 {
		addr := randomAddr(rng)
		want := ask(t, ns, conn, h, addr)
		got := paths.To(addr)
		got.OnLink = false // the kernel does not judge
		if got != want {
			t.Fatalf("%s: got %+v, the kernel says %+v\n%s%s", addr, got, want, ns.Run("ip", "route"), ns.Run("ip", "-6", "route"))
		}
		if full := paths.To(addr); full.OnLink != (full.Link != "" && !full.Via.IsValid()) {
			t.Errorf("%s: %+v", addr, full)
		}
	}
}

// ask is what the kernel says of the way to an address.
func ask(t *testing.T, ns *nstest.NS, conn *kernel.Conn, h kernel.Host, addr netip.Addr) Path {
	t.Helper()
	out, err := ns.Try("ip", "-o", "route", "get", addr.String())
	if err != nil || strings.HasPrefix(out, "local") || strings.Contains(out, "dev lo ") {
		return Path{} // unreachable, black holes, and our own
	}
	var p Path
	words := strings.Fields(out)
	for i, w := range words[:len(words)-1] {
		switch w {
		case "dev":
			p.Link = words[i+1]
		case "via":
			p.Via = netip.MustParseAddr(words[i+1])
		}
	}
	for _, l := range h.Links {
		if l.Name == p.Link {
			p.MTU = l.MTU
		}
	}
	mtus, err := conn.PathMTU(context.Background(), []netip.Addr{addr})
	if err != nil {
		t.Fatal(err)
	}
	if mtu, ok := mtus[addr]; ok {
		p.MTU = min(p.MTU, mtu)
	}
	return p
}

func randomAddr(rng *rand.Rand) netip.Addr {
	if subnet.Family(rng.IntN(2)) == subnet.IPv4 {
		return netip.AddrFrom4([4]byte{10, byte(rng.IntN(5)), byte(rng.IntN(4)), byte(1 + rng.IntN(4))})
	}
	a := netip.MustParseAddr("fd00::").As16()
	a[3], a[7], a[15] = byte(rng.IntN(5)), byte(rng.IntN(4)), byte(1+rng.IntN(4))
	return netip.AddrFrom16(a)
}

func randomRoute(rng *rand.Rand) string {
	addr := randomAddr(rng)
	bits := [][]int{{8, 16, 24, 30, 32}, {16, 32, 64, 126, 128}}[subnet.FamilyOf(addr)]
	dst, _ := addr.Prefix(bits[rng.IntN(len(bits))])
	words := []string{"route", "add", dst.String()}
	dev := rng.IntN(3)
	if rng.IntN(8) == 0 {
		return fmt.Sprintf("route add blackhole %s metric %d", dst, 1+rng.IntN(3))
	}
	if rng.IntN(2) == 0 {
		words = append(words, "via", [2]string{fmt.Sprintf("10.%d.0.9", dev), fmt.Sprintf("fd00:%d::9", dev)}[subnet.FamilyOf(addr)])
	}
	words = append(words, "dev", fmt.Sprintf("eth%d", dev), "metric", fmt.Sprint(1+rng.IntN(3)))
	if rng.IntN(3) == 0 {
		words = append(words, "mtu", fmt.Sprint(1280+10*rng.IntN(30)))
	}
	return strings.Join(words, " ")
}
