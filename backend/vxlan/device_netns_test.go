package vxlan_test

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/backend/vxlan"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
	"github.com/weft-cni/weft/tests/terms"
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
	c := newCluster(t, 3, widest(t))
	a := c.nodes[0]
	c.reachAll(20 * time.Second)
	a.keep()
	four, six := []subnet.Family{subnet.IPv4}, []subnet.Family{subnet.IPv6}
	both := slices.Concat(four, six)
	for _, test := range []struct {
		name     string
		families []subnet.Family
		commands []string
	}{
		{"V-01_another_MAC", both, []string{"ip link set flannel.1 address 0a:00:00:00:99:99"}},
		{"V-01_another_MAC_an_hour_later", both, []string{"ip link set flannel.1 address 0a:00:00:00:99:97"}},
		{"V-02_IPv4_device_deleted", four, []string{"ip link del flannel.1"}},
		{"S-07_IPv6_device_deleted", six, []string{"ip link del flannel.1"}},
		{"S-07_IPv6_device_with_another_MAC", six, []string{"ip link set flannel.1 address 0a:00:00:00:99:96"}},
		{"V-04_IPv4_device_down", four, []string{"ip link set flannel.1 down"}},
		{"S-07_IPv6_device_down", six, []string{"ip link set flannel.1 down"}},
		{"V-04_device_down_and_up", both, []string{"ip link set flannel.1 down", "ip link set flannel.1 up"}},
		{"V-04_underlay_down_and_up", both, []string{"ip link set eth0 down", "ip link set eth0 up", "ip addr replace 192.168.50.1/24 dev eth0"}},
		{"V-04_all_routes_flushed", both, []string{"ip route flush dev flannel.1 proto 87"}},
		{"P-09_forwarding_entry_removed", both, []string{"bridge fdb del 0a:00:00:00:00:02 dev flannel.1 self"}},
		{"P-09_forwarding_entry_moved", both, []string{"bridge fdb replace 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.99 self"}},
		{"P-09_neighbours_flushed", both, []string{"ip neigh flush dev flannel.1 nud permanent"}},
		{"S-09_neighbour_removed", both, []string{"ip neigh del 10.244.2.0 dev flannel.1"}},
		{"S-09_neighbour_no_longer_permanent", both, []string{"ip neigh change 10.244.2.0 lladdr 0a:00:00:00:00:44 dev flannel.1 nud reachable"}},
		{"address_removed", both, []string{"ip addr del 10.244.1.0/32 dev flannel.1"}},
		{"V-07_MTU_changed", both, []string{"ip link set flannel.1 mtu 1300"}},
		{"V-14_learning_turned_on", both, []string{"ip link set flannel.1 type vxlan learning"}},
		{"V-01_ARP_switched_off", both, []string{"ip link set flannel.1 arp off"}},
		{"V-01_put_into_a_bridge", both, []string{"ip link add br9 type bridge", "ip link set br9 up", "ip link set flannel.1 master br9"}},
		{"route_taken", both, []string{"ip route replace 10.244.2.0/24 via 10.244.2.9 dev flannel.1 onlink"}},
	} {
		t.Run(test.name, func(t *testing.T) {
			c.t, a.t = t, t
			c.heals(a, 5*time.Second, func() {
				for _, command := range test.commands {
					a.meddle(command, test.families)
				}
			})
		})
	}
}

// meddle runs a command that speaks of IPv4 for each of some families that the node has; what is the same for all is run once.
func (h *host) meddle(command string, families []subnet.Family) {
	h.t.Helper()
	done := map[string]bool{}
	for _, f := range families {
		if text := terms.In(f, command); !h.cfg.VTEPs[f].IsZero() && !done[text] {
			h.Run(strings.Fields(text)...)
			done[text] = true
		}
	}
}

func TestAForeignDeviceUnderOurNameMakesRoom(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		for name, command := range map[string]string{
			"a_bridge": "link add flannel.1 type bridge",
			"flags_that_ours_never_have": "link add flannel.1 up type vxlan id 1 dev eth0 local 192.168.50.1 dstport 4789 " +
				"l2miss l3miss proxy rsc",
			"a_multicast_group": "link add flannel.1 up type vxlan id 1 dev eth0 local 192.168.50.1 dstport 4789 group 239.1.1.1",
		} {
			t.Run(name, func(t *testing.T) {
				c := newCluster(t, 2, f.only)
				a := c.nodes[0]
				a.IP(f.in("link del flannel.1"))
				a.IP(f.in(command))
				a.sync()
				c.reachAll(20 * time.Second)
			})
		}
	})
}

