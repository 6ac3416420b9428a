package daemon

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
)

func TestS02PodsThatWereMadeWithoutAFamilyAreNamedWithTheCure(t *testing.T) {
	dir, b := t.TempDir(), newBoard(quiet())
	m := newMetrics(Version{}, b)
	p := newPodFamilies(dir, b, m)
	result := func(i int, addrs ...string) {
		t.Helper()
		text := fmt.Sprintf(`{"cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","web-%d"]],
			"result":{"interfaces":[{"name":"cni0"},{"name":"veth%d"},{"name":"eth0","sandbox":"/run/netns/x"}],"ips":[`, i, i)
		for _, a := range addrs {
			text += fmt.Sprintf(`{"address":%q,"interface":2},`, a)
		}
		text = strings.TrimSuffix(text, ",") + `]}}`
		if err := os.WriteFile(filepath.Join(dir, fmt.Sprintf("cbr0-c%d-eth0", i)), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
	}
	host := kernel.Host{}
	add := func(i int) {
		host.Links = append(host.Links, kernel.HostLink{Index: 50 + i, Name: fmt.Sprintf("veth%d", i), Kind: "veth"})
	}
	for i, addrs := range [][]string{
		{"10.244.1.2/24"}, {"fd00:10:244:1::2/64"}, {"10.244.1.3/24", "fd00:10:244:1::3/64"}, {"192.168.7.7/24"}, {"junk"}, {},
		{"10.244.1.9/24"}, // of a pod that a reboot ended
	} {
		result(i, addrs...)
		if i < 6 {
			add(i)
		}
	}
	both := [2]mesh.End{
		{PodCIDR: netip.MustParsePrefix("10.244.1.0/24"), Local: netip.MustParseAddr("192.168.50.1")},
		{PodCIDR: netip.MustParsePrefix("fd00:10:244:1::/64"), Local: netip.MustParseAddr("fd00:50::1")},
	}
	one := both
	one[subnet.IPv6] = mesh.End{}
	want := func(when string, n float64, text string) {
		t.Helper()
		notes := strings.Join(b.verdict().Notes, "\n")
		if !strings.HasSuffix(notes, text) || (text == "") != (notes == "") || gauge(t, m, "weft_pods_without_family") != n {
			t.Errorf("%s: %q, want ...%q; %v pods, want %v", when, notes, text, gauge(t, m, "weft_pods_without_family"), n)
		}
	}
	p.look(&applied{Net: mesh.Config{Ends: one}}, host)
	want("one family", 0, "")
	p.look(&applied{Net: mesh.Config{Ends: both}}, host)
	want("both", 2, "while this node had no IPv4 or IPv6, and stay without it: delete them, so that they are made anew: shop/web-0, shop/web-1")
	event := p.told()
	text, err := os.ReadFile(filepath.Join(dir, "cbr0-c0-eth0"))
	if err == nil {
		err = os.WriteFile(filepath.Join(dir, "cbr0-c0-net1"), text, 0o600)
	}
	if err != nil {
		t.Fatal(err)
	}
	if err := os.Remove(filepath.Join(dir, "cbr0-c1-eth0")); err != nil {
		t.Fatal(err)
	}
	result(8, "10.244.1.4/24", "fd00:10:244:1::4/64")
	add(8)
	p.look(&applied{Net: mesh.Config{Ends: both}}, host)
	want("one was made anew", 1, "no IPv6, and stay without it: delete them, so that they are made anew: shop/web-0")
	if event == "" || p.told() != event {
		t.Error("the cluster is told of each pod that is made anew")
	}
	p.look(&applied{Net: mesh.Config{Ends: both}}, kernel.Host{})
	want("all are gone", 0, "")
	if p.told() != "" {
		t.Error("the Event stays")
	}
}
