package daemon

import (
	"net/netip"
	"slices"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
)

// Two nodes do not find out in the same moment that their session is up: the one that moves first hears the other by VXLAN for a
// second more, although nothing is to come in the clear from then on.
func TestAPeerThatStillSendsByTheTunnelOfBeforeIsHeardBesidesWireGuard(t *testing.T) {
	a := &applied{Plan: mesh.Result{Want: kernel.New(), Devices: []string{"flannel-wg", "flannel.1"}}}
	a.Plan.Want.Links["flannel-wg"] = kernel.Link{Kind: kernel.KindWireGuard}
	a.Plan.Want.Links["flannel.1"] = kernel.Link{Kind: kernel.KindVXLAN, Port: 4789}
	a.Plan.Encrypted[subnet.IPv4] = []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}
	sealed := (&rules{}).config(a).Sealed
	for _, device := range a.Plan.Devices {
		if !slices.Contains(sealed.Devices, device) {
			t.Errorf("what comes by %s is dropped: %v", device, sealed)
		}
	}
	if !slices.Equal(sealed.Ranges[subnet.IPv4], a.Plan.Encrypted[subnet.IPv4]) {
		t.Errorf("%v", sealed)
	}
}
