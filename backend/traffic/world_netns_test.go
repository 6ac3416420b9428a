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
	"github.com/weft-cni/weft/tests/nstest"
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
			"outside": "fd00:50::3", "excluded": "fd00:c0::10", "bridge": "fd00:244:0:1::1", "tunnel": "fd00:244:0:1::", "vip": "fd00:96::10", "vip2": "fd00:96::11",
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
		w.pods[name] = w.node[at].Pod(1450, netip.PrefixFrom(a4[name], 24), netip.PrefixFrom(a6[name], 64))
	}
	for i, n := range w.node {
		w.overlay(n, i+1, 2-i, 4789)
	}
	w.outside.IP("addr add 192.0.2.10/32 dev lo")
	w.outside.IP("addr add fd00:c0::10/128 dev lo nodad")
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
	n.IP(fmt.Sprintf("link add flannel.1 address 02:00:00:00:00:0%d mtu 1450 type vxlan id 1 local 192.168.50.%d dev eth0 dstport %d nolearning", i, i, port))
	n.IP("link set flannel.1 up")
	n.Bridge(fmt.Sprintf("fdb add 02:00:00:00:00:0%d dev flannel.1 dst 192.168.50.%d", j, j))
	for _, f := range subnet.Families() {
		own, peer := podPrefix(f, i).Addr(), podPrefix(f, j)
		n.IP(fmt.Sprintf("addr add %s/%d dev flannel.1%s", own, own.BitLen(), map[bool]string{true: " nodad"}[own.Is6()]))
		n.IP(fmt.Sprintf("neigh add %s lladdr 02:00:00:00:00:0%d dev flannel.1 nud permanent", peer.Addr(), j))
		n.IP(fmt.Sprintf("route add %s via %s dev flannel.1 onlink", peer, peer.Addr()))
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
