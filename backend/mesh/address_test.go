package mesh_test

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// The kernel refuses a gateway that is the host's own address or a broadcast address. Every node would be told so at every round,
// and be ready no more, by one Node that announces such a thing.
func TestAPeerAtAnAddressThatNoNodeCanHaveIsLeftOutAndNamed(t *testing.T) {
	host := lan()
	host.Links = append(host.Links, kernel.HostLink{Index: 3, Name: "eth1", Kind: "device", MTU: 1500, Up: true, Carrier: true})
	for index, text := range map[int]string{2: "192.168.50.1/24 fd00:50::1/64", 3: "192.168.60.1/24 fd00:60::1/64 192.168.70.7/32 192.168.80.6/31"} {
		for _, s := range strings.Fields(text) {
			host.Addrs = append(host.Addrs, kernel.HostAddr{Index: index, Prefix: netip.MustParsePrefix(s), Permanent: true})
		}
	}
	for text, want := range map[string]string{
		"192.168.50.1": "DuplicateAddress", "192.168.60.1": "DuplicateAddress", "192.168.70.7": "DuplicateAddress",
		"fd00:50::1": "DuplicateAddress", "fd00:60::1": "DuplicateAddress",
		"192.168.50.255": "BroadcastAddress", "192.168.60.255": "BroadcastAddress",
		"192.168.80.7": "", "192.168.50.2": "", "fd00:50::ff": "", // the other end of a line, and what only looks like one
	} {
		addr := netip.MustParseAddr(text)
		f := subnet.FamilyOf(addr)
		for _, kind := range []string{subnet.VXLAN, subnet.HostGW, subnet.WireGuard, subnet.IPIP} {
			in := input(only(f, config(1, kind)), changed(peer(2, kind), f, func(e *subnet.Endpoint) { e.PublicIP = addr }), peer(3, kind))
			in.Host = host
			r := plan(t, in)
			var told []string
			for _, p := range r.Problems {
				if p.Node == "n2" && p.Reason != "NotOnLink" {
					told = append(told, p.Reason)
					if !strings.Contains(p.Text, text) || !strings.Contains(p.Text, "public-ip") {
						t.Errorf("%s, %s: %s", text, kind, p.Text)
					}
				}
			}
			if got := strings.Join(told, " "); got != want {
				t.Errorf("%s, %s: told %q, want %q", text, kind, got, want)
			}
			if _, routed := r.Want.Routes[kernel.RouteKey{Dst: prefix(f, 2), Metric: kernel.RouteMetric(f)}]; want != "" && routed {
				t.Errorf("%s, %s: it is routed", text, kind)
			}
			if _, routed := r.Want.Routes[kernel.RouteKey{Dst: prefix(f, 3), Metric: kernel.RouteMetric(f)}]; !routed {
				t.Errorf("%s, %s: another peer is not", text, kind)
			}
		}
	}
}
