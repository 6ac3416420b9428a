package mesh_test

import (
	"net/netip"
	"testing"

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
