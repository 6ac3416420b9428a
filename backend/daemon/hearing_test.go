package daemon

import (
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

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

// A busy machine takes seconds to write rules. Who is told meanwhile that it is heard sends into the old ones.
func TestAnAnnouncementWaitsForRulesAsLongAsTheyCanBeWritten(t *testing.T) {
	for name, test := range map[string]struct {
		failing bool
		written time.Duration // 0: never
		want    time.Duration
	}{
		"slow":    {written: 9 * time.Second, want: 9 * time.Second},
		"refused": {failing: true, want: hearingWait},
		"hung":    {want: hearingMost},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				var h hearing
				h.failing.Store(test.failing)
				if test.written > 0 {
					time.AfterFunc(test.written, func() { h.sealed.Store(&traffic.Sealed{}) })
				}
				began := time.Now()
				h.await(t.Context(), &applied{})
				if waited := time.Since(began); waited < test.want || waited > test.want+time.Second {
					t.Errorf("waited %v, want %v", waited, test.want)
				}
			})
		})
	}
}
