package reliability

import (
	"testing"

	"github.com/weft-cni/weft/tests/lane"
)

// groups lists all faults of the bench, in the order in which they are played.
func groups() []Group {
	return []Group{
		{Name: "agent", Faults: agentRows()},
		{Name: "underlay", Faults: underlayRows()},
		{Name: "kernel", Faults: append(kernelRows(), firewallRows()...)},
		{Name: "pods", Faults: podRows()},
		{Name: "scale", Faults: scaleRows()},
		{Name: "API server", Faults: apiRows()},
		{Name: "cluster", Faults: clusterRows()},
		{Name: "upgrade", Faults: upgradeRows()},
		{Name: "backend", Faults: rollOutRows()},
		{Name: "host-gw", Backend: HostGW, Faults: hostGWRows()},
		{Name: "one family", Lanes: []lane.Lane{lane.Dual}, Faults: oneFamilyRows()},
		{Name: "migration", Nodes: 4, Faults: migrationRows()},
	}
}

func TestFaultsLoseNothingTheyMayNotAndHeal(t *testing.T) {
	form, err := FormOf()
	if err != nil {
		t.Fatal(err)
	}
	beside(t)
	site := NewSite(t)
	for _, g := range groups() {
		if !g.in(site.Lane) {
			continue
		}
		t.Run(g.Name, func(t *testing.T) { g.Run(t, site, form) })
	}
}
