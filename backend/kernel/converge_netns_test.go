package kernel_test

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/vishvananda/netlink"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// foreign are things that Apply would never do.
func foreign(r *rand.Rand) string {
	cidr := podCIDR(subnet.IPv4, r.IntN(8))
	gateway := podCIDR(subnet.IPv4, r.IntN(8)).Addr().Next()
	name := []string{dev, "flannel.2"}[r.IntN(2)]
	all := []string{
		fmt.Sprintf("ip route append %s via %s dev %s onlink", cidr, gateway, name),
		fmt.Sprintf("ip route prepend %s via %s dev %s onlink", cidr, gateway, name),
		fmt.Sprintf("ip route replace %s via %s dev %s onlink", cidr, gateway, name),
		fmt.Sprintf("ip route add %s via %s dev %s onlink metric 77", cidr, gateway, name),
		fmt.Sprintf("ip route add 172.16.%d.0/24 dev %s", r.IntN(9), name),
		fmt.Sprintf("ip route flush dev %s", name),
		fmt.Sprintf("bridge fdb append 00:00:00:00:00:00 dev %s dst 192.168.50.%d self permanent", name, r.IntN(200)),
		fmt.Sprintf("bridge fdb replace %s dev %s dst 192.168.50.%d self dynamic", mac(byte(10+r.IntN(10))), name, r.IntN(200)),
		fmt.Sprintf("ip neigh replace %s lladdr %s dev %s nud stale", cidr.Addr(), mac(77), name),
		fmt.Sprintf("ip neigh flush dev %s nud permanent", name),
		fmt.Sprintf("ip addr add 10.244.%d.%d/24 dev %s", r.IntN(8), r.IntN(3), name),
		fmt.Sprintf("ip addr flush dev %s", name),
		fmt.Sprintf("ip link set %s down", name),
		fmt.Sprintf("ip link set %s address %s", name, mac(byte(r.IntN(100)))),
		fmt.Sprintf("ip link set %s mtu %d", name, 1280+r.IntN(100)),
		fmt.Sprintf("ip link set %s type vxlan learning", name),
		fmt.Sprintf("ip link del %s", name),
		fmt.Sprintf("ip link add %s type bridge", name),
		fmt.Sprintf("ip link add %s up type vxlan id %d dev eth0 local 192.168.50.1 dstport 8472 l2miss", name, 1+r.IntN(2)),
		fmt.Sprintf("ip link add %s up type vxlan id %d dstport 8472", name, 1+r.IntN(2)),
	}
	return all[r.IntN(len(all))]
}

func TestWhateverOthersDoTheKernelConvergesToTheWantedState(t *testing.T) {
	host, conn, parent := realHost(t)
	for seed := range uint64(40) {
		r := rand.New(rand.NewPCG(seed, 87))
		var done []string
		for range 12 {
			command := foreign(r)
			if _, err := host.Try(strings.Fields(command)...); err == nil {
				done = append(done, command)
			}
			op := randomOp(r, parent)
			if conn.Apply(t.Context(), op) == nil {
				done = append(done, op.String())
			}
		}
		want := worldState(r, parent)
		for name, l := range dump(t, conn).Links {
			if _, wanted := want.Links[name]; l.Kind != "vxlan" && !wanted {
				host.IP("link del " + name) // not ours, whatever its name: what is on it could be in the way for good
			}
		}
		rounds := converge(t, conn, want)
		have := dump(t, conn)
		want.Networks = have.Networks
		dropGuests(want, have)
		if d := cmp.Diff(want, have, equal); d != "" || rounds > 2 {
			t.Fatalf("seed %d, %d rounds (-want +got):\n%s\nafter\n%s", seed, rounds, d, strings.Join(done, "\n"))
		}
	}
}

// converge turns rounds until there is nothing to do, ten at most.
func converge(t *testing.T, conn *kernel.Conn, want kernel.State) int {
	t.Helper()
	for round := range 10 {
		ops := kernel.Diff(dump(t, conn), want)
		if len(ops) == 0 {
			return round
		}
		for _, op := range ops {
			if err := conn.Apply(t.Context(), op); err != nil {
				t.Logf("round %d: %v", round, err)
			}
		}
	}
	return 10
}

// dropGuests takes what others may keep on our device out of what was found: the kernel's side of a learning device.
func dropGuests(want, have kernel.State) {
	for k, d := range have.FDB {
		if d.Learned && want.Links[k.Link].Learning {
			delete(have.FDB, k)
		}
	}
}

