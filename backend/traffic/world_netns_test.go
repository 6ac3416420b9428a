package traffic

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
	"github.com/weft-cni/weft/tests/terms"
)

// world is two nodes with VXLAN between them, two pods on the first and one on the second, and a host outside that routes
// the pod networks by way of the first node. Every place has an echo server that tells which source it sees.
type world struct {
	t       *testing.T
	fabric  *nstest.Fabric
	node    [2]*nstest.NS
	outside *nstest.NS
	pods    map[string]*nstest.NS
}

// echoPort is where every place of the world answers, over UDP.
const echoPort = 7007

// addrs are the addresses of the world by place, for one family; they are of the classes of the verdict table.
func addrs(f subnet.Family) map[string]netip.Addr {
	texts := [2]map[string]string{
		{
			"pod-a": "10.244.1.5", "pod-a2": "10.244.1.6", "pod-b": "10.244.2.7", "node": "192.168.50.1", "node2": "192.168.50.2",
			"outside": "192.168.50.3", "excluded": "192.0.2.10", "bridge": "10.244.1.1", "tunnel": "10.244.1.0", "vip": "10.96.0.10", "vip2": "10.96.0.11",
		},
		{
			"pod-a": "fd00:244:0:1::5", "pod-a2": "fd00:244:0:1::6", "pod-b": "fd00:244:0:2::7", "node": "fd00:50::1", "node2": "fd00:50::2",
			"outside": "fd00:50::3", "excluded": "fd00:c0::a", "bridge": "fd00:244:0:1::1", "tunnel": "fd00:244:0:1::", "vip": "fd00:96::10", "vip2": "fd00:96::11",
		},
	}[f]
	out := map[string]netip.Addr{}
	for name, text := range texts {
		out[name] = netip.MustParseAddr(text)
	}
	return out
}

// podPrefix is the pod range of node 1 or 2.
func podPrefix(f subnet.Family, node int) netip.Prefix {
	if f == subnet.IPv4 {
		return netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", node))
	}
	return netip.MustParsePrefix(fmt.Sprintf("fd00:244:0:%d::/64", node))
}

// nodeConfig is cluster as node 1 or 2 sees it.
func nodeConfig(node int) Config {
	c := cluster()
	for _, f := range subnet.Families() {
		c.Nets[f].PodCIDR = podPrefix(f, node)
	}
	return c
}

func newWorld(t *testing.T) *world {
	t.Helper()
	w := &world{t: t, fabric: nstest.NewFabric(t, 3), pods: map[string]*nstest.NS{}}
	w.node = [2]*nstest.NS{w.fabric.Nodes[0], w.fabric.Nodes[1]}
	w.outside = w.fabric.Nodes[2]
	for _, n := range w.fabric.Nodes { // else IPv6 waits for seconds to see whether its address is taken
		n.SetSysctl("net.ipv6.conf.default.accept_dad", "0")
		n.SetSysctl("net.ipv6.conf.all.accept_dad", "0")
	}
	a4, a6 := addrs(subnet.IPv4), addrs(subnet.IPv6)
	for name, at := range map[string]int{"pod-a": 0, "pod-a2": 0, "pod-b": 1} {
		w.pods[name] = w.node[at].Pod(1430, netip.PrefixFrom(a4[name], 24), netip.PrefixFrom(a6[name], 64))
	}
	for i, n := range w.node {
		w.overlay(n, i+1, 2-i, 4789)
	}
	w.outside.IP("addr add 192.0.2.10/32 dev lo")
	w.outside.IP("addr add fd00:c0::a/128 dev lo nodad")
	for _, f := range subnet.Families() {
		a := addrs(f)
		for node := 1; node <= 2; node++ {
			w.outside.IP(fmt.Sprintf("route add %s via %s", podPrefix(f, node), a["node"]))
			w.node[node-1].IP(fmt.Sprintf("route add default via %s", a["outside"]))
		}
		for place, ns := range map[string]*nstest.NS{
			"pod-a": w.pods["pod-a"], "pod-a2": w.pods["pod-a2"], "pod-b": w.pods["pod-b"],
			"node": w.node[0], "node2": w.node[1], "outside": w.outside, "excluded": w.outside,
		} {
			ns.UDPEcho(netip.AddrPortFrom(a[place], echoPort))
		}
	}
	return w
}