func TestV02ADeletedDeviceComesBackWithAllPeersTwentyTimesInARow(t *testing.T) {
	for name, fam := range map[string]families{"IPv4": v4, "IPv6": v6, "dual": dual} {
		t.Run(name, func(t *testing.T) {
			c := newCluster(t, 3, fam)
			c.reachAll(20 * time.Second)
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
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 3, f.only)
		a := c.nodes[0]
		c.reachAll(20 * time.Second)
		a.IP(f.in("link del eth0"))
		if have, err := a.conn.Dump(t.Context()); err != nil || len(have.Links) != 0 {
			t.Fatalf("the device outlives its underlay: %v\n%s", err, have)
		}
		if _, err := a.round(); !errors.Is(err, unix.ENODEV) || !strings.Contains(err.Error(), f.in("the underlay device with index")) {
			t.Errorf("without underlay: %v", err)
		}
		c.fabric.Attach(a.NS, "eth0", "again")
		a.cfg.VTEPs[f.Family].Parent = a.index("eth0") // what the daemon finds out by its own watch
		a.sync()                                       // the NIC has no address yet, which is no reason not to be ready for it
		a.IP(f.in("addr add 192.168.50.1/24 dev eth0"))
		c.reachAll(20 * time.Second)
	})
}

func TestV06TheDeviceFollowsTheUnderlaysMTU(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a := c.nodes[0]
		before := a.index(f.in("flannel.1"))
		for _, mtu := range []int{1400, 1500, 9000, 1500} {
			a.IP(f.in(fmt.Sprintf("link set eth0 mtu %d", mtu)))
			a.cfg.VTEPs[f.Family].UnderlayMTU = mtu
			a.sync()
			if !strings.Contains(a.IP(f.in("link show flannel.1")), fmt.Sprintf("mtu %d ", mtu-f.overhead())) || a.index(f.in("flannel.1")) != before {
				t.Errorf("underlay %d: %s", mtu, a.IP(f.in("link show flannel.1")))
			}
		}
		c.reachAll(20 * time.Second)
	})
}

func TestV08ChecksumsInSoftwareSurviveAReplacementAndReachAllPeers(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a := c.nodes[0]
		feature := func() string {
			t.Helper()
			for line := range strings.Lines(a.Run("ethtool", "-k", f.in("flannel.1"))) {
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
		before := a.index(f.in("flannel.1"))
		a.sync()
		if feature() != "off" || a.index(f.in("flannel.1")) != before {
			t.Errorf("with the option the feature is %q on device %d, before %d", feature(), a.index(f.in("flannel.1")), before)
		}
		a.IP(f.in("link del flannel.1"))
		a.sync()
		if feature() != "off" {
			t.Errorf("after a replacement the feature is %q", feature())
		}
		a.Run(strings.Fields(f.in("ethtool -K flannel.1 tx-checksum-ip-generic on"))...)
		a.sync()
		if feature() != "off" {
			t.Errorf("after somebody switched it on the feature is %q", feature())
		}
		c.reachAll(20 * time.Second)
	})
}

func TestV09AnotherDeviceOnThePortIsNamedAndNothingHalfMadeRemains(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		for name, other := range map[string]string{
			"another_mode": "link add cilium_vxlan up type vxlan external dstport 4789",
			"our_VNI":      "link add calico type vxlan id 1 dev eth0 local 192.168.50.1 dstport 4789",
		} {
			t.Run(name, func(t *testing.T) {
				c := newCluster(t, 2, f.only)
				a := c.nodes[0]
				a.IP(f.in("link del flannel.1"))
				a.IP(f.in(other))
				device := strings.Fields(other)[2]
				_, err := a.round()
				if !errors.Is(err, kernel.ErrPortTaken) || !strings.Contains(err.Error(), "device "+device+" (VNI ") {
					t.Errorf("got %v", err)
				}
				if out, err := a.Try("ip", "link", "show", f.in("flannel.1")); err == nil {
					t.Errorf("half-made: %s", out)
				}
				a.IP("link del " + device)
				a.sync()
				c.reachAll(20 * time.Second)
			})
		}
		t.Run("a_plain_socket", func(t *testing.T) {
			c := newCluster(t, 2, f.only)
			a := c.nodes[0]
			a.IP(f.in("link del flannel.1"))
			a.UDPEcho(netip.AddrPortFrom(f.addr("0.0.0.0"), 4789))
			if _, err := a.round(); !errors.Is(err, kernel.ErrPortTaken) || !strings.Contains(err.Error(), f.in("ss -ulpn 'sport = :4789'")) {
				t.Errorf("got %v", err)
			}
		})
	})
}

