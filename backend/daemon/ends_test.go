package daemon

import (
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

const dualConf = `{"EnableIPv6": true, "Network": "10.244.0.0/16", "IPv6Network": "fd00:10:244::/48", "Backend": {"Type": "vxlan"}}`

// newDualGround is a ground with a Node and a peer of both families.
func newDualGround(t *testing.T) *ground {
	t.Helper()
	g := newGround(t, dualConf)
	g.in.snap.Self.PodCIDRs[subnet.IPv6] = netip.MustParsePrefix("fd00:10:244:1::/64")
	g.in.snap.Peers[0].Endpoints[subnet.IPv6] = subnet.Endpoint{
		PodCIDR: netip.MustParsePrefix("fd00:10:244:2::/64"), PublicIP: netip.MustParseAddr("fd00:50::2"), MAC: subnet.MAC{2, 0, 0, 0, 6, 102},
	}
	return g
}

// address gives the host an IPv6 address, or takes all away.
func (g *ground) address(there bool) {
	g.fake.EditHost(func(h *kernel.Host) {
		h.Addrs = slices.DeleteFunc(h.Addrs, func(a kernel.HostAddr) bool { return a.Prefix.Addr().Is6() })
		if there {
			h.Addrs = append(h.Addrs, kernel.HostAddr{Index: h.Addrs[0].Index, Prefix: netip.MustParsePrefix("fd00:50::1/64"), Permanent: true})
		}
	})
}

func TestAFamilyWithoutAnUnderlayIsNamedAndTheOtherWorks(t *testing.T) {
	g := newDualGround(t)
	g.address(false)
	g.board = newBoard(quiet())
	g.mustSync(t)
	if v := g.board.verdict(); v.Ready || !strings.Contains(v.String(), "family: pick the IPv6 underlay") {
		t.Errorf("the board says %v", v)
	}
	if a := g.applied.Load(); !a.uses(subnet.IPv4) || a.uses(subnet.IPv6) || len(g.routes(t)) != 1 {
		t.Errorf("routes: %v", g.routes(t))
	}
	g.address(true)
	g.mustSync(t)
	if !g.board.verdict().Ready || len(g.routes(t)) != 2 || g.applied.Load().Plan.PodMTU != 1430 {
		t.Errorf("MTU %d, routes: %v", g.applied.Load().Plan.PodMTU, g.routes(t))
	}
}

func TestAFamilyWhoseRangeOrMTUCannotBeUsedIsNamedAndTheOtherWorks(t *testing.T) {
	for want, spoil := range map[string]func(*ground){
		"doesn't contain": func(g *ground) { g.in.snap.Self.PodCIDRs[subnet.IPv6] = netip.MustParsePrefix("fd00:bad::/64") },
		"leaves 1230 for IPv6 pods": func(g *ground) {
			g.fake.EditHost(func(h *kernel.Host) {
				for i := range h.Links {
					h.Links[i].MTU = 1300
				}
			})
		},
	} {
		g := newDualGround(t)
		g.address(true)
		g.board = newBoard(quiet())
		spoil(g)
		g.mustSync(t)
		if v := g.board.verdict(); v.Ready || !strings.Contains(v.String(), "family: ") || !strings.Contains(v.String(), want) {
			t.Errorf("the board says %v", v)
		}
		if a := g.applied.Load(); !a.uses(subnet.IPv4) || a.uses(subnet.IPv6) || len(g.routes(t)) != 1 {
			t.Errorf("%s: routes: %v", want, g.routes(t))
		}
	}
}

func TestAFamilyThatLosesItsUnderlayKeepsWhatIsThere(t *testing.T) {
	g := newDualGround(t)
	g.address(true)
	g.mustSync(t)
	g.address(false)
	g.in.snap.Peers = append(g.in.snap.Peers, peer("c", 3))
	for range 2 {
		if g.mustSync(t); len(g.routes(t)) != 3 {
			t.Errorf("routes: %v", g.routes(t))
		}
	}
	again := newDualGround(t) // an agent that starts now
	again.kernel, again.fake, again.in = g.fake, g.fake, g.in
	if own, _ := again.sync(t.Context(), again.in); own != nil || len(g.routes(t)) != 3 {
		t.Errorf("own %v, routes: %v", own, g.routes(t))
	}
}

func TestWhatANodeSpokeBeforeIsReadFromItsNodeAndItsDevices(t *testing.T) {
	g := newGround(t, plainConf)
	g.mustSync(t)
	have, err := g.fake.Dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	a := *g.applied.Load()
	a.Net.Kind = subnet.HostGW
	a.Snapshot.Self.BackendType, a.Snapshot.Self.Also = subnet.HostGW, subnet.KindsOf(subnet.IPIP)
	if got := g.formerKinds(a, have); got != subnet.KindsOf(subnet.VXLAN, subnet.IPIP) {
		t.Errorf("got %s", got)
	}
	if v := formerVXLAN(subnet.Self{VNI: 7, Port: 8472, MAC: [2]subnet.MAC{{10}}}, kernel.New()); v.VNI != 7 || v.SilentPort != 8472 {
		t.Errorf("after a boot: %+v", v)
	}
	if v := formerVXLAN(subnet.Self{}, kernel.New()); v.VNI != 1 {
		t.Errorf("nothing is known: %+v", v)
	}
	if v := formerVXLAN(subnet.Self{VNI: 7, MAC: [2]subnet.MAC{{10}}}, have); v.VNI != 1 || v.SilentPort != 4789 {
		t.Errorf("got %+v", v)
	}
}

func TestTheMetricsTellByWhichWayPeersAreReached(t *testing.T) {
	g := newDualGround(t)
	g.address(true)
	g.in.snap.Peers = append(g.in.snap.Peers, peer("c", 3)) // in IPv4 alone
	g.mustSync(t)
	families, err := g.metrics.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]float64{}
	for _, f := range families {
		if f.GetName() == "weft_ways" {
			for _, m := range f.GetMetric() {
				got[m.GetLabel()[0].GetValue()+" "+m.GetLabel()[1].GetValue()] = m.GetGauge().GetValue()
			}
		}
	}
	want := map[string]float64{"vxlan IPv4": 2, "vxlan IPv6": 1}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
