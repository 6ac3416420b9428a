package daemon

import (
	"net/netip"
	"testing"

	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/backend/traffic"
	"github.com/weft-cni/weft/subnet"
)

func TestABackendIsAnnouncedWhenWhatPeersSendByItIsLetIn(t *testing.T) {
	a := &applied{Plan: mesh.Result{Devices: []string{"flannel.1"}, Plain: []string{"eth0"}}}
	a.Net.Ends[subnet.IPv4].ParentName = "eth0"
	var h hearing
	if !h.lags(a) {
		t.Error("rp_filter has not been seen to")
	}
	h.seenTo(&applied{Plan: mesh.Result{Devices: []string{"flannel.1"}}})
	if !h.lags(a) {
		t.Error("rp_filter of eth0 has not been seen to")
	}
	h.seenTo(a)
	if !h.lags(a) {
		t.Error("the rules of an earlier run are in force")
	}
	h.sealed.Store(&traffic.Sealed{})
	if h.lags(a) {
		t.Error("nothing is in the way")
	}
	h.sealed.Store(&traffic.Sealed{Devices: []string{"flannel-wg"}, Ranges: [2][]netip.Prefix{{netip.MustParsePrefix("10.244.2.0/24")}}})
	if !h.lags(a) {
		t.Error("the rules still want it encrypted")
	}
	a.Plan.Encrypted[subnet.IPv4] = []netip.Prefix{netip.MustParsePrefix("10.244.2.0/24")}
	if !h.lags(a) {
		t.Error("the rules do not know of the device for the way back to VXLAN")
	}
	h.sealed.Load().Devices = append(h.sealed.Load().Devices, "flannel.1")
	if h.lags(a) {
		t.Error("what is encrypted as planned is in nobody's way")
	}
}
