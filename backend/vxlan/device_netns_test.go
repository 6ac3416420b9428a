package vxlan_test

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/vxlan"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// heals meddles with a kept node and waits until its kernel is as planned again and its pod reaches all others.
func (c *cluster) heals(h *host, within time.Duration, meddle func()) {
	c.t.Helper()
	meddle()
	took := nstest.Eventually(c.t, within, h.inSync)
	c.reach(h, within)
	c.t.Logf("in sync after %v", took)
}

func TestWhatOthersChangeOnTheDeviceIsPutBack(t *testing.T) {
	c := newCluster(t, 3, dual)
	a := c.nodes[0]
	c.reachAll(5 * time.Second)
	a.keep()
	for _, test := range []struct {
		name     string
		commands []string
	}{
		{"V-01_another_MAC", []string{"ip link set flannel.1 address 0a:00:00:00:99:99", "ip link set flannel-v6.1 address 0a:00:00:00:99:98"}},
		{"V-01_another_MAC_an_hour_later", []string{"ip link set flannel.1 address 0a:00:00:00:99:97"}},
		{"V-02_device_deleted", []string{"ip link del flannel.1"}},
		{"S-07_IPv6_device_deleted", []string{"ip link del flannel-v6.1"}},
		{"V-04_device_down", []string{"ip link set flannel.1 down"}},
		{"S-07_IPv6_device_down", []string{"ip link set flannel-v6.1 down"}},
		{"V-04_device_down_and_up", []string{"ip link set flannel.1 down", "ip link set flannel.1 up"}},
		{"V-04_underlay_down_and_up", []string{"ip link set eth0 down", "ip link set eth0 up", "ip addr replace fd00:50::1/64 dev eth0 nodad"}},
		{"V-04_all_routes_flushed", []string{"ip route flush dev flannel.1", "ip -6 route flush dev flannel-v6.1 proto 87"}},
		{"P-09_forwarding_entry_removed", []string{"bridge fdb del 0a:00:00:00:00:02 dev flannel.1 self"}},
		{"P-09_forwarding_entry_moved", []string{"bridge fdb replace 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.99 self"}},
		{"P-09_neighbours_flushed", []string{"ip neigh flush dev flannel.1 nud permanent", "ip -6 neigh flush dev flannel-v6.1 nud permanent"}},
		{"S-09_neighbour_no_longer_permanent", []string{"ip neigh change 10.244.2.0 lladdr 0a:00:00:00:00:44 dev flannel.1 nud reachable"}},
		{"address_removed", []string{"ip addr flush dev flannel.1 scope global", "ip -6 addr flush dev flannel-v6.1 scope global"}},
		{"MTU_changed", []string{"ip link set flannel.1 mtu 1300"}},
		{"learning_turned_on", []string{"ip link set flannel.1 type vxlan learning"}},
		{"route_taken", []string{"ip route replace 10.244.2.0/24 via 10.244.2.9 dev flannel.1 onlink"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.t, a.t = t, t
			c.heals(a, 5*time.Second, func() {
				for _, command := range test.commands {
					a.Run(strings.Fields(command)...)
				}
			})
		})
	}
}

func TestAForeignDeviceUnderOurNameMakesRoom(t *testing.T) {
	for name, command := range map[string]string{
		"a_bridge": "link add flannel.1 type bridge",
		"flags_that_ours_never_have": "link add flannel.1 up type vxlan id 1 dev eth0 local 192.168.50.1 dstport 4789 " +
			"l2miss l3miss proxy rsc",
		"a_multicast_group": "link add flannel.1 up type vxlan id 1 dev eth0 local 192.168.50.1 dstport 4789 group 239.1.1.1",
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2, v4)
			a := c.nodes[0]
			a.IP("link del flannel.1")
			a.IP(command)
			a.sync()
			c.reachAll(5 * time.Second)
		})
	}
}

