package kube

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
)

// wireGuard makes a claim of an IPv4 node by WireGuard: its key's first byte instead of a MAC.
func wireGuard(name string, day int, cidr string, ip, key byte) Claim {
	c := claimOf(name, day, cidr, ip, 0)
	c.Peer.BackendType, c.Peer.VNI, c.Peer.Endpoints[0].MAC = subnet.WireGuard, 0, subnet.MAC{}
	c.Peer.Key, c.Peer.WGPorts = subnet.Key{key}, [2]uint16{51820}
	return c
}

// speaks is what each peer of an outcome can be reached by, and who is told of a key.
func speaks(r Resolved) string {
	var lines []string
	for _, p := range r.Peers {
		line := p.Name + " " + p.BackendType
		if p.Also != 0 {
			line += "+" + p.Also.String()
		}
		if !p.Key.IsZero() {
			line += " keyed"
		}
		lines = append(lines, line)
	}
	for _, p := range r.Problems {
		if p.Reason == ReasonKeyConflict {
			lines = append(lines, "! "+p.Node+map[bool]string{true: " yields"}[p.Yields])
		}
	}
	return strings.Join(lines, "; ")
}

func TestOneWireGuardKeyIsOneNodes(t *testing.T) {
	also := func(c Claim, kind string) Claim {
		c.Peer.BackendType, c.Peer.Also = kind, subnet.KindsOf(subnet.WireGuard)
		return c
	}
	for name, c := range map[string]struct {
		claims []Claim
		want   string
	}{
		"a key each":             {[]Claim{wireGuard("b", 1, "10.244.2.0/24", 2, 2), wireGuard("c", 2, "10.244.3.0/24", 3, 3)}, "b wireguard keyed; c wireguard keyed"},
		"a clone, the older":     {[]Claim{wireGuard("b", 2, "10.244.2.0/24", 2, 2), wireGuard("c", 1, "10.244.3.0/24", 3, 2)}, "c wireguard keyed; ! b yields; ! c"},
		"two clones":             {[]Claim{wireGuard("b", 1, "10.244.2.0/24", 2, 2), wireGuard("c", 2, "10.244.3.0/24", 3, 2), wireGuard("d", 3, "10.244.4.0/24", 4, 2)}, "b wireguard keyed; ! b; ! c yields; ! d yields"},
		"a clone of the own":     {[]Claim{wireGuard("b", 11, "10.244.2.0/24", 2, 1)}, "! b yields; ! self"},
		"the own is the clone":   {[]Claim{wireGuard("b", 1, "10.244.2.0/24", 2, 1)}, "! b; ! self yields"},
		"a machine renamed":      {[]Claim{wireGuard("old", 1, "10.244.2.0/24", 2, 2), wireGuard("new", 2, "10.244.3.0/24", 2, 2)}, "old wireguard keyed; ! new yields; ! old"},
		"the own was renamed":    {[]Claim{wireGuard("old", 1, "10.244.2.0/24", 1, 1)}, "! old; ! self yields"},
		"a clone on its way out": {[]Claim{wireGuard("b", 1, "10.244.2.0/24", 2, 2), also(wireGuard("c", 2, "10.244.3.0/24", 3, 2), subnet.HostGW)}, "b wireguard keyed; c host-gw; ! b; ! c yields"},
	} {
		v := viewOf(c.claims...)
		v.Own = wireGuard("self", 10, "10.244.1.0/24", 1, 1)
		r := Resolve(v)
		if got := speaks(r); got != c.want {
			t.Errorf("%s:\ngot  %s\nwant %s", name, got, c.want)
		}
		s := subnet.Snapshot{Self: subnet.Self{Name: "self"}, Problems: r.Problems}
		if got := YieldsKey(s, subnet.Key{1}); got != strings.Contains(c.want, "self yields") || YieldsKey(s, subnet.Key{2}) {
			t.Errorf("%s: yields %t", name, got)
		}
	}
}

// Annotations are anybody's to copy: who announces another node's key, address and all takes nothing of it.
func TestACopiedKeyStaysWithTheNodeThatHadItFirst(t *testing.T) {
	victim := wireGuard("victim", 1, "10.244.2.0/24", 2, 2)
	victim.Addrs = []netip.Addr{victim.Peer.Endpoints[0].PublicIP}
	for name, copied := range map[string]func(c *Claim){
		"the key alone":                func(c *Claim) { c.Peer.Endpoints[0].PublicIP = netip.MustParseAddr("192.168.50.9") },
		"the address, too":             func(*Claim) {},
		"with an overwrite annotation": func(c *Claim) { c.Told[0] = true },
		"with the kubelet's address":   func(c *Claim) { c.Addrs = victim.Addrs },
	} {
		thief := wireGuard("a-thief", 2, "10.244.3.0/24", 2, 2)
		copied(&thief)
		for _, claims := range [][]Claim{{victim, thief}, {thief, victim}} {
			r := Resolve(viewOf(claims...))
			if got, want := speaks(r), "victim wireguard keyed; ! a-thief yields; ! victim"; got != want {
				t.Errorf("%s:\ngot  %s\nwant %s", name, got, want)
			}
			if len(r.Peers) == 1 && r.Peers[0] != victim.Peer {
				t.Errorf("%s: the victim is %+v", name, r.Peers[0])
			}
		}
	}
}

