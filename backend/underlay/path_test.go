package underlay

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

func TestAnUnderlayThatCarriesNothingIsNamed(t *testing.T) {
	u := Underlay{Link: "eth0", Index: 2, Addr: netip.MustParseAddr("192.168.50.1")}
	for _, c := range []struct {
		name string
		u    Underlay
		link kernel.HostLink
		want string
	}{
		{"good", u, kernel.HostLink{Index: 2, Name: "eth0", Up: true, Carrier: true}, ""},
		{"down", u, kernel.HostLink{Index: 2, Name: "eth0"}, "ip link set eth0 up"},
		{"no cable", u, kernel.HostLink{Index: 2, Name: "eth0", Up: true}, "eth0 has no carrier"},
		{"gone", u, kernel.HostLink{Index: 3, Name: "eth1"}, ""}, // picking says so
		{"not in use", Underlay{}, kernel.HostLink{Name: "eth0"}, ""},
	} {
		err := Down(c.u, kernel.Host{Links: []kernel.HostLink{c.link}})
		if (err == nil) != (c.want == "") || err != nil && !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: got %v, want %q", c.name, err, c.want)
		}
	}
}

func TestV06PodsThatAreWiderThanTheOverlayAreFoundByTheirBridge(t *testing.T) {
	own := []netip.Prefix{netip.MustParsePrefix("10.244.1.0/24")}
	host := kernel.Host{
		Links: []kernel.HostLink{
			{Index: 2, Name: "eth0", Kind: "device", MTU: 1500},
			{Index: 3, Name: "cni0", Kind: "bridge", MTU: 1450},
			{Index: 4, Name: "veth1", Kind: "veth", MTU: 1450, Master: 3},
			{Index: 5, Name: "veth2", Kind: "veth", MTU: 1350, Master: 3},
			{Index: 6, Name: "docker0", Kind: "bridge", MTU: 1500},
			{Index: 7, Name: "veth3", Kind: "veth", MTU: 1500, Master: 6},
			{Index: 8, Name: "pods", Kind: "bridge", MTU: 1450},
			{Index: 9, Name: "veth4", Kind: "veth", MTU: 1450, Master: 8},
			{Index: 10, Name: "veth5", Kind: "veth", MTU: 1450}, // point-to-point
			{Index: 11, Name: "veth6", Kind: "veth", MTU: 1500}, // somebody else's
		},
		Addrs: []kernel.HostAddr{
			{Index: 6, Prefix: netip.MustParsePrefix("172.17.0.1/16")}, {Index: 8, Prefix: netip.MustParsePrefix("10.244.1.1/24")},
			{Index: 10, Prefix: netip.MustParsePrefix("10.244.1.1/32")},
		},
	}
	var names []string
	for _, l := range WiderPods(1350, own, host) {
		names = append(names, l.Name)
	}
	if diff := cmp.Diff([]string{"veth1", "veth4", "veth5"}, names); diff != "" {
		t.Error(diff)
	}
	if wide := WiderPods(1450, own, host); len(wide) > 0 {
		t.Errorf("at 1450: %v", wide)
	}
}

func TestV06AWayThatIsNarrowerThanTheOverlaysPacketsIsNamedWithTheCure(t *testing.T) {
	var peers []subnet.Peer
	paths := map[netip.Addr]int{}
	for i := range 8 {
		p := subnet.Peer{Name: fmt.Sprintf("n%d", i)}
		p.Endpoints[subnet.IPv4].PublicIP = netip.AddrFrom4([4]byte{192, 0, 2, byte(i)})
		peers = append(peers, p)
		if i > 0 {
			paths[p.Endpoints[subnet.IPv4].PublicIP] = 1400 + 20*i // from 1500 on they are wide enough
		}
	}
	got := NarrowPaths(subnet.IPv4, 1500, peers, paths)
	var names []string
	for _, n := range got {
		names = append(names, n.String())
	}
	want := []string{"n1 (192.0.2.1): 1420", "n2 (192.0.2.2): 1440", "n3 (192.0.2.3): 1460", "n4 (192.0.2.4): 1480"}
	if diff := cmp.Diff(want, names); diff != "" {
		t.Error(diff)
	}
	text := ExplainNarrow(1500, got)
	for _, part := range []string{"up to 1500 bytes", "n4 (192.0.2.4): 1480", `"MTU": 1420`} {
		if !strings.Contains(text, part) {
			t.Errorf("%q is not in %q", part, text)
		}
	}
	if text := ExplainNarrow(1500, append(got, got...)); !strings.Contains(text, "and 3 more") {
		t.Errorf("many: %q", text)
	}
	if text := ExplainNarrow(1500, nil); text != "" {
		t.Errorf("none: %q", text)
	}
}