func TestV02ADeletedDeviceComesBackWithAllPeersTwentyTimesInARow(t *testing.T) {
	for name, fam := range map[string]families{"IPv4": v4, "IPv6": v6, "dual": dual} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, fam)
			c.reachAll(5 * time.Second)
			a := c.nodes[0]
			a.keep()
			for range 20 {
				for _, f := range subnet.Families() {
					if !a.cfg.VTEPs[f].IsZero() {
						_, _ = a.Try("ip", "link", "del", a.cfg.Device(f)) // it may be just away
					}
				}
			}
			c.heals(a, 5*time.Second, func() {})
		})
	}
}

func TestV02AndV03TheUnderlayDeviceIsMadeAnew(t *testing.T) {
	c := newCluster(t, 3, v4)
	a := c.nodes[0]
	c.reachAll(5 * time.Second)
	a.IP("link del eth0")
	if have, err := a.conn.Dump(t.Context()); err != nil || len(have.Links) != 0 {
		t.Fatalf("the device outlives its underlay: %v\n%s", err, have)
	}
	if _, err := a.round(); !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), "the underlay device with index") {
		t.Errorf("without underlay: %v", err)
	}
	c.fabric.Attach(a.NS, "eth0", "again")
	a.cfg.VTEPs[0].Parent = a.index("eth0") // what the daemon finds out by its own watch
	a.sync()                                // the NIC has no address yet, which is no reason not to be ready for it
	a.IP("addr add 192.168.50.1/24 dev eth0")
	c.reachAll(5 * time.Second)
}

func TestV06TheDeviceFollowsTheUnderlaysMTU(t *testing.T) {
	c := newCluster(t, 2, v4)
	a := c.nodes[0]
	before := a.index("flannel.1")
	for _, mtu := range []int{1400, 1500, 9000, 1500} {
		a.IP(fmt.Sprintf("link set eth0 mtu %d", mtu))
		a.cfg.VTEPs[0].UnderlayMTU = mtu
		a.sync()
		if !strings.Contains(a.IP("link show flannel.1"), fmt.Sprintf("mtu %d ", mtu-50)) || a.index("flannel.1") != before {
			t.Errorf("underlay %d: %s", mtu, a.IP("link show flannel.1"))
		}
	}
	c.reachAll(5 * time.Second)
}

func TestV08ChecksumsInSoftwareSurviveAReplacementAndReachAllPeers(t *testing.T) {
	c := newCluster(t, 2, v4)
	a := c.nodes[0]
	feature := func() string {
		t.Helper()
		for line := range strings.Lines(a.Run("ethtool", "-k", "flannel.1")) {
			if name, value, _ := strings.Cut(strings.TrimSpace(line), ": "); name == "tx-checksum-ip-generic" {
				return value
			}
		}
		return ""
	}
	if feature() != "on" {
		t.Errorf("without the option the feature is %q", feature())
	}
	a.cfg.SoftChecksum = true
	before := a.index("flannel.1")
	a.sync()
	if feature() != "off" || a.index("flannel.1") != before {
		t.Errorf("with the option the feature is %q on device %d, before %d", feature(), a.index("flannel.1"), before)
	}
	a.IP("link del flannel.1")
	a.sync()
	if feature() != "off" {
		t.Errorf("after a replacement the feature is %q", feature())
	}
	a.Run("ethtool", "-K", "flannel.1", "tx-checksum-ip-generic", "on")
	a.sync()
	if feature() != "off" {
		t.Errorf("after somebody switched it on the feature is %q", feature())
	}
	c.reachAll(5 * time.Second)
}

