package daemon

import (
	"context"
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/google/go-cmp/cmp/cmpopts"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
)

// ground is a plane on a fake kernel whose host has eth0 with 192.168.50.1.
type ground struct {
	*plane
	fake *kernel.Fake
	in   input
}

func newGround(t *testing.T, conf string) *ground {
	t.Helper()
	c, _, err := subnet.ParseNetConf([]byte(conf))
	if err != nil {
		t.Fatal(err)
	}
	fake := kernel.NewFake()
	cfg := Config{Iface: Iface{Names: []string{"eth0"}}}
	p := &plane{cfg: cfg, log: quiet(), kernel: fake, metrics: newMetrics(Version{}, newBoard(quiet())), told: newTold(quiet())}
	return &ground{plane: p, fake: fake, in: input{conf: c, snap: subnet.Snapshot{Self: self("10.244.1.0/24"), Peers: []subnet.Peer{peer("b", 2)}}}}
}

const plainConf = `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}`

func self(cidr string) subnet.Self {
	s := subnet.Self{Name: "a", UID: "u", Exists: true}
	if cidr != "" {
		s.PodCIDRs[subnet.IPv4] = netip.MustParsePrefix(cidr)
	}
	return s
}

func peer(name string, n byte) subnet.Peer {
	return subnet.Peer{Name: name, UID: name, BackendType: "vxlan", VNI: 1, Port: 4789, Endpoints: [2]subnet.Endpoint{{
		PodCIDR:  netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, n, 0}), 24),
		PublicIP: netip.AddrFrom4([4]byte{192, 168, 50, n}),
		MAC:      subnet.MAC{2, 0, 0, 0, 0, n + 100},
	}}}
}

func (g *ground) mustSync(t *testing.T) {
	t.Helper()
	if own, peers := g.sync(t.Context(), g.in); own != nil || peers != nil {
		t.Fatal(own, peers)
	}
}

