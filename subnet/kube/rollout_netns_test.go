package kube_test

import (
	"fmt"
	"net/netip"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/nstest"
)

// testRollOut has a node go from backend to backend; another one reads each step as it was meant.
func testRollOut(w *world) {
	w.node("n1", "10.244.1.0/24", nil)
	w.node("n2", "10.244.2.0/24", annotations(ip2, mac2))
	peer := w.source("n2")
	vxlan := announcement(ip1, mac1)
	key := subnet.Key{1, 2, 3}
	steps := []struct {
		say  kube.Announcement
		also string
	}{
		{vxlan, ""},
		{kube.Announcement{BackendType: subnet.WireGuard, Also: subnet.KindsOf(subnet.VXLAN), VNI: 1, Port: 4789, MAC: vxlan.MAC, Key: key, WGPorts: [2]uint16{51820}},
			`[{"Type":"vxlan","Data":{"VNI":1,"VtepMAC":"` + mac1 + `"},"Port":4789}]`},
		{kube.Announcement{BackendType: subnet.WireGuard, Key: key, WGPorts: [2]uint16{51820}}, ""},
		{kube.Announcement{BackendType: subnet.HostGW, Also: subnet.KindsOf(subnet.WireGuard, subnet.IPIP), Key: key, WGPorts: [2]uint16{51820}},
			`[{"Type":"wireguard","Data":{"PublicKey":"` + key.String() + `","Port":51820}},{"Type":"ipip"}]`},
		{kube.Announcement{BackendType: subnet.Alloc}, ""},
		{vxlan, ""},
	}
	a := w.start("n1", vxlan)
	for i, s := range steps {
		say := s.say
		say.PublicIP, say.Ready = vxlan.PublicIP, true
		a.announce <- say
		want := subnet.Peer{Name: "n1", BackendType: say.BackendType, Also: say.Also, VNI: say.VNI, Port: say.Port, Key: say.Key, WGPorts: say.WGPorts}
		want.Endpoints[subnet.IPv4] = subnet.Endpoint{PodCIDR: netip.MustParsePrefix("10.244.1.0/24"), PublicIP: say.PublicIP[subnet.IPv4], MAC: say.MAC[subnet.IPv4]}
		took := nstest.Eventually(w, 10*time.Second, func() error {
			snap, _ := peer.Snapshot()
			if len(snap.Peers) != 1 {
				return fmt.Errorf("peers %+v, problems %v", snap.Peers, snap.Problems)
			}
			got := snap.Peers[0]
			got.UID, got.Created = "", time.Time{}
			if got != want || len(snap.Problems) > 0 {
				return fmt.Errorf("got  %+v\nwant %+v, problems %v", got, want, snap.Problems)
			}
			return nil
		})
		w.Logf("step %d, %s also %s: seen after %v", i, say.BackendType, say.Also, took)
		notes := w.get("n1").Annotations
		also, there := notes[string(flannelPrefix)+"backend-also"]
		kind, typed := notes[string(flannelPrefix)+"backend-type"]
		if also != s.also || there != (s.also != "") || !typed || (kind == "") != (say.BackendType == subnet.Alloc) {
			w.Errorf("step %d: the Node has %v", i, notes)
		}
		nstest.Eventually(w, 10*time.Second, func() error {
			if self, _ := a.source.Snapshot(); self.Self.BackendType != say.BackendType || self.Self.Also != say.Also {
				return fmt.Errorf("the node reads back %q and %s of itself", self.Self.BackendType, self.Self.Also)
			}
			return nil
		})
	}
}
