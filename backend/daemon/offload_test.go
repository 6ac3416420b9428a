package daemon

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/subnet"
)

func TestV08ChecksumsAreLeftToTheCardUnlessItIsKnownToGetThemWrong(t *testing.T) {
	own, public := netip.MustParseAddr("10.0.0.1"), netip.MustParseAddr("203.0.113.7")
	for name, tc := range map[string]struct {
		choice    subnet.Offload
		driver    string
		announced netip.Addr
		soft      bool
		why       string
	}{
		"an ordinary card":         {subnet.OffloadAuto, "virtio_net", own, false, ""},
		"VMware's":                 {subnet.OffloadAuto, "vmxnet3", own, true, "eth0 is vmxnet3"},
		"behind a NAT":             {subnet.OffloadAuto, "virtio_net", public, true, "NAT"},
		"VMware's, trusted":        {subnet.OffloadOn, "vmxnet3", public, false, ""},
		"an ordinary one, by hand": {subnet.OffloadOff, "virtio_net", own, true, "net-conf.json"},
	} {
		under := [2]underlay.Underlay{{Link: "eth0", Index: 2, Addr: own, Public: own, Announced: tc.announced}}
		host := kernel.Host{Links: []kernel.HostLink{{Index: 1, Name: "lo"}, {Index: 2, Name: "eth0", Driver: tc.driver}}}
		if soft, why := softChecksum(tc.choice, under, host); soft != tc.soft || !strings.Contains(why, tc.why) {
			t.Errorf("%s: %v, %q", name, soft, why)
		}
	}
}