func (g *ground) routes(t *testing.T) []string {
	t.Helper()
	s, err := g.fake.Dump(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	var out []string
	for _, line := range strings.Split(s.String(), "\n") {
		if strings.Contains(line, "onlink") {
			out = append(out, strings.TrimPrefix(strings.TrimSpace(line), "route "))
		}
	}
	return out
}

func TestARoundBringsUpDeviceAndPeers(t *testing.T) {
	g := newGround(t, plainConf)
	g.mustSync(t)
	if diff := cmp.Diff([]string{"10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink"}, g.routes(t)); diff != "" {
		t.Error(diff)
	}
	a := g.applied.Load()
	if a.Plan.PodMTU != 1450 || a.Net.VXLAN.Port != 4789 || !slices.Equal(a.devices(), []string{"flannel.1"}) {
		t.Errorf("applied: MTU %d, port %d, device %s", a.Plan.PodMTU, a.Net.VXLAN.Port, a.devices())
	}
}

func TestPodsNeedTheDeviceOfEachFamilyOfTheConfiguredBackend(t *testing.T) {
	links := map[string]kernel.Link{
		"flannel-wg": {Kind: kernel.KindWireGuard}, "flannel-wg-v6": {Kind: kernel.KindWireGuard},
		"flannel.1": {Kind: kernel.KindVXLAN}, "flannel-v6.1": {Kind: kernel.KindVXLAN}, "flannel-old": {Kind: kernel.KindVXLAN},
		"flannel.ipip": {Kind: kernel.KindIPIP}, "flannel-v6.ipip": {Kind: kernel.KindIP6Tnl},
	}
	all := []string{"flannel-old", "flannel-wg", "flannel-wg-v6", "flannel.1", "flannel-v6.1", "flannel.ipip", "flannel-v6.ipip"}
	for kind, want := range map[string][]string{
		subnet.VXLAN: {"flannel.1", "flannel-v6.1"}, subnet.WireGuard: {"flannel-wg", "flannel-wg-v6"},
		subnet.IPIP: {"flannel.ipip", "flannel-v6.ipip"}, subnet.HostGW: nil, subnet.Alloc: nil,
	} {
		a := &applied{Net: mesh.Config{Kind: kind}, Plan: mesh.Result{Devices: all, Want: kernel.State{Links: links}}}
		if diff := cmp.Diff(want, a.devices(), cmpopts.EquateEmpty()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", kind, diff)
		}
	}
}

func TestD01WithoutAPodCIDRNothingIsTouched(t *testing.T) {
	g := newGround(t, plainConf)
	g.mustSync(t)
	before := g.routes(t)
	g.in.snap.Self.PodCIDRs = [2]netip.Prefix{}
	g.in.snap.Peers = nil
	if own, _ := g.sync(t.Context(), g.in); !errors.Is(own, subnet.ErrNoPodCIDR) {
		t.Errorf("error: %v", own)
	}
	if diff := cmp.Diff(before, g.routes(t)); diff != "" {
		t.Error(diff)
	}
}

func TestD02APodCIDROutsideTheNetworkIsRefusedWithBothValues(t *testing.T) {
	g := newGround(t, plainConf)
	g.in.snap.Self = self("10.42.1.0/24")
	err, _ := g.sync(t.Context(), g.in)
	if err == nil || !strings.Contains(err.Error(), "10.42.1.0/24") || !strings.Contains(err.Error(), "10.244.0.0/16") {
		t.Errorf("error: %v", err)
	}
	if g.applied.Load() != nil {
		t.Error("something was applied, and would be announced")
	}
}

func TestTheStateFromDiskRemovesNothing(t *testing.T) {
	g := newGround(t, plainConf)
	g.in.snap.Peers = append(g.in.snap.Peers, peer("c", 3))
	g.mustSync(t)
	g.in.snap.Peers, g.in.stale = g.in.snap.Peers[:1], true
	g.mustSync(t)
	if n := len(g.routes(t)); n != 2 {
		t.Errorf("%d routes, want both to stay", n)
	}
	g.in.stale = false
	g.mustSync(t)
	if n := len(g.routes(t)); n != 1 {
		t.Errorf("%d routes, want c's to go once the cluster is known", n)
	}
}

func TestV01TheDevicesMACIsSetBackToWhatWasAnnounced(t *testing.T) {
	g := newGround(t, plainConf)
	g.mustSync(t)
	want := g.applied.Load().Net.VXLAN.MACs[0]
	g.fake.Edit(func(s *kernel.State) {
		l := s.Links["flannel.1"]
		l.MAC = subnet.MAC{2, 9, 9, 9, 9, 9}
		s.Links["flannel.1"] = l
	})
	g.mustSync(t)
	s, _ := g.fake.Dump(t.Context())
	if got := s.Links["flannel.1"].MAC; got != want {
		t.Errorf("MAC %s, want %s", got, want)
	}
}

func TestARestartKeepsPortAndMACOfTheDeviceThatIsThere(t *testing.T) {
	g := newGround(t, `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "Port": 8472}}`)
	g.mustSync(t)
	first := g.applied.Load().Net.VXLAN
	again := newGround(t, plainConf)
	again.kernel, again.fake = g.fake, g.fake
	again.mustSync(t)
	second := again.applied.Load().Net.VXLAN
	if second.Port != 8472 || second.MACs[0] != first.MACs[0] {
		t.Errorf("port %d, MAC %s; want 8472 and %s", second.Port, second.MACs[0], first.MACs[0])
	}
}

func TestI01ANewcomerWithAnAddressOfAnotherNodeStepsBack(t *testing.T) {
	g := newGround(t, plainConf)
	other := peer("b", 2)
	other.Endpoints[0].PublicIP = netip.MustParseAddr("192.168.50.1")
	g.in.snap.Peers = []subnet.Peer{other}
	err, _ := g.sync(t.Context(), g.in)
	if err == nil || !strings.Contains(err.Error(), "by b") || g.applied.Load() != nil {
		t.Errorf("error %v, applied %v", err, g.applied.Load())
	}
	g.in.snap.Self.PublicIP[0] = other.Endpoints[0].PublicIP
	if own, peers := g.sync(t.Context(), g.in); own != nil || peers == nil || g.applied.Load() == nil {
		t.Errorf("who announced it before goes on and is not ready: errors %v, %v", own, peers)
	}
	g.cfg.Iface.AllowShared = true
	g.mustSync(t)
}

func TestAClonedMachineMakesAMACOfItsOwn(t *testing.T) {
	g := newGround(t, plainConf)
	g.mustSync(t)
	was := g.mac[0]
	other := peer("b", 2)
	other.Endpoints[0].MAC = was
	g.in.snap.Peers = []subnet.Peer{other}
	g.mustSync(t) // not announced yet: the other has it already
	second := g.mac[0]
	if second == was {
		t.Fatal("it would announce another node's MAC")
	}
	g.in.snap.Peers, g.in.snap.Self.MAC[0] = nil, second
	g.mustSync(t)
	if g.mac[0] != second {
		t.Error("the MAC changes without need")
	}
	g.in.snap.Problems = []subnet.Problem{{Node: "a", Reason: kube.ReasonMACConflict, Value: second.String(), Text: "x"}}
	g.mustSync(t)
	if g.mac[0] != second {
		t.Error("the older node of the two changes its MAC")
	}
	g.in.snap.Problems[0].Yields = true
	_, _ = g.sync(t.Context(), g.in) // others still send to the older one, says the peers part
	third := g.mac[0]
	if third == second {
		t.Fatal("the younger node keeps a MAC for which nobody sends to it")
	}
	_, _ = g.sync(t.Context(), g.in)
	if have, _ := g.fake.Dump(t.Context()); g.mac[0] != third || have.Links["flannel.1"].MAC != third {
		t.Errorf("until it is announced it stays %s; the device has %s", third, have.Links["flannel.1"].MAC)
	}
}

func TestI11AnInterfaceThatIsNotFoundAnyMoreKeepsNoPeerWaitingWhileItsAddressStands(t *testing.T) {
	g := newGround(t, plainConf)
	g.mustSync(t)
	g.cfg.Iface = Iface{CanReach: "203.0.113.1"} // no route leads there, as when the default route is gone
	g.in.snap.Peers = append(g.in.snap.Peers, peer("c", 3))
	g.mustSync(t)
	if n := len(g.routes(t)); n != 2 {
		t.Errorf("%d routes, want c's as well", n)
	}
	g.fake.EditHost(func(h *kernel.Host) { h.Addrs = nil })
	if own, _ := g.sync(t.Context(), g.in); own == nil {
		t.Error("ready although the tunnel's address is gone")
	}
}

func TestAChangeThatFailsIsReportedAndTheOthersAreMade(t *testing.T) {
	g := newGround(t, plainConf)
	g.mustSync(t)
	g.in.snap.Peers = append(g.in.snap.Peers, peer("c", 3), peer("d", 4))
	g.fake.FailApply(1, errors.New("no buffer space"))
	if own, peers := g.sync(t.Context(), g.in); own != nil || peers == nil || !strings.Contains(peers.Error(), "no buffer space") {
		t.Errorf("errors: %v, %v", own, peers)
	}
	if n := len(g.applied.Load().Snapshot.Peers); n != 3 {
		t.Errorf("rules and files stand still for one peer: they know %d", n)
	}
	g.mustSync(t)
	if n := len(g.routes(t)); n != 3 {
		t.Errorf("%d routes after the retry, want 3", n)
	}
}

// restless is a host whose links change faster than they can be listed.
type restless struct{ *kernel.Fake }

func (restless) Host(context.Context) (kernel.Host, error) {
	return kernel.Host{}, kernel.ErrInterrupted
}

func TestWhileLinksComeAndGoTheLastListOfThemHasToDo(t *testing.T) {
	g := newGround(t, plainConf)
	g.plane.kernel = restless{g.fake}
	if own, _ := g.sync(t.Context(), g.in); !errors.Is(own, kernel.ErrInterrupted) {
		t.Fatalf("without any list of links: %v", own)
	}
	g.plane.kernel = g.fake
	g.mustSync(t)
	g.plane.kernel = restless{g.fake}
	g.in.snap.Peers = append(g.in.snap.Peers, peer("c", 3))
	g.mustSync(t)
	if routes := g.routes(t); len(routes) != 2 {
		t.Errorf("routes: %q", routes)
	}
}
