package kube_test

import (
	"fmt"
	"net/netip"
	"strings"
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
	wg := kube.Announcement{BackendType: subnet.WireGuard, Key: subnet.Key{1, 2, 3}}
	var vxlanData, wgData []string
	for _, f := range families() {
		wg.WGPorts[f] = [2]uint16{51820, 51821}[f]
		name := [2]string{"Data", "V6Data"}[f]
		vxlanData = append(vxlanData, fmt.Sprintf(`"%s":{"VNI":1,"VtepMAC":"%s"}`, name, mac1))
		wgData = append(wgData, fmt.Sprintf(`"%s":{"PublicKey":"%s","Port":%d}`, name, wg.Key, wg.WGPorts[f]))
	}
	mixed, back := wg, wg
	mixed.Also, mixed.VNI, mixed.Port, mixed.MAC = subnet.KindsOf(subnet.VXLAN), 1, 4789, vxlan.MAC
	back.BackendType, back.Also = subnet.HostGW, subnet.KindsOf(subnet.WireGuard, subnet.IPIP)
	steps := []struct {
		say  kube.Announcement
		also string
	}{
		{vxlan, ""},
		{mixed, `[{"Type":"vxlan",` + strings.Join(vxlanData, ",") + `,"Port":4789}]`},
		{wg, ""},
		{back, `[{"Type":"wireguard",` + strings.Join(wgData, ",") + `},{"Type":"ipip"}]`},
		{kube.Announcement{BackendType: subnet.Alloc}, ""},
		{vxlan, ""},
	}
	a := w.start("n1", vxlan)
	for i, s := range steps {
		say := s.say
		say.PublicIP, say.Ready = vxlan.PublicIP, true
		a.announce <- say
		want := subnet.Peer{Name: "n1", BackendType: say.BackendType, Also: say.Also, VNI: say.VNI, Port: say.Port, Key: say.Key, WGPorts: say.WGPorts}
		for _, f := range families() {
			want.Endpoints[f] = subnet.Endpoint{PodCIDR: netip.MustParsePrefix(in(f, "10.244.1.0/24")), PublicIP: say.PublicIP[f], MAC: say.MAC[f]}
		}
		took := nstest.Eventually(w, 20*time.Second, func() error {
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
		nstest.Eventually(w, 20*time.Second, func() error {
			if self, _ := a.source.Snapshot(); self.Self.BackendType != say.BackendType || self.Self.Also != say.Also {
				return fmt.Errorf("the node reads back %q and %s of itself", self.Self.BackendType, self.Self.Also)
			}
			return nil
		})
	}
}
