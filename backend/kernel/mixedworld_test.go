package kernel_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// mixedWorld draws states that a cluster could want while it goes from one backend to another: each peer is reached by a
// kind of its own, in one or two families, and WireGuard has one device or two.
type mixedWorld struct {
	r      *rand.Rand
	parent int
	s      kernel.State
	joint  bool // one WireGuard device for both families
	vni    uint32
}

func newMixedWorld(r *rand.Rand, parent int) kernel.State {
	w := mixedWorld{r: r, parent: parent, s: kernel.New(), joint: r.IntN(2) == 0, vni: uint32(1 + r.IntN(2))}
	w.s.Networks = [2]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56")}
	own := r.IntN(8)
	families := subnet.Families()
	first := r.IntN(2)
	for _, f := range families[first : first+1+r.IntN(2-first)] {
		for i := range 8 {
			if i != own {
				w.peer(f, i)
			}
		}
		w.addresses(f, podCIDR(f, own).Addr())
		if r.IntN(4) == 0 {
			w.s.Routes[kernel.RouteKey{Dst: w.s.Networks[f], Metric: 1<<32 - 1}] = kernel.Route{Ours: true, Type: "blackhole"}
		}
	}
	return w.s
}

// peer reaches a peer by some kind, or not at all.
func (w *mixedWorld) peer(f subnet.Family, i int) {
	cidr, at := podCIDR(f, i), underlay(f, 10+w.r.IntN(20))
	key := kernel.RouteKey{Dst: cidr, Metric: []int{0, 1024}[f]}
	switch w.r.IntN(5) {
	case 0:
		name := kernel.DeviceName(f, w.vni)
		w.device(name, f, kernel.KindVXLAN)
		m := mac(byte(10 + i + 10*w.r.IntN(2)))
		w.s.Neighs[kernel.Neigh{Link: name, IP: cidr.Addr()}] = m
		w.s.FDB[kernel.FDBKey{Link: name, MAC: m}] = kernel.FDBDest{Dst: at}
		w.s.Routes[key] = kernel.Route{Link: name, Via: cidr.Addr(), Onlink: true, Ours: true, Type: "unicast"}
	case 1:
		name := kernel.WireGuardName(f)
		if w.joint {
			name = wg
		}
		w.device(name, f, kernel.KindWireGuard)
		k := kernel.WGKey{Link: name, Key: pub(byte(10 + i + 10*w.r.IntN(2)))}
		p := w.s.Peers[k]
		p.Endpoint, p.Keepalive = netip.AddrPortFrom(at, 51820), time.Duration(w.r.IntN(2))*time.Second
		p.Allowed[f] = cidr
		w.s.Peers[k] = p
		w.s.Routes[key] = kernel.Route{Link: name, Ours: true, Type: "unicast"}
	case 2:
		name := kernel.TunnelName(f)
		w.device(name, f, kernel.TunnelKind(f))
		w.s.Routes[key] = kernel.Route{Link: name, Via: at, Onlink: f == subnet.IPv4, Ours: true, Type: "unicast"}
	case 3:
		w.s.Routes[key] = kernel.Route{Link: "eth0", Via: at, Ours: true, Type: "unicast"}
	}
}

func (w *mixedWorld) device(name string, f subnet.Family, kind string) {
	if _, there := w.s.Links[name]; there {
		return
	}
	l := tunLink(f)
	switch kind {
	case kernel.KindVXLAN:
		l = [2]kernel.Link{link(w.parent), link6(w.parent)}[f]
		l.VNI, l.Port = w.vni, uint16(8472+w.r.IntN(2))
	case kernel.KindWireGuard:
		l = wgLink()
		l.Port, l.Key = uint16(51820+w.r.IntN(2)), secret(byte(w.r.IntN(2)))
		if other, taken := w.s.Links[wg]; taken {
			l.Port = 51820 + (1 - (other.Port - 51820))
		}
	}
	l.MTU -= 10 * w.r.IntN(2)
	w.s.Links[name] = l
}

// addresses gives all devices of a family the node's own address.
func (w *mixedWorld) addresses(f subnet.Family, own netip.Addr) {
	for name, l := range w.s.Links {
		serves := l.Local.IsValid() && subnet.FamilyOf(l.Local) == f || l.Kind == kernel.KindWireGuard && (w.joint || name == kernel.WireGuardName(f))
		if serves {
			w.s.Addrs[kernel.Addr{Link: name, Prefix: netip.PrefixFrom(own, own.BitLen())}] = struct{}{}
		}
	}
}

func TestDiffTakesAMixedClusterAnywhereAndNoRouteIsEverAwayThatStays(t *testing.T) {
	for seed := range uint64(800) {
		r := rand.New(rand.NewPCG(seed, 51820))
		fake := kernel.NewFake()
		have := kernel.New()
		for round := range 5 {
			want := newMixedWorld(r, 2)
			ops := kernel.Diff(have, want)
			context := func() string {
				return fmt.Sprintf("seed %d round %d: from\n%sto\n%sby\n%s", seed, round, have, want, commands(ops))
			}
			removed := map[string]bool{}
			for _, op := range ops {
				if err := fake.Apply(t.Context(), op); err != nil {
					t.Fatalf("%v\n%s", err, context())
				}
				if op.Kind == kernel.LinkDel && !op.Prune {
					removed[op.Name] = true
				}
				if broken := brokenWay(have, want, dump(t, fake), removed); broken != "" {
					t.Fatalf("after %s: %s\n%s", op, broken, context())
				}
			}
			have = dump(t, fake)
			if d := cmp.Diff(want, have, equal); d != "" {
				t.Fatalf("(-want +got):\n%s\n%s", d, context())
			}
			if again := kernel.Diff(have, want); len(again) > 0 {
				t.Fatalf("a second diff is not empty:\n%s\n%s", commands(again), context())
			}
		}
	}
}

// brokenWay looks for a peer that both states reach, by whatever kind, and that has no route now, unless its device had to go
// first; and for a route to a peer that the device does not know.
func brokenWay(have, want, now kernel.State, removed map[string]bool) string {
	for key, r := range want.Routes {
		was, had := have.Routes[key]
		if _, is := now.Routes[key]; had && r.Type == "unicast" && !is && !removed[was.Link] {
			return fmt.Sprintf("the route to %s is away", key.Dst)
		}
	}
	for key, r := range now.Routes {
		if now.Links[r.Link].Kind == kernel.KindWireGuard && !isOwned(now, r.Link, key.Dst) {
			return fmt.Sprintf("%s leads to %s, where nobody has it", key.Dst, r.Link)
		}
	}
	return ""
}

func isOwned(s kernel.State, link string, dst netip.Prefix) bool {
	for k, p := range s.Peers {
		if k.Link == link && p.Allowed[subnet.FamilyOf(dst.Addr())] == dst {
			return true
		}
	}
	return false
}