func TestADumpUnderChurnIsWholeOrFails(t *testing.T) {
	host, conn, parent := realHost(t)
	want := node()
	want.Links[dev] = link(parent)
	for i := 2; i < 250; i++ {
		addPeer(want, i, mac(byte(i)), fmt.Sprintf("192.168.50.%d", i))
	}
	apply(t, conn, kernel.Diff(kernel.New(), want))
	stop, stopped := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(stopped)
		var batch strings.Builder
		for i := range 500 {
			fmt.Fprintf(&batch, "route replace 172.16.%d.0/24 via 10.244.2.0 dev flannel.1 onlink\n", i%250)
			fmt.Fprintf(&batch, "route del 172.16.%d.0/24\n", i%250)
		}
		for {
			select {
			case <-stop:
				return
			default:
				_, _ = host.Input(batch.String(), "ip", "-batch", "-")
			}
		}
	}()
	whole, failed := 0, 0
	for range 300 {
		have, err := conn.Dump(t.Context())
		if errors.Is(err, netlink.ErrDumpInterrupted) {
			failed++
			continue
		}
		if err != nil {
			t.Fatal(err)
		}
		whole++
		for _, op := range kernel.Diff(have, want) {
			if op.Kind != kernel.RouteDel {
				t.Fatalf("the dump lacks something: %s", op)
			}
		}
	}
	close(stop)
	<-stopped
	t.Logf("%d whole, %d interrupted for good", whole, failed)
	if whole == 0 {
		t.Error("no dump was whole")
	}
}

// foreignKinds are things that Apply would never do to devices of other kinds than VXLAN, and to the underlay's.
func foreignKinds(r *rand.Rand) string {
	f := subnet.Family(r.IntN(2))
	cidr := podCIDR(f, r.IntN(8))
	name := []string{wg, wg6, tun, tun6}[r.IntN(4)]
	all := []string{
		fmt.Sprintf("ip route replace %s dev %s", cidr, name),
		fmt.Sprintf("ip route replace %s dev %s", podCIDR(f, 0).Masked(), name),
		fmt.Sprintf("ip route append %s dev %s", cidr, name),
		fmt.Sprintf("ip route flush dev %s", name),
		fmt.Sprintf("ip addr add %s/32 dev %s", podCIDR(subnet.IPv4, r.IntN(8)).Addr(), name),
		fmt.Sprintf("ip addr flush dev %s", name),
		fmt.Sprintf("ip link set %s down", name),
		fmt.Sprintf("ip link set %s mtu %d", name, 1280+r.IntN(100)),
		fmt.Sprintf("ip link del %s", name),
		fmt.Sprintf("ip link add %s type dummy", name),
		"ip link add flannel.ipip up type ipip local 192.168.50.1 remote 192.168.50.9",
		"ip link add flannel-v6.ipip up type ip6tnl mode ip6ip6 local fd00:50::1 remote fd00:50::9",
		"ip link add flannel-v6.ipip up type ip6tnl mode any local fd00:50::1 encaplimit 4",
		"ip link set eth0 down", "ip link set eth0 up",
	}
	return all[r.IntN(len(all))]
}

func TestWhateverOthersDoDevicesOfAllKindsConvergeToTheWantedState(t *testing.T) {
	host, conn, parent := realHost(t)
	needKinds(t, conn, kernel.KindWireGuard, kernel.KindIPIP, kernel.KindIP6Tnl)
	for seed := range uint64(5) {
		r := rand.New(rand.NewPCG(seed, 51820))
		var done []string
		for range 12 {
			command := foreignKinds(r)
			if _, err := host.Try(strings.Fields(command)...); err == nil {
				done = append(done, command)
			}
			op := randomKindOp(r, parent)
			if conn.Apply(t.Context(), op) == nil {
				done = append(done, op.String())
			}
		}
		host.IP("link set eth0 up")
		_, _ = host.Try("ip", "-6", "addr", "replace", "fd00:50::1/64", "dev", "eth0", "nodad")
		want := newMixedWorld(r, parent)
		for name, l := range dump(t, conn).Links {
			if _, wanted := want.Links[name]; l.Kind == "dummy" && !wanted {
				host.IP("link del " + name)
			}
		}
		rounds := converge(t, conn, want)
		have := dump(t, conn)
		for k, p := range have.Peers { // where a peer is looked for is the kernel's business as long as there is a session
			p.Endpoint = want.Peers[k].Endpoint
			have.Peers[k] = p
		}
		if d := cmp.Diff(want, have, equal); d != "" || rounds > 2 {
			t.Fatalf("seed %d, %d rounds (-want +got):\n%s\nafter\n%s", seed, rounds, d, strings.Join(done, "\n"))
		}
	}
}
