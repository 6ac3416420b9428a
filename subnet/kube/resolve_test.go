package kube

import (
	"errors"
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

// claimOf makes a good claim of an IPv4 node: name, age in days, pod CIDR, last byte of the address, last byte of the MAC.
func claimOf(name string, day int, cidr string, ip, mac byte) Claim {
	return Claim{Managed: true, Peer: subnet.Peer{
		Name: name, UID: "uid-" + name, Created: born(day), BackendType: "vxlan", VNI: 1,
		Endpoints: [2]subnet.Endpoint{{
			PodCIDR: netip.MustParsePrefix(cidr), PublicIP: netip.AddrFrom4([4]byte{192, 168, 50, ip}), MAC: subnet.MAC{10, 0, 0, 0, 0, mac},
		}},
	}}
}

// viewOf has an own node with 10.244.1.0/24, .1 and MAC 1, ten days old.
func viewOf(claims ...Claim) View {
	own := claimOf("self", 10, "10.244.1.0/24", 1, 1)
	return View{Own: own, Self: subnet.Self{Name: "self", Exists: true, PodCIDRs: prefixes("10.244.1.0/24")}, Claims: claims, Now: born(20)}
}

// show is an outcome for people to read.
func show(r Resolved) string {
	var b strings.Builder
	for _, p := range r.Peers {
		fmt.Fprintf(&b, "%s", p.Name)
		for _, e := range p.Endpoints {
			if !e.IsZero() {
				fmt.Fprintf(&b, " %s via %s %s", e.PodCIDR, e.PublicIP, e.MAC)
			}
		}
		b.WriteString("\n")
	}
	for _, p := range r.Problems {
		fmt.Fprintf(&b, "! %s %s: %s\n", p.Node, p.Reason, p.Text)
	}
	return b.String()
}

func TestP10ResolveGivesWhatIsClaimedTwiceToOne(t *testing.T) {
	const goTo = "; delete the Node that should not have it, so that it gets a range of its own\n"
	for name, c := range map[string]struct {
		claims []Claim
		want   string
	}{
		"no conflict": {[]Claim{claimOf("c", 2, "10.244.3.0/24", 3, 3), claimOf("b", 1, "10.244.2.0/24", 2, 2)},
			"b 10.244.2.0/24 via 192.168.50.2 0a:00:00:00:00:02\nc 10.244.3.0/24 via 192.168.50.3 0a:00:00:00:00:03\n"},
		"equal ranges: the older": {[]Claim{claimOf("b", 2, "10.244.2.0/24", 2, 2), claimOf("c", 1, "10.244.2.0/24", 3, 3)},
			"c 10.244.2.0/24 via 192.168.50.3 0a:00:00:00:00:03\n" +
				"! b PodCIDRConflict: pod CIDR 10.244.2.0/24 is also claimed by node c: packets for it go to c" + goTo +
				"! c PodCIDRConflict: pod CIDR 10.244.2.0/24 is also claimed by node b: packets for it go to c" + goTo},
		"equal age: the lower name": {[]Claim{claimOf("c", 1, "10.244.2.0/24", 3, 3), claimOf("b", 1, "10.244.2.0/24", 2, 2)},
			"b 10.244.2.0/24 via 192.168.50.2 0a:00:00:00:00:02\n" +
				"! b PodCIDRConflict: pod CIDR 10.244.2.0/24 is also claimed by node c: packets for it go to b" + goTo +
				"! c PodCIDRConflict: pod CIDR 10.244.2.0/24 is also claimed by node b: packets for it go to b" + goTo},
		"a younger range inside": {[]Claim{claimOf("b", 1, "10.244.2.0/23", 2, 2), claimOf("c", 2, "10.244.3.0/24", 3, 3)},
			"b 10.244.2.0/23 via 192.168.50.2 0a:00:00:00:00:02\n" +
				"! b PodCIDRConflict: pod CIDR 10.244.3.0/24 is also claimed by node c: packets for it go to b" + goTo +
				"! c PodCIDRConflict: pod CIDR 10.244.3.0/24 is also claimed by node b: packets for it go to b" + goTo},
		"a younger range around": {[]Claim{claimOf("b", 2, "10.244.2.0/23", 2, 2), claimOf("c", 1, "10.244.3.0/24", 3, 3)},
			"c 10.244.3.0/24 via 192.168.50.3 0a:00:00:00:00:03\n" +
				"! b PodCIDRConflict: pod CIDR 10.244.2.0/23 is also claimed by node c: packets for it go to c" + goTo +
				"! c PodCIDRConflict: pod CIDR 10.244.2.0/23 is also claimed by node b: packets for it go to c" + goTo},
		"the own range, older": {[]Claim{claimOf("b", 11, "10.244.1.0/24", 2, 2)},
			"! b PodCIDRConflict: pod CIDR 10.244.1.0/24 is also claimed by node self: packets for it go to self" + goTo +
				"! self PodCIDRConflict: pod CIDR 10.244.1.0/24 is also claimed by node b: packets for it go to self" + goTo},
		"the own range, younger": {[]Claim{claimOf("b", 9, "10.244.0.0/23", 2, 2)},
			"! b PodCIDRConflict: pod CIDR 10.244.1.0/24 is also claimed by node self: packets for it go to b" + goTo +
				"! self PodCIDRConflict: pod CIDR 10.244.1.0/24 is also claimed by node b: packets for it go to b" + goTo},
		"three of one range": {[]Claim{claimOf("b", 1, "10.244.2.0/24", 2, 2), claimOf("c", 2, "10.244.2.0/24", 3, 3), claimOf("d", 3, "10.244.2.0/24", 4, 4)},
			"b 10.244.2.0/24 via 192.168.50.2 0a:00:00:00:00:02\n" +
				"! b PodCIDRConflict: pod CIDR 10.244.2.0/24 is also claimed by node c and 1 more: packets for it go to b" + goTo +
				"! c PodCIDRConflict: pod CIDR 10.244.2.0/24 is also claimed by node b: packets for it go to b" + goTo +
				"! d PodCIDRConflict: pod CIDR 10.244.2.0/24 is also claimed by node b: packets for it go to b" + goTo},
		"a MAC that a loser of its range has too": {[]Claim{claimOf("b", 1, "10.244.1.0/24", 2, 2), claimOf("c", 12, "10.244.3.0/24", 3, 1)},
			"! b PodCIDRConflict: pod CIDR 10.244.1.0/24 is also claimed by node self: packets for it go to b" + goTo +
				"! c MACConflict: VTEP MAC 0a:00:00:00:00:01 is also claimed by node self: packets for it go to self; delete the flannel device on the node that was cloned, so that it makes a new MAC\n" +
				"! self MACConflict: VTEP MAC 0a:00:00:00:00:01 is also claimed by node c: packets for it go to self; delete the flannel device on the node that was cloned, so that it makes a new MAC\n" +
				"! self PodCIDRConflict: pod CIDR 10.244.1.0/24 is also claimed by node b: packets for it go to b" + goTo},
		"the own MAC, older elsewhere": {[]Claim{claimOf("b", 1, "10.244.2.0/24", 2, 1)},
			"! b MACConflict: VTEP MAC 0a:00:00:00:00:01 is also claimed by node self: packets for it go to b; delete the flannel device on the node that was cloned, so that it makes a new MAC\n" +
				"! self MACConflict: VTEP MAC 0a:00:00:00:00:01 is also claimed by node b: packets for it go to b; delete the flannel device on the node that was cloned, so that it makes a new MAC\n"},
		"one MAC at two addresses": {[]Claim{claimOf("b", 1, "10.244.2.0/24", 2, 2), claimOf("c", 2, "10.244.3.0/24", 3, 2)},
			"b 10.244.2.0/24 via 192.168.50.2 0a:00:00:00:00:02\n" +
				"! b MACConflict: VTEP MAC 0a:00:00:00:00:02 is also claimed by node c: packets for it go to b; delete the flannel device on the node that was cloned, so that it makes a new MAC\n" +
				"! c MACConflict: VTEP MAC 0a:00:00:00:00:02 is also claimed by node b: packets for it go to b; delete the flannel device on the node that was cloned, so that it makes a new MAC\n"},
		"I-01 one address of two": {[]Claim{claimOf("b", 1, "10.244.2.0/24", 2, 2), claimOf("c", 2, "10.244.3.0/24", 2, 3)},
			"b 10.244.2.0/24 via 192.168.50.2 0a:00:00:00:00:02\nc 10.244.3.0/24 via 192.168.50.2 0a:00:00:00:00:03\n" +
				"! b PublicIPConflict: public IP 192.168.50.2 is also claimed by node c: check --iface, --public-ip and the public-ip-overwrite annotation of both, or delete the Node that is gone; the other is b\n" +
				"! c PublicIPConflict: public IP 192.168.50.2 is also claimed by node b: check --iface, --public-ip and the public-ip-overwrite annotation of both, or delete the Node that is gone; the other is b\n"},
		"a machine under a new name": {[]Claim{claimOf("old", 1, "10.244.2.0/24", 2, 2), claimOf("new", 2, "10.244.3.0/24", 2, 2)},
			"new 10.244.3.0/24 via 192.168.50.2 0a:00:00:00:00:02\nold 10.244.2.0/24 via 192.168.50.2 0a:00:00:00:00:02\n" +
				"! new PublicIPConflict: public IP 192.168.50.2 is also claimed by node old: check --iface, --public-ip and the public-ip-overwrite annotation of both, or delete the Node that is gone; the other is old\n" +
				"! old PublicIPConflict: public IP 192.168.50.2 is also claimed by node new: check --iface, --public-ip and the public-ip-overwrite annotation of both, or delete the Node that is gone; the other is old\n"},
		"I-01 the own address": {[]Claim{claimOf("b", 11, "10.244.2.0/24", 1, 2)},
			"! b PublicIPConflict: public IP 192.168.50.1 is also claimed by node self: check --iface, --public-ip and the public-ip-overwrite annotation of both, or delete the Node that is gone; the other is self\n" +
				"! self PublicIPConflict: public IP 192.168.50.1 is also claimed by node b: check --iface, --public-ip and the public-ip-overwrite annotation of both, or delete the Node that is gone; the other is self\n"},
		"not managed": {[]Claim{{Peer: subnet.Peer{Name: "b"}, Addrs: []netip.Addr{netip.MustParseAddr("192.168.50.2")}}}, ""},
	} {
		t.Run(name, func(t *testing.T) {
			for range 3 {
				rand.Shuffle(len(c.claims), func(i, j int) { c.claims[i], c.claims[j] = c.claims[j], c.claims[i] })
				if diff := cmp.Diff(c.want, show(Resolve(viewOf(c.claims...)))); diff != "" {
					t.Fatalf("(-want +got):\n%s", diff)
				}
			}
		})
	}
}

// K-09: two machines that come back with each other's addresses, each while the other's Node still announces what is now its
// own: if both stepped back, both would wait forever.
func TestK09AnAnnouncedAddressThatIsAnotherNodesByNowCountsNoMore(t *testing.T) {
	at := func(c Claim, addrs ...string) Claim {
		for _, a := range addrs {
			c.Addrs = append(c.Addrs, netip.MustParseAddr(a))
		}
		return c
	}
	b, c := claimOf("b", 1, "10.244.2.0/24", 2, 2), claimOf("c", 2, "10.244.3.0/24", 3, 3)
	const moved = "! %s OutdatedPublicIP: the address 192.168.50.%d that it announces is the address of node %s: it counts again when its agent announces the one it has, " +
		"or when the annotation public-ip-overwrite says that this is meant\n"
	for name, test := range map[string]struct {
		claims []Claim
		want   string
	}{
		"each has the other's": {[]Claim{at(b, "192.168.50.3"), at(c, "192.168.50.2")},
			fmt.Sprintf(moved, "b", 2, "c") + fmt.Sprintf(moved, "c", 3, "b")},
		"the first has announced its new one": {[]Claim{at(claimOf("b", 1, "10.244.2.0/24", 3, 2), "192.168.50.3"), at(c, "192.168.50.2")},
			"b 10.244.2.0/24 via 192.168.50.3 0a:00:00:00:00:02\n" + fmt.Sprintf(moved, "c", 3, "b")},
		"the own one": {[]Claim{at(claimOf("b", 1, "10.244.2.0/24", 1, 2), "192.168.50.3")},
			fmt.Sprintf(moved, "b", 1, "self")},
		"both have it": {[]Claim{at(b, "192.168.50.2"), at(c, "192.168.50.3", "192.168.50.2")},
			"b 10.244.2.0/24 via 192.168.50.2 0a:00:00:00:00:02\nc 10.244.3.0/24 via 192.168.50.3 0a:00:00:00:00:03\n"},
		"nobody has it": {[]Claim{at(b, "10.0.0.2"), at(c, "192.168.50.3")},
			"b 10.244.2.0/24 via 192.168.50.2 0a:00:00:00:00:02\nc 10.244.3.0/24 via 192.168.50.3 0a:00:00:00:00:03\n"},
	} {
		v := viewOf(test.claims...)
		v.Own = at(v.Own, "192.168.50.1")
		if diff := cmp.Diff(test.want, show(Resolve(v))); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
	told := at(b, "10.0.0.2")
	told.Told[subnet.IPv4] = true
	if r := Resolve(viewOf(told, at(c, "192.168.50.3", "192.168.50.2"))); len(r.Peers) != 2 || len(r.Problems) != 0 {
		t.Errorf("I-03 b is behind a NAT whose address c has, as an administrator says: %s", show(r))
	}
	// What the own Node still announces is no reason either to leave out the node that has the address now.
	v := viewOf(at(claimOf("b", 1, "10.244.2.0/24", 1, 2), "192.168.50.1"))
	v.Own = at(v.Own, "192.168.50.9")
	want := "b 10.244.2.0/24 via 192.168.50.1 0a:00:00:00:00:02\n" + fmt.Sprintf(moved, "self", 1, "b")
	if diff := cmp.Diff(want, show(Resolve(v))); diff != "" {
		t.Errorf("own (-want +got):\n%s", diff)
	}
}

func TestP10TheLoserTakesOverWhenTheWinnerLeaves(t *testing.T) {
	b, c := claimOf("b", 1, "10.244.2.0/24", 2, 2), claimOf("c", 2, "10.244.2.0/24", 3, 3)
	if r := Resolve(viewOf(b, c)); len(r.Peers) != 1 || r.Peers[0].Name != "b" {
		t.Errorf("both: %s", show(r))
	}
	if r := Resolve(viewOf(c)); len(r.Peers) != 1 || r.Peers[0].Name != "c" || len(r.Problems) != 0 {
		t.Errorf("one: %s", show(r))
	}
}

func TestResolveDropsOnlyTheFamilyInConflict(t *testing.T) {
	b, c := claimOf("b", 1, "10.244.2.0/24", 2, 2), claimOf("c", 2, "10.244.2.0/24", 3, 3)
	c.Peer.Endpoints[subnet.IPv6] = subnet.Endpoint{PodCIDR: netip.MustParsePrefix("fd00:10:244:3::/64"), PublicIP: netip.MustParseAddr("fd00::3"), MAC: subnet.MAC{10, 0, 0, 0, 6, 3}}
	r := Resolve(viewOf(b, c))
	if len(r.Peers) != 2 || r.Peers[1].Endpoints[subnet.IPv4] != (subnet.Endpoint{}) || r.Peers[1].Endpoints[subnet.IPv6].IsZero() {
		t.Error(show(r))
	}
}

func TestP12ABadNodeKeepsItsLastGoodEntryForAWhile(t *testing.T) {
	good := claimOf("b", 1, "10.244.2.0/24", 2, 2)
	good.Peer.Port = 8472
	bad := Claim{Managed: true, Bad: [2]bool{true}, Peer: subnet.Peer{Name: "b", UID: "uid-b", Created: born(1), BackendType: "vxlan"},
		Problems: []subnet.Problem{{Node: "b", Reason: ReasonBadPublicIP, Text: "x"}}}
	start := born(20)
	memory := Memory{}
	step := func(after time.Duration, claims ...Claim) Resolved {
		v := viewOf(claims...)
		v.Memory, v.Now = memory, start.Add(after)
		r := Resolve(v)
		memory = r.Memory
		return r
	}
	if r := step(0, bad); len(r.Peers) != 0 || r.Problems[0].Text != "x" {
		t.Errorf("bad from the start: %s", show(r))
	}
	step(0, good)
	r := step(time.Minute, bad)
	if len(r.Peers) != 1 || r.Peers[0] != good.Peer || r.Expires != start.Add(time.Minute+Grace) || r.Problems[0].Text != "x; the last good entry is kept for 5m0s" {
		t.Errorf("turned bad: %s expires %v", show(r), r.Expires)
	}
	if r := step(3*time.Minute, bad); len(r.Peers) != 1 || r.Expires != start.Add(time.Minute+Grace) {
		t.Errorf("still bad: the time must not begin anew: %v", r.Expires)
	}
	if r := step(time.Minute+Grace, bad); len(r.Peers) != 0 || !r.Expires.IsZero() || r.Problems[0].Text != "x" {
		t.Errorf("too long: %s", show(r))
	}
	if r := step(2*Grace, bad); len(r.Peers) != 0 {
		t.Errorf("came back by itself: %s", show(r))
	}
	step(3*Grace, good)
	if r := step(3*Grace, bad); len(r.Peers) != 1 {
		t.Errorf("good in between, then bad: %s", show(r))
	}
	again := bad
	again.Peer.UID = "another"
	if r := step(3*Grace, again); len(r.Peers) != 0 {
		t.Errorf("P-05 another Node of that name: %s", show(r))
	}
	step(4*Grace, good)
	off := bad
	off.Managed = false
	if r := step(4*Grace, off); len(r.Peers) != 0 || len(r.Memory) != 0 {
		t.Errorf("no longer managed: %s", show(r))
	}
	step(5*Grace, good)
	step(5 * Grace) // deleted
	if r := step(5*Grace, bad); len(r.Peers) != 0 {
		t.Errorf("deleted in between: %s", show(r))
	}
	memory = Remember([]subnet.Peer{good.Peer})
	if r := step(0, bad); len(r.Peers) != 1 {
		t.Errorf("known from a kept snapshot: %s", show(r))
	}
}

func TestP12ABadHalfIsKeptBesideAGoodOne(t *testing.T) {
	good := claimOf("b", 1, "10.244.2.0/24", 2, 2)
	good.Peer.Endpoints[subnet.IPv6] = subnet.Endpoint{PodCIDR: netip.MustParsePrefix("fd00:10:244:2::/64"), PublicIP: netip.MustParseAddr("fd00::2"), MAC: subnet.MAC{10, 0, 0, 0, 6, 2}}
	memory := Resolve(viewOf(good)).Memory
	half := good
	half.Bad[subnet.IPv6] = true
	half.Peer.Endpoints[subnet.IPv6] = subnet.Endpoint{}
	half.Peer.Endpoints[subnet.IPv4].PublicIP = netip.MustParseAddr("192.168.50.9")
	v := viewOf(half)
	v.Memory = memory
	r := Resolve(v)
	want := good.Peer
	want.Endpoints[subnet.IPv4].PublicIP = netip.MustParseAddr("192.168.50.9")
	if len(r.Peers) != 1 || r.Peers[0] != want {
		t.Error(show(r))
	}
}

func TestOnlyTheYoungerNodeOfAConflictYields(t *testing.T) {
	for name, c := range map[string]struct {
		claims []Claim
		shared bool
		want   bool
	}{
		"nothing in conflict":            {[]Claim{claimOf("b", 1, "10.244.2.0/24", 2, 2)}, false, false},
		"an older node with our range":   {[]Claim{claimOf("b", 1, "10.244.1.0/24", 2, 2)}, true, true},
		"a younger node with our range":  {[]Claim{claimOf("b", 11, "10.244.1.0/24", 2, 2)}, false, false},
		"I-01 an older with our address": {[]Claim{claimOf("b", 1, "10.244.2.0/24", 1, 2)}, false, true},
		"I-01 that may be shared":        {[]Claim{claimOf("b", 1, "10.244.2.0/24", 1, 2)}, true, false},
		"an older node with our MAC":     {[]Claim{claimOf("b", 1, "10.244.2.0/24", 2, 1)}, true, true},
		"others in conflict":             {[]Claim{claimOf("b", 1, "10.244.2.0/24", 2, 2), claimOf("c", 2, "10.244.2.0/24", 3, 3)}, false, false},
	} {
		v := viewOf(c.claims...)
		err := CheckYields(subnet.Snapshot{Self: v.Self, Problems: Resolve(v).Problems}, c.shared)
		if (err != nil) != c.want || err != nil && !errors.Is(err, ErrYields) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestResolveListsAllAddressesOnce(t *testing.T) {
	a := func(s string) netip.Addr { return netip.MustParseAddr(s) }
	v := viewOf(Claim{Addrs: []netip.Addr{a("10.0.0.3"), a("fd00::3")}}, Claim{Addrs: []netip.Addr{a("10.0.0.2"), a("10.0.0.3")}})
	v.Own.Addrs = []netip.Addr{a("10.0.0.1")}
	if got := fmt.Sprint(Resolve(v).NodeAddrs); got != "[10.0.0.1 10.0.0.2 10.0.0.3 fd00::3]" {
		t.Error(got)
	}
}

// TestEveryNodeOfARandomClusterDecidesAlike compares with the plain rule: go through the Nodes by age, the one who looks
// among them, and take those that claim nothing taken. Who looks leaves out only what is its own.
func TestEveryNodeOfARandomClusterDecidesAlike(t *testing.T) {
	seed := rand.Uint64()
	rng := rand.New(rand.NewPCG(seed, 0))
	for round := range 100 {
		claims := randomClaims(rng)
		winners := winnersByAge(claims)
		for i, own := range claims {
			e := own.Peer.Endpoints[subnet.IPv4]
			var want []string
			for name, w := range winners {
				if name != own.Peer.Name && !w.PodCIDR.Overlaps(e.PodCIDR) && w.MAC != e.MAC && w.PublicIP != e.PublicIP {
					want = append(want, name)
				}
			}
			slices.Sort(want)
			others := slices.Delete(slices.Clone(claims), i, i+1)
			rng.Shuffle(len(others), func(i, j int) { others[i], others[j] = others[j], others[i] })
			r := Resolve(View{Own: own, Self: subnet.Self{Name: own.Peer.Name, Exists: true, PodCIDRs: [2]netip.Prefix{e.PodCIDR}}, Claims: others, Now: born(20)})
			var got []string
			for _, p := range r.Peers {
				got = append(got, p.Name)
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Fatalf("seed %d round %d at %s (-want +got):\n%s", seed, round, own.Peer.Name, diff)
			}
			reported := map[string]bool{}
			for _, p := range r.Problems {
				reported[p.Node] = true
			}
			for _, c := range others {
				if !slices.Contains(got, c.Peer.Name) && !reported[c.Peer.Name] {
					t.Fatalf("seed %d round %d at %s: %s is left out without a word", seed, round, own.Peer.Name, c.Peer.Name)
				}
			}
			if _, won := winners[own.Peer.Name]; !won && !reported[own.Peer.Name] {
				t.Fatalf("seed %d round %d: %s has lost and is not told", seed, round, own.Peer.Name)
			}
		}
	}
}

// randomClaims is a cluster in which much is claimed twice.
func randomClaims(rng *rand.Rand) []Claim {
	var claims []Claim
	for i := range 1 + rng.IntN(30) {
		p := netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(rng.IntN(8)), byte(rng.IntN(4) << 6)}), 20+rng.IntN(9)).Masked()
		c := claimOf(fmt.Sprintf("n%02d", i), 1+rng.IntN(20), p.String(), byte(2+i), byte(2+i))
		if e := &c.Peer.Endpoints[subnet.IPv4]; rng.IntN(4) == 0 {
			e.MAC = subnet.MAC{10, 0, 0, 0, 0, byte(2 + rng.IntN(8))}
		} else if rng.IntN(8) == 0 {
			e.PublicIP = netip.AddrFrom4([4]byte{192, 168, 50, byte(2 + rng.IntN(8))})
		}
		claims = append(claims, c)
	}
	return claims
}

// winnersByAge is the rule in its plainest form.
func winnersByAge(claims []Claim) map[string]subnet.Endpoint {
	byAge := slices.Clone(claims)
	slices.SortFunc(byAge, func(a, b Claim) int { return older(a.Peer, b.Peer) })
	winners := map[string]subnet.Endpoint{}
	for _, c := range byAge {
		e, free := c.Peer.Endpoints[subnet.IPv4], true
		first := map[subnet.MAC]netip.Addr{} // a MAC belongs to the address of its oldest holder
		for _, b := range byAge {
			if w, won := winners[b.Peer.Name]; won {
				free = free && !w.PodCIDR.Overlaps(e.PodCIDR)
				if _, there := first[w.MAC]; !there {
					first[w.MAC] = w.PublicIP
				}
			}
		}
		if ip, there := first[e.MAC]; free && (!there || ip == e.PublicIP) {
			winners[c.Peer.Name] = e
		}
	}
	return winners
}

func TestI01AClusterWithOneAddressIsOneProblemANode(t *testing.T) {
	var claims []Claim
	for i := range 2000 {
		c := claimOf(fmt.Sprintf("n%04d", i), 1, fmt.Sprintf("10.%d.%d.0/24", i/250, i%250), 15, byte(i))
		c.Peer.Endpoints[subnet.IPv4].MAC = subnet.MAC{10, 0, 0, 9, byte(i >> 8), byte(i)}
		claims = append(claims, c)
	}
	r := Resolve(viewOf(claims...))
	if len(r.Problems) != 2000 {
		t.Errorf("%d problems", len(r.Problems))
	}
}

func BenchmarkResolve(b *testing.B) {
	for _, n := range []int{1000, 5000, 15000} {
		b.Run(fmt.Sprint(n), func(b *testing.B) {
			var claims []Claim
			for i := range n {
				c := claimOf(fmt.Sprintf("n%05d", i), 1+i%28, fmt.Sprintf("10.%d.%d.0/24", i/256, i%256), 2, 2)
				e := &c.Peer.Endpoints[subnet.IPv4]
				e.PublicIP, e.MAC = netip.AddrFrom4([4]byte{172, 16, byte(i >> 8), byte(i)}), subnet.MAC{10, 0, 0, 0, byte(i >> 8), byte(i)}
				c.Addrs = []netip.Addr{e.PublicIP}
				claims = append(claims, c)
			}
			v := viewOf(claims...)
			v.Self.PodCIDRs, v.Own = prefixes("192.168.0.0/24"), Claim{}
			for b.Loop() {
				if r := Resolve(v); len(r.Peers) != n {
					b.Fatal(len(r.Peers))
				}
			}
		})
	}
}
