package mesh_test

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// routeTo is what the kernel has for the pods of node i, as ip(8) prints it.
func (a *agent) routeTo(f subnet.Family, i byte) string {
	return strings.TrimSpace(a.IP(fmt.Sprintf("-%d route show %s", [2]int{4, 6}[f], prefix(f, i))))
}

// mac is the Ethernet address of a device.
func (a *agent) mac(device string) string {
	words := strings.Fields(a.IP("-o link show " + device))
	return words[slices.Index(words, "link/ether")+1]
}

// reaches waits until a node's pod reaches those of all others.
func (c *site) reaches(a *agent) {
	c.t.Helper()
	c.eachPod(a, func(_, to netip.Addr) {
		nstest.Eventually(c.t, time.Minute, func() error { return a.pod.CanPing(to) })
	})
}

// forget takes a node out of the cluster.
func (b *board) forget(i byte) {
	b.mu.Lock()
	defer b.mu.Unlock()
	delete(b.announced, i)
	b.gone = i
	for _, c := range b.listeners {
		poke(c)
	}
}

// move gives a node another address on the underlay, as the others see it.
func (b *board) move(i byte, f subnet.Family, to netip.Addr) {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.moved == nil {
		b.moved = map[byte][2]netip.Addr{}
	}
	addrs := b.moved[i]
	addrs[f] = to
	b.moved[i] = addrs
	for _, c := range b.listeners {
		poke(c)
	}
}

// readdress puts back what the kernel forgets of an underlay device that was down.
func (a *agent) readdress(i byte) {
	a.IP(fmt.Sprintf("addr replace %s/24 dev eth0", public(subnet.IPv4, i)))
	a.IP(fmt.Sprintf("addr replace %s/64 dev eth0 nodad", public(subnet.IPv6, i)))
}

func TestPlainRoutesComeBackAfterALinkThatWasDownAndANICThatWasReplaced(t *testing.T) { // V-04, contract 12.14
	for _, s := range []setting{{from: subnet.HostGW}, {from: subnet.VXLAN, directs: [2]bool{true, true}}} {
		t.Run(s.from, func(t *testing.T) {
			c := newSite(t, 2, s)
			a := c.agents[0]
			for name, meddle := range map[string]func(){
				"down and up": func() {
					a.IP("link set eth0 down")
					a.IP("link set eth0 up")
					a.readdress(1)
				},
				"flushed": func() {
					for _, f := range lane.Of(t).Families() {
						a.IP(fmt.Sprintf("-%d route flush proto 87", [2]int{4, 6}[f]))
					}
				},
			} {
				meddle()
				c.reaches(a)
				t.Logf("%s: reached again", name)
			}
			if s.from != subnet.HostGW {
				return // the tunnel's device goes with the NIC it was made for
			}
			mac := a.mac("eth0") // kept: neighbours believe for half a minute in the one they know
			a.IP("link del eth0")
			nstest.Veth(t, a.NS, "eth0", c.fabric.Switch, "again")
			c.fabric.Switch.IP("link set again master br0")
			a.IP("link set eth0 address " + mac)
			a.readdress(1)
			c.reaches(a)
		})
	}
}

func TestAGatewayThatWasLeftNeverComesBack(t *testing.T) { // contract 12.14
	c := newSite(t, 2, setting{from: subnet.HostGW})
	a, b := c.agents[0], c.agents[1]
	f := lane.Of(t).First()
	old, next := public(f, 2), public(f, 77)
	b.IP(fmt.Sprintf("addr add %s/%d dev eth0 %s", next, [2]int{24, 64}[f], [2]string{"", "nodad"}[f]))
	has := func(want string) func() error {
		return func() error {
			if got := a.routeTo(f, 2); want == "" && got != "" || !strings.Contains(got, want) {
				return fmt.Errorf("route %q, want %q", got, want)
			}
			return nil
		}
	}
	nstest.Eventually(t, time.Minute, has("via "+old.String()+" "))
	a.IP("link set eth0 down") // the route is missing for a moment
	c.board.move(2, f, next)
	a.IP("link set eth0 up")
	a.readdress(1)
	nstest.Eventually(t, time.Minute, has("via "+next.String()+" "))
	for range 2 {
		a.IP("link set eth0 down")
		a.IP("link set eth0 up")
		a.readdress(1)
		nstest.Eventually(t, time.Minute, has("via "+next.String()+" "))
	}
	c.board.forget(2)
	nstest.Eventually(t, time.Minute, has(""))
	a.IP("link set eth0 down")
	a.IP("link set eth0 up")
	a.readdress(1)
	nstest.Eventually(t, time.Minute, func() error { a.mu.Lock(); defer a.mu.Unlock(); return a.idle })
	if err := has("")(); err != nil {
		t.Error(err)
	}
}

func TestDirectRoutingGoesToTheTunnelAndBackWithTheRoutes(t *testing.T) { // contract 12.8
	c := newSite(t, 3, setting{from: subnet.VXLAN, directs: [2]bool{true, true}})
	a, f := c.agents[0], lane.Of(t).First()
	by := func(device string) func() error {
		return func() error {
			if got := a.routeTo(f, 2); !strings.Contains(got, "dev "+device+" ") || strings.Contains(got, "\n") {
				return fmt.Errorf("route %q, want one by %s", got, device)
			}
			entries := a.Bridge("fdb show") + a.IP("neigh show nud permanent")
			if left := strings.Contains(entries, mac(f, 2).String()); left != strings.HasPrefix(device, "flannel") {
				return fmt.Errorf("by %s with\n%s", device, entries)
			}
			return nil
		}
	}
	nstest.Eventually(t, time.Minute, by("eth0"))
	stop := c.traffic()
	// a router comes between, which is node 3 here
	route := fmt.Sprintf("-%d route %%s %s/%d via %s dev eth0", [2]int{4, 6}[f], public(f, 2), public(f, 2).BitLen(), public(f, 3))
	for range 10 {
		a.IP(fmt.Sprintf(route, "add"))
		nstest.Eventually(t, time.Minute, by([2]string{"flannel.1", "flannel-v6.1"}[f]))
		a.IP(fmt.Sprintf(route, "del"))
		nstest.Eventually(t, time.Minute, by("eth0"))
	}
	stop()
}

func TestAPeerWithoutAFamilyIsReachedInTheOther(t *testing.T) { // contract 12.13
	if lane.Of(t) != lane.Dual {
		t.Skip("one family is all there is in this lane; WEFT_LANE=dual runs the test")
	}
	for _, f := range subnet.Families() {
		s := setting{from: subnet.HostGW, lacks: []subnet.Family{f}}
		c := newSite(t, 2, s) // node 2 has no such pods
		a := c.agents[0]
		if got := a.routeTo(f, 2); got != "" {
			t.Errorf("%v: %s", f, got)
		}
		if got := a.routeTo(1-f, 2); !strings.Contains(got, "via") {
			t.Errorf("%v: %s", 1-f, got)
		}
	}
}