func TestV09AnotherDeviceOnThePortIsNamedAndNothingHalfMadeRemains(t *testing.T) {
	for name, other := range map[string]string{
		"another_mode": "link add cilium_vxlan up type vxlan external dstport 4789",
		"our_VNI":      "link add calico type vxlan id 1 dev eth0 local 192.168.50.1 dstport 4789",
	} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 2, v4)
			a := c.nodes[0]
			a.IP("link del flannel.1")
			a.IP(other)
			device := strings.Fields(other)[2]
			_, err := a.round()
			if !errors.Is(err, kernel.ErrPortTaken) || !strings.Contains(err.Error(), "device "+device+" (VNI ") {
				t.Errorf("got %v", err)
			}
			if out, err := a.Try("ip", "link", "show", "flannel.1"); err == nil {
				t.Errorf("half-made: %s", out)
			}
			a.IP("link del " + device)
			a.sync()
			c.reachAll(5 * time.Second)
		})
	}
	t.Run("a_plain_socket", func(t *testing.T) {
		c := newCluster(t, 2, v4)
		a := c.nodes[0]
		a.IP("link del flannel.1")
		a.UDPEcho(netip.MustParseAddrPort("0.0.0.0:4789"))
		if _, err := a.round(); !errors.Is(err, kernel.ErrPortTaken) || !strings.Contains(err.Error(), "ss -ulpn 'sport = :4789'") {
			t.Errorf("got %v", err)
		}
	})
}

func TestV12EveryIncompatibleChangeReplacesTheDeviceWithItsPeersAndTheOthersKeepIt(t *testing.T) {
	c := newCluster(t, 2, v4)
	a := c.nodes[0]
	nstest.Veth(t, a.NS, "eth1", nstest.New(t), "x")
	a.IP("addr add 192.168.51.1/24 dev eth1")
	for _, test := range []struct {
		name   string
		kept   bool
		change func(cfg *vxlan.Config)
	}{
		{"MTU", true, func(cfg *vxlan.Config) { cfg.MTU = 1400 }},
		{"MAC", true, func(cfg *vxlan.Config) { cfg.VTEPs[0].MAC[4] = 7 }},
		{"Learning", true, func(cfg *vxlan.Config) { cfg.Learning = true }},
		{"pod CIDR", true, func(cfg *vxlan.Config) { cfg.VTEPs[0].PodCIDR = netip.MustParsePrefix("10.244.9.0/24") }},
		{"Port", false, func(cfg *vxlan.Config) { cfg.Port = 4790 }}, // V-10
		{"GBP", false, func(cfg *vxlan.Config) { cfg.GBP = true }},
		{"local address", false, func(cfg *vxlan.Config) { cfg.VTEPs[0].Local = netip.MustParseAddr("192.168.51.1") }},
		{"underlay device", false, func(cfg *vxlan.Config) { cfg.VTEPs[0].Parent = a.index("eth1") }},
	} {
		saved := a.cfg
		a.sync()
		before := a.index("flannel.1")
		test.change(&a.cfg)
		a.sync()
		if after := a.index("flannel.1"); (after == before) != test.kept {
			t.Errorf("%s: device %d became %d", test.name, before, after)
		}
		if routes := a.IP("route show dev flannel.1"); !strings.Contains(routes, "10.244.2.0/24") {
			t.Errorf("%s: the peer is lost: %s", test.name, routes)
		}
		a.cfg = saved
		a.sync()
	}
	c.reachAll(5 * time.Second)
}

func TestANewVNILeavesNothingOfTheOldDevice(t *testing.T) { // 12.A.9
	c := newCluster(t, 2, dual)
	for _, h := range c.nodes {
		h.cfg.VNI = 7
		h.sync()
	}
	c.reachAll(5 * time.Second)
	if out := c.nodes[0].IP("-br link"); strings.Contains(out, "flannel.1 ") || !strings.Contains(out, "flannel.7 ") {
		t.Errorf("devices:\n%s", out)
	}
}

