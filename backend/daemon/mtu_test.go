package daemon

import (
	"context"
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
)

// gauge reads what /metrics shows under a name.
func gauge(t *testing.T, m *metrics, name string) float64 {
	t.Helper()
	families, err := m.registry.Gather()
	if err != nil {
		t.Fatal(err)
	}
	for _, f := range families {
		if f.GetName() == name {
			return f.GetMetric()[0].GetGauge().GetValue()
		}
	}
	t.Fatalf("no metric %s", name)
	return 0
}

const (
	wideGauge   = "weft_pods_mtu_too_large"
	narrowGauge = "weft_peers_path_mtu_too_small"
)

func TestV06ASmallerUnderlayMakesTheDeviceFollowAndNamesThePodsThatDoNot(t *testing.T) {
	g := newGround(t, plainConf)
	b := newBoard(quiet())
	dir := t.TempDir()
	g.pods = newPodMTU(dir, b, g.metrics)
	result := `{"kind":"cniCacheV1","containerId":"c1","ifName":"eth0","cniArgs":[["K8S_POD_NAMESPACE","shop"],["K8S_POD_NAME","web-0"]],
		"result":{"interfaces":[{"name":"cni0"},{"name":"veth1"},{"name":"eth0","sandbox":"/run/netns/x"}]}}`
	if err := errors.Join(os.WriteFile(filepath.Join(dir, "cbr0-c1-eth0"), []byte(result), 0o600), os.WriteFile(filepath.Join(dir, "junk"), []byte("{"), 0o600)); err != nil {
		t.Fatal(err)
	}
	g.fake.EditHost(func(h *kernel.Host) {
		h.Links = append(h.Links,
			kernel.HostLink{Index: 50, Name: "cni0", Kind: "bridge", MTU: 1450, Up: true},
			kernel.HostLink{Index: 51, Name: "veth1", Kind: "veth", MTU: 1450, Up: true, Master: 50},
			kernel.HostLink{Index: 52, Name: "veth2", Kind: "veth", MTU: 1450, Up: true, Master: 50})
	})
	g.mustSync(t)
	if v := b.verdict(); len(v.Notes) > 0 {
		t.Errorf("nothing is wrong, yet %v", v.Notes)
	}
	eth0 := func(mtu int) {
		g.fake.EditHost(func(h *kernel.Host) {
			for i := range h.Links {
				if h.Links[i].Name == "eth0" {
					h.Links[i].MTU = mtu
				}
			}
		})
		g.mustSync(t)
	}
	eth0(1400)
	if got := g.applied.Load().Plan.PodMTU; got != 1350 {
		t.Errorf("pods that are made now get %d, want 1350", got)
	}
	v := b.verdict()
	if !v.Ready || len(v.Notes) != 1 || !strings.Contains(v.Notes[0], "shop/web-0 (1450), the pod on veth2 (1450)") || gauge(t, g.metrics, wideGauge) != 2 {
		t.Errorf("ready %v, notes %q, %v pods", v.Ready, v.Notes, gauge(t, g.metrics, wideGauge))
	}
	eth0(9000)
	if v := b.verdict(); len(v.Notes) > 0 || gauge(t, g.metrics, wideGauge) != 0 || g.applied.Load().Plan.PodMTU != 8950 {
		t.Errorf("notes %q, MTU %d", v.Notes, g.applied.Load().Plan.PodMTU)
	}
}

func TestAnUnderlayWithoutCarrierIsSaidAndKeepsNothingFromBeingMade(t *testing.T) {
	g := newGround(t, plainConf)
	g.fake.EditHost(func(h *kernel.Host) {
		for i := range h.Links {
			h.Links[i].Carrier = false
		}
	})
	g.mustSync(t)
	if g.carrier == nil || !strings.Contains(g.carrier.Error(), "eth0 has no carrier") || len(g.routes(t)) != 1 {
		t.Errorf("carrier: %v; routes %v", g.carrier, g.routes(t))
	}
}

// ways answers for a kernel that knows of narrow ones.
type ways map[netip.Addr]int

func (w ways) PathMTU(context.Context, []netip.Addr) (map[netip.Addr]int, error) { return w, nil }

func TestV06ANarrowWayIsANoteAndAMetric(t *testing.T) {
	b := newBoard(quiet())
	m := newMetrics(Version{}, b)
	w := newWayMTU(b, m)
	a := planned(t)
	if err := w.look(t.Context(), a, ways{netip.MustParseAddr("192.168.50.2"): 1400}); err != nil {
		t.Fatal(err)
	}
	if v := b.verdict(); len(v.Notes) != 1 || !strings.Contains(v.Notes[0], "b (192.168.50.2): 1400") || gauge(t, m, narrowGauge) != 1 {
		t.Errorf("notes %q", v.Notes)
	}
	if err := w.look(t.Context(), a, ways{}); err != nil || len(b.verdict().Notes) > 0 || gauge(t, m, narrowGauge) != 0 {
		t.Errorf("%v, notes %q", err, b.verdict().Notes)
	}
}
