package mesh_test

import (
	"net/netip"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
)

// modeOf is node i with a Mode, and the same node as its peers see it.
func modeOf(i byte, mode string) (mesh.Config, subnet.Peer) {
	c := config(i, subnet.WireGuard)
	c.WireGuard.Conf.Mode = mode
	p := peer(i, subnet.WireGuard)
	for _, f := range subnet.Families() {
		p.WGPorts[f] = c.WireGuard.Conf.Port(f)
	}
	return c, p
}

// A node's devices all have its one key. Two of them that talk to one device of the peer take its session from each other, so
// that packets of either family arrive where nobody has the range.
func TestNodesOfDifferentModesReachEachOtherInBothFamiliesByOneSession(t *testing.T) {
	modes := []string{subnet.ModeSeparate, subnet.ModeAuto, subnet.ModeIPv4, subnet.ModeIPv6}
	for _, a := range modes {
		for _, b := range modes {
			ca, pa := modeOf(1, a)
			cb, pb := modeOf(2, b)
			wantA, wantB := plan(t, input(ca, pb)).Want, plan(t, input(cb, pa)).Want
			arrives(t, a+" to "+b, wantA, wantB, pa, pb)
			arrives(t, b+" to "+a, wantB, wantA, pb, pa)
			for name, s := range map[string]kernel.State{a: wantA, b: wantB} {
				if sessions, most := len(s.Peers), 2; sessions > 1 && (a != b || sessions > most) {
					t.Errorf("%s to %s: %d sessions on the node of Mode %s", a, b, sessions, name)
				}
			}
		}
	}
}

// arrives follows a packet of each family by the states of two nodes.
func arrives(t *testing.T, name string, from, to kernel.State, sender, receiver subnet.Peer) {
	t.Helper()
	for _, f := range subnet.Families() {
		out := from.Routes[kernel.RouteKey{Dst: receiver.Endpoints[f].PodCIDR, Metric: kernel.RouteMetric(f)}].Link
		entry := from.Peers[kernel.WGKey{Link: out, Key: receiver.Key}]
		if entry.Allowed[f] != receiver.Endpoints[f].PodCIDR {
			t.Errorf("%s, %v: %q sends to no peer with the range: %+v", name, f, out, entry)
		}
		heard := ""
		for device, link := range to.Links {
			if link.Port == entry.Endpoint.Port() {
				heard = device
			}
		}
		back := to.Peers[kernel.WGKey{Link: heard, Key: sender.Key}]
		if back.Allowed[f] != sender.Endpoints[f].PodCIDR {
			t.Errorf("%s, %v: %s is heard by %q, which takes nothing of it: %+v", name, f, entry.Endpoint, heard, back)
		}
		if home := to.Routes[kernel.RouteKey{Dst: sender.Endpoints[f].PodCIDR, Metric: kernel.RouteMetric(f)}].Link; home != heard {
			t.Errorf("%s, %v: answers go by %q, and packets come by %q", name, f, home, heard)
		}
		first := sender.Endpoints[f].PodCIDR.Addr()
		if _, ok := from.Addrs[kernel.Addr{Link: out, Prefix: single(first)}]; !ok {
			t.Errorf("%s, %v: %s has no address that the peer takes packets from", name, f, out)
		}
	}
}

func single(a netip.Addr) netip.Prefix { return netip.PrefixFrom(a, a.BitLen()) }

// A device below 1280 bytes has no IPv6 at all: the kernel takes it off, of pods' devices, too.
func TestANarrowUnderlayOfIPv4LeavesPodsTheirIPv6(t *testing.T) {
	for _, tc := range []struct {
		kind, mode string
		mtu        int // of the underlay of IPv4
		pods       int
		devices    map[string]int
	}{
		{subnet.VXLAN, "", 1300, 1280, map[string]int{"flannel.1": 1250, "flannel-v6.1": 1430}},
		{subnet.VXLAN, "", 1400, 1350, map[string]int{"flannel.1": 1350, "flannel-v6.1": 1430}},
		{subnet.IPIP, "", 1290, 1280, map[string]int{"flannel.ipip": 1270, "flannel-v6.ipip": 1460}},
		{subnet.HostGW, "", 1270, 1280, map[string]int{}},
		{subnet.WireGuard, subnet.ModeSeparate, 1300, 1280, map[string]int{"flannel-wg": 1220, "flannel-wg-v6": 1420}},
		{subnet.WireGuard, subnet.ModeAuto, 1300, 1280, map[string]int{"flannel-wg": 1280}},
		{subnet.WireGuard, subnet.ModeAuto, 1400, 1320, map[string]int{"flannel-wg": 1320}},
	} {
		c := config(1, tc.kind)
		c.WireGuard.Conf.Mode = tc.mode
		c.Ends[subnet.IPv4].UnderlayMTU = tc.mtu
		r := plan(t, input(c))
		got := map[string]int{}
		for name, link := range r.Want.Links {
			got[name] = link.MTU
		}
		if diff := cmp.Diff(tc.devices, got); diff != "" || r.PodMTU != tc.pods {
			t.Errorf("%s %s on %d: pods %d, want %d; devices (-want +got):\n%s", tc.kind, tc.mode, tc.mtu, r.PodMTU, tc.pods, diff)
		}
	}
	c, _ := modeOf(1, subnet.ModeSeparate)
	_, auto := modeOf(2, subnet.ModeAuto)
	c.Ends[subnet.IPv4].UnderlayMTU = 1300
	if got := plan(t, input(c, auto)).Want.Links["flannel-wg"].MTU; got != 1280 {
		t.Errorf("a device that has a peer's IPv6 as well has %d bytes", got)
	}
	alone := only(subnet.IPv4, config(1, subnet.VXLAN))
	alone.Ends[subnet.IPv4].UnderlayMTU = 700
	if got := plan(t, input(alone)).PodMTU; got != 650 {
		t.Errorf("without IPv6 pods have %d", got)
	}
}