// overlay gives node i its VXLAN device with one peer j, the way the daemon programs it.
func (w *world) overlay(n *nstest.NS, i, j int, port int) {
	w.t.Helper()
	for _, f := range subnet.Families() {
		a, device, mtu := [2]netip.Addr{addrs(f)["node"], addrs(f)["node2"]}, terms.In(f, "flannel.1"), [2]int{1450, 1430}[f]
		n.IP(fmt.Sprintf("link add %s address 02:00:00:00:00:0%d mtu %d type vxlan id 1 local %s dev eth0 dstport %d nolearning", device, i, mtu, a[i-1], port))
		n.IP("link set " + device + " up")
		n.Bridge(fmt.Sprintf("fdb add 02:00:00:00:00:0%d dev %s dst %s", j, device, a[j-1]))
		own, peer := podPrefix(f, i).Addr(), podPrefix(f, j)
		n.IP(fmt.Sprintf("addr add %s/%d dev %s%s", own, own.BitLen(), device, map[bool]string{true: " nodad"}[own.Is6()]))
		n.IP(fmt.Sprintf("neigh add %s lladdr 02:00:00:00:00:0%d dev %s nud permanent", peer.Addr(), j, device))
		n.IP(fmt.Sprintf("route add %s via %s dev %s onlink", peer, peer.Addr(), device))
	}
}

// seen sends a datagram and returns the source that the echo server at the other end reports.
func seen(from *nstest.NS, bind netip.Addr, to netip.AddrPort) (netip.AddrPort, error) {
	var conn net.Conn
	err := from.Do(func() (err error) {
		d := net.Dialer{}
		if bind.IsValid() {
			d.LocalAddr = net.UDPAddrFromAddrPort(netip.AddrPortFrom(bind, 0))
		}
		conn, err = d.Dial("udp", to.String())
		return err
	})
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer conn.Close()
	buf := make([]byte, 200)
	for deadline := time.Now().Add(5 * time.Second); ; {
		_ = conn.SetDeadline(time.Now().Add(200 * time.Millisecond)) // a first packet may be lost while neighbours are found
		if _, err = conn.Write([]byte("who")); err == nil {
			var n int
			if n, err = conn.Read(buf); err == nil {
				text, _, _ := strings.Cut(string(buf[:n]), " ")
				return netip.ParseAddrPort(text)
			}
		}
		if time.Now().After(deadline) {
			return netip.AddrPort{}, err
		}
	}
}

// words is the family that a test is about. Tests speak of IPv4; in, addr, at and prefix put that into the family's terms, with
// the addresses that the Configs of the tests have.
type words struct{ subnet.Family }

func (f words) in(text string) string {
	if f.Family == subnet.IPv4 {
		return text
	}
	return strings.NewReplacer("fd00:10:244::", "fd00:244::", "fd00:10:244:", "fd00:244:0:", "fd00:192:0:2::", "fd00:c0::").Replace(terms.In(f.Family, text))
}

func (f words) addr(text string) netip.Addr     { return netip.MustParseAddr(f.in(text)) }
func (f words) prefix(text string) netip.Prefix { return netip.MustParsePrefix(f.in(text)) }

func (f words) at(text string) netip.AddrPort {
	at := netip.MustParseAddrPort(text)
	return netip.AddrPortFrom(f.addr(at.Addr().String()), at.Port())
}

// single is a cluster of this family alone.
func (f words) single() Config {
	c := cluster()
	c.Nets[1-f.Family], c.Exclude = Net{}, nil
	return c
}

// inEachFamily runs a test for each family of the lane.
func inEachFamily(t *testing.T, test func(t *testing.T, f words)) {
	t.Helper()
	for _, f := range lane.Of(t).Families() {
		t.Run(f.String(), func(t *testing.T) { test(t, words{f}) })
	}
}

// source is the address that a captured frame comes from, if it is IP.
func source(frame []byte) netip.Addr {
	switch {
	case len(frame) >= 34 && frame[12] == 8 && frame[13] == 0:
		return netip.AddrFrom4([4]byte(frame[26:30]))
	case len(frame) >= 54 && frame[12] == 0x86 && frame[13] == 0xdd:
		return netip.AddrFrom16([16]byte(frame[22:38]))
	}
	return netip.Addr{}
}

// manager is a Manager for a namespace.
func manager(ns *nstest.NS) *Manager { return New(Options{NetNS: ns.Path()}) }

// sync runs one Sync that must succeed.
func sync(t *testing.T, m *Manager, c Config) Result {
	t.Helper()
	r, err := m.Sync(context.Background(), c)
	if err != nil {
		t.Fatal(err)
	}
	return r
}