func TestV12EveryIncompatibleChangeReplacesTheDeviceWithItsPeersAndTheOthersKeepIt(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a := c.nodes[0]
		nstest.Veth(t, a.NS, "eth1", nstest.New(t), "x")
		a.IP(f.in("addr add 192.168.51.1/24 dev eth1"))
		for _, test := range []struct {
			name   string
			kept   bool
			change func(cfg *vxlan.Config)
		}{
			{"MTU", true, func(cfg *vxlan.Config) { cfg.MTU = 1400 }},
			{"MAC", true, func(cfg *vxlan.Config) { cfg.VTEPs[f.Family].MAC[4] = 7 }},
			{"Learning", true, func(cfg *vxlan.Config) { cfg.Learning = true }},
			{"pod CIDR", true, func(cfg *vxlan.Config) { cfg.VTEPs[f.Family].PodCIDR = f.prefix("10.244.9.0/24") }},
			{"Port", false, func(cfg *vxlan.Config) { cfg.Port = 4790 }}, // V-10
			{"GBP", false, func(cfg *vxlan.Config) { cfg.GBP = true }},
			{"local address", false, func(cfg *vxlan.Config) { cfg.VTEPs[f.Family].Local = f.addr("192.168.51.1") }},
			{"underlay device", false, func(cfg *vxlan.Config) { cfg.VTEPs[f.Family].Parent = a.index("eth1") }},
		} {
			saved := a.cfg
			a.sync()
			before := a.index(f.in("flannel.1"))
			test.change(&a.cfg)
			a.sync()
			if after := a.index(f.in("flannel.1")); (after == before) != test.kept {
				t.Errorf("%s: device %d became %d", test.name, before, after)
			}
			if routes := a.IP(f.in("route show dev flannel.1")); !strings.Contains(routes, f.in("10.244.2.0/24")) {
				t.Errorf("%s: the peer is lost: %s", test.name, routes)
			}
			a.cfg = saved
			a.sync()
		}
		c.reachAll(20 * time.Second)
	})
}

func TestANewVNILeavesNothingOfTheOldDevice(t *testing.T) { // 12.A.9
	c := newCluster(t, 2, widest(t))
	for _, h := range c.nodes {
		h.cfg.VNI = 7
		h.sync()
	}
	c.reachAll(20 * time.Second)
	for _, f := range lane.Of(t).Families() {
		if out := c.nodes[0].IP("-br link"); strings.Contains(out, terms.In(f, "flannel.1 ")) || !strings.Contains(out, terms.In(f, "flannel.7 ")) {
			t.Errorf("devices:\n%s", out)
		}
	}
}

func TestI03ANATedPublicIPIsAnnouncedAndNeverTheTunnelsSource(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a, b := c.nodes[0], c.nodes[1]
		// 203.0.113.7 is what the world sees of node 2: translated on the way, here on node 1's side of the wire
		a.IP(f.in("route add 203.0.113.7/32 via 192.168.50.2"))
		b.SetNFT(f.in(`table ip nat { chain prerouting { type nat hook prerouting priority dstnat
			ip daddr 203.0.113.7 dnat to 192.168.50.2
		}
		}`))
		a.know(changed(b.announced(), f.Family, func(e *subnet.Endpoint) { e.PublicIP = f.addr("203.0.113.7") }))
		a.sync()
		wire := a.Capture("eth0")
		c.reach(a, 5*time.Second)
		wire.Wait(t, time.Second, func(frame []byte) bool {
			dst, _, _, _, ok := nstest.VXLAN(frame)
			return ok && dst == f.addr("203.0.113.7")
		})
		if got := b.IP(f.in("-d link show flannel.1")); !strings.Contains(got, f.in("local 192.168.50.2 ")) {
			t.Errorf("tunnel source: %s", got)
		}
	})
}