func TestP12ANodeWhoseKeyTurnsBadKeepsItsLastOneForAWhile(t *testing.T) {
	good := wireGuard("b", 1, "10.244.2.0/24", 2, 2)
	good.Peer.Also, good.Peer.VNI, good.Peer.Endpoints[0].MAC = subnet.KindsOf(subnet.VXLAN), 7, subnet.MAC{10, 0, 0, 0, 0, 2}
	good.Peer.Port = 4789
	first := Resolve(viewOf(good))
	bad := good
	bad.Peer = subnet.Peer{Name: "b", UID: "uid-b", Created: born(1), BackendType: subnet.WireGuard}
	bad.Bad[subnet.IPv4], bad.Problems = true, []subnet.Problem{{Node: "b", Reason: ReasonBadBackendData, Text: "x"}}
	v := viewOf(bad)
	v.Memory = first.Memory
	r := Resolve(v)
	if len(r.Peers) != 1 || r.Peers[0] != good.Peer {
		t.Errorf("got %+v\nwant %+v", r.Peers, good.Peer)
	}
	v.Memory, v.Now = r.Memory, v.Now.Add(Grace+time.Second)
	if r := Resolve(v); len(r.Peers) != 0 {
		t.Errorf("after the grace: %+v", r.Peers)
	}
}

func TestEitherFamilysBadKeyLeavesTheOther(t *testing.T) {
	both := wireGuard("b", 1, "10.244.2.0/24", 2, 2)
	both.Peer.WGPorts = [2]uint16{51820, 51821}
	both.Peer.Endpoints[1] = subnet.Endpoint{PodCIDR: netip.MustParsePrefix("fd00:10:244:2::/64"), PublicIP: netip.MustParseAddr("fd00::2")}
	first := Resolve(viewOf(both))
	for _, f := range subnet.Families() {
		bad := both
		bad.Bad[f], bad.Peer.Endpoints[f], bad.Peer.WGPorts[f] = true, subnet.Endpoint{}, 0
		v := viewOf(bad)
		if r := Resolve(v); len(r.Peers) != 1 || r.Peers[0] != bad.Peer {
			t.Errorf("%v at the start: %+v", f, r.Peers)
		}
		v.Memory = first.Memory
		if r := Resolve(v); len(r.Peers) != 1 || r.Peers[0] != both.Peer {
			t.Errorf("%v in the grace: %+v", f, r.Peers)
		}
	}
}

func TestEveryNodeOfARandomClusterDecidesAlikeWhoHasAKey(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for round := range 100 {
		var claims []Claim
		holder := map[subnet.Key]Claim{}
		for i := range 1 + rng.IntN(20) {
			claims = append(claims, wireGuard(fmt.Sprintf("n%02d", i), 1+rng.IntN(20), fmt.Sprintf("10.244.%d.0/24", i), byte(2+rng.IntN(10)), byte(1+rng.IntN(8))))
		}
		byAge := slices.SortedFunc(slices.Values(claims), func(a, b Claim) int { return older(a.Peer, b.Peer) })
		for _, c := range byAge {
			if _, there := holder[c.Peer.Key]; !there {
				holder[c.Peer.Key] = c
			}
		}
		for i, own := range claims {
			var want, got []string
			for _, h := range holder {
				if h.Peer.Key != own.Peer.Key && h.Peer.Endpoints[0].PublicIP != own.Peer.Endpoints[0].PublicIP {
					want = append(want, h.Peer.Name)
				}
			}
			slices.Sort(want)
			others := slices.Delete(slices.Clone(claims), i, i+1)
			rng.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
			r := Resolve(View{Own: own, Self: subnet.Self{Name: own.Peer.Name, Exists: true}, Claims: others, Now: born(20)})
			for _, p := range r.Peers {
				got = append(got, p.Name)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("seed %d round %d at %s (-want +got):\n%s", seed, round, own.Peer.Name, diff)
			}
			s := subnet.Snapshot{Self: subnet.Self{Name: own.Peer.Name}, Problems: r.Problems}
			if lost := holder[own.Peer.Key].Peer.Name != own.Peer.Name; YieldsKey(s, own.Peer.Key) != lost {
				t.Fatalf("seed %d round %d: %s yields %t, want %t", seed, round, own.Peer.Name, !lost, lost)
			}
		}
	}
}