func TestI03ANATedPublicIPIsAnnouncedAndNeverTheTunnelsSource(t *testing.T) {
	c := newCluster(t, 2, v4)
	a, b := c.nodes[0], c.nodes[1]
	// 203.0.113.7 is what the world sees of node 2: translated on the way, here on node 1's side of the wire
	a.IP("route add 203.0.113.7/32 via 192.168.50.2")
	b.SetNFT(`table ip nat { chain prerouting { type nat hook prerouting priority dstnat
		ip daddr 203.0.113.7 dnat to 192.168.50.2
	}
	}`)
	a.know(changed(b.announced(), 0, func(e *subnet.Endpoint) { e.PublicIP = netip.MustParseAddr("203.0.113.7") }))
	a.sync()
	wire := a.Capture("eth0")
	c.reach(a, 5*time.Second)
	wire.Wait(t, time.Second, func(f []byte) bool {
		dst, _, _, _, ok := nstest.VXLAN(f)
		return ok && dst == [4]byte{203, 0, 113, 7}
	})
	if got := b.IP("-d link show flannel.1"); !strings.Contains(got, "local 192.168.50.2 ") {
		t.Errorf("tunnel source: %s", got)
	}
}

func TestI07TheUnderlayAddressChangesWhileRunning(t *testing.T) {
	c := newCluster(t, 3, v4)
	c.reachAll(5 * time.Second)
	a := c.nodes[0]
	a.IP("addr del 192.168.50.1/24 dev eth0")
	a.IP("addr add 192.168.50.31/24 dev eth0")
	a.cfg.VTEPs[0].Local = netip.MustParseAddr("192.168.50.31")
	start := time.Now()
	a.sync()
	for _, h := range c.nodes[1:] {
		h.know(changed(a.announced(), 0, func(e *subnet.Endpoint) { e.PublicIP = a.cfg.VTEPs[0].Local }))
		h.sync()
		if fdb := h.Bridge("fdb show dev flannel.1"); strings.Contains(fdb, "192.168.50.1 ") || !strings.Contains(fdb, "192.168.50.31 ") {
			t.Errorf("node %d: %s", h.i, fdb)
		}
	}
	c.reachAll(10*time.Second - time.Since(start))
}

func TestI13ALocalNetworkInTheWayIsNamedAndTheOtherPeersWork(t *testing.T) {
	c := newCluster(t, 3, v4)
	a := c.nodes[0]
	a.IP("route flush dev flannel.1")
	a.IP("link add docker0 type bridge")
	a.IP("link set docker0 up")
	a.IP("addr add 10.244.2.1/24 dev docker0")
	before := a.IP("route show dev docker0")
	_, err := a.round()
	if !errors.Is(err, kernel.ErrForeignRoute) || !strings.Contains(err.Error(), "interface docker0 has the route to 10.244.2.0/24") {
		t.Errorf("got %v", err)
	}
	if after := a.IP("route show dev docker0"); after != before {
		t.Errorf("somebody else's route was changed: %s", after)
	}
	third := c.nodes[2].podAddrs()[0].Addr()
	nstest.Eventually(t, 5*time.Second, func() error { return a.pod.CanPing(third) })
	a.IP("link del docker0")
	a.sync()
	c.reach(a, 5*time.Second)
}

func TestI13ALocalNetworkThatComesLaterIsNamedToo(t *testing.T) {
	c := newCluster(t, 2, v4)
	a := c.nodes[0]
	a.IP("link add docker0 type bridge")
	a.IP("link set docker0 up")
	a.IP("addr add 10.244.2.1/24 dev docker0") // the kernel puts the bridge's route behind ours
	if _, err := a.round(); !errors.Is(err, kernel.ErrForeignRoute) || !strings.Contains(err.Error(), "interface docker0") {
		t.Errorf("got %v", err)
	}
	c.reach(a, 5*time.Second)
}

func TestGuestsOnTheDeviceStayAndOldAddressesOfOursGo(t *testing.T) { // contract 6.1
	c := newCluster(t, 2, v4)
	a := c.nodes[0]
	a.IP("addr add 172.16.9.9/32 dev flannel.1")
	a.IP("addr add 10.244.77.0/32 dev flannel.1")
	a.sync()
	if out := a.IP("addr show flannel.1"); !strings.Contains(out, "172.16.9.9/32") || strings.Contains(out, "10.244.77.0") {
		t.Errorf("addresses: %s", out)
	}
}