func TestI07TheUnderlayAddressChangesWhileRunning(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 3, f.only)
		c.reachAll(20 * time.Second)
		a := c.nodes[0]
		a.IP(f.in("addr del 192.168.50.1/24 dev eth0"))
		a.IP(f.in("addr add 192.168.50.31/24 dev eth0"))
		a.cfg.VTEPs[f.Family].Local = f.addr("192.168.50.31")
		start := time.Now()
		a.sync()
		for _, h := range c.nodes[1:] {
			h.know(changed(a.announced(), f.Family, func(e *subnet.Endpoint) { e.PublicIP = a.cfg.VTEPs[f.Family].Local }))
			h.sync()
			if fdb := h.Bridge(f.in("fdb show dev flannel.1")); strings.Contains(fdb, f.in("192.168.50.1 ")) || !strings.Contains(fdb, f.in("192.168.50.31 ")) {
				t.Errorf("node %d: %s", h.i, fdb)
			}
		}
		c.reachAll(10*time.Second - time.Since(start))
	})
}

func TestI13ALocalNetworkInTheWayIsNamedAndTheOtherPeersWork(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 3, f.only)
		a := c.nodes[0]
		a.IP(f.in("route flush dev flannel.1"))
		a.IP(f.in("link add docker0 type bridge"))
		a.IP(f.in("link set docker0 up"))
		a.IP(f.in("addr add 10.244.2.1/24 dev docker0"))
		before := a.IP(f.in("route show dev docker0"))
		_, err := a.round()
		if !errors.Is(err, kernel.ErrForeignRoute) || !strings.Contains(err.Error(), f.in("interface docker0 has the route to 10.244.2.0/24")) {
			t.Errorf("got %v", err)
		}
		if after := a.IP(f.in("route show dev docker0")); after != before {
			t.Errorf("somebody else's route was changed: %s", after)
		}
		third := c.nodes[2].podAddrs()[0].Addr()
		nstest.Eventually(t, 20*time.Second, func() error { return a.pod.CanPing(third) })
		a.IP(f.in("link del docker0"))
		a.sync()
		c.reach(a, 5*time.Second)
	})
}

// In IPv6 a connected route wins over ours by its metric: the pods cannot be reached, and underlay.Overlaps names the network.
func TestI13ALocalNetworkThatComesLaterIsNamedToo(t *testing.T) {
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a := c.nodes[0]
		a.IP("link add docker0 type bridge")
		a.IP("link set docker0 up")
		a.IP(f.in("addr add 10.244.2.1/24 dev docker0"))
		if f.Family == subnet.IPv4 { // the kernel puts the bridge's route behind ours
			if _, err := a.round(); !errors.Is(err, kernel.ErrForeignRoute) || !strings.Contains(err.Error(), "interface docker0") {
				t.Errorf("got %v", err)
			}
			c.reach(a, 5*time.Second)
			return
		}
		host, err := a.conn.Host(t.Context())
		if err != nil {
			t.Fatal(err)
		}
		own := []netip.Prefix{a.cfg.VTEPs[f.Family].PodCIDR}
		if err := underlay.Overlaps(a.cfg.Networks[:], own, host); !errors.Is(err, underlay.ErrOverlap) || !strings.Contains(err.Error(), "docker0 has fd00:10:244:2::1/64") {
			t.Errorf("got %v", err)
		}
		a.IP("link del docker0")
		a.sync()
		c.reach(a, 5*time.Second)
	})
}

func TestGuestsOnTheDeviceStayAndOldAddressesOfOursGo(t *testing.T) { // contract 6.1
	inEachFamily(t, func(t *testing.T, f family) {
		c := newCluster(t, 2, f.only)
		a := c.nodes[0]
		stays := f.Family == subnet.IPv4 // the contract has it that IPv6 takes no guests
		a.IP(f.in("addr add 172.16.9.9/32 dev flannel.1"))
		a.IP(f.in("addr add 10.244.77.0/32 dev flannel.1"))
		a.sync()
		if out := a.IP(f.in("addr show flannel.1")); strings.Contains(out, f.in("172.16.9.9/32")) != stays || strings.Contains(out, f.in("10.244.77.0")) {
			t.Errorf("addresses: %s", out)
		}
	})
}
