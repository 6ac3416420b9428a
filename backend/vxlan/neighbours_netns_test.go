package vxlan_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// L-06: the kernel counts the neighbours of all network namespaces together, and refuses new ones beyond gc_thresh3, 1,024
// unless told otherwise. Permanent entries, which ours are, do not count: that many peers leave room for everybody else.
func TestL06FifteenHundredPeersOfTwoFamiliesFillNoNeighbourTable(t *testing.T) {
	c := newCluster(t, 2, dual)
	a := c.nodes[0]
	for _, family := range []string{"ipv4", "ipv6"} { // of the whole machine: a namespace has none of its own
		limit, err := os.ReadFile("/proc/sys/net/" + family + "/neigh/default/gc_thresh3")
		t.Logf("%s: gc_thresh3 is %s (%v)", family, strings.TrimSpace(string(limit)), err)
	}
	var many []subnet.Peer
	for i := range 1500 {
		many = append(many, distant(i))
	}
	a.know(many...)
	start := time.Now()
	a.sync()
	t.Logf("1,500 peers of two families in %v", time.Since(start))
	for _, list := range []string{"-4 neigh show dev flannel.1 nud permanent", "-6 neigh show dev flannel-v6.1 nud permanent"} {
		if n := strings.Count(a.IP(list), "\n"); n != len(many)+1 {
			t.Errorf("%s: %d entries for %d peers", list, n, len(many)+1)
		}
	}
	// Everybody else still finds neighbours: the pods of the peer that is there, and a stranger on the underlay.
	c.reachAll(20 * time.Second)
	stranger := c.fabric.Add()
	nstest.Eventually(t, 20*time.Second, func() error { return a.CanPing(c.fabric.Addr(3)) })
	nstest.Eventually(t, 20*time.Second, func() error { return stranger.CanPing(c.fabric.Addr6(1)) })
}

// distant is a peer that is not there.
func distant(i int) subnet.Peer {
	p := peer(9)
	p.Name = fmt.Sprintf("distant-%d", i)
	hi, lo := byte(i/250), byte(i%250)
	p.Endpoints[subnet.IPv4] = subnet.Endpoint{
		PodCIDR:  netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244 + 1 + hi, lo, 0}), 24),
		PublicIP: netip.AddrFrom4([4]byte{192, 168, 60 + hi, lo + 1}), MAC: subnet.MAC{0x0a, 1, 0, 0, hi, lo},
	}
	v6 := netip.MustParseAddr("fd00:10:245::").As16()
	v6[6], v6[7] = hi, lo
	p.Endpoints[subnet.IPv6] = subnet.Endpoint{
		PodCIDR:  netip.PrefixFrom(netip.AddrFrom16(v6), 64),
		PublicIP: netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x60, 14: hi, 15: lo}), MAC: subnet.MAC{0x0e, 1, 0, 0, hi, lo},
	}
	return p
}
