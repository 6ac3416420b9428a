package nstest

import (
	"crypto/rand"
	"fmt"
	"net/netip"
	"testing"
)

// Fabric is an underlay: a switch (a bridge in a namespace of its own) and hosts that hang on it with their eth0.
// Host number i, from 1, has 192.168.50.i/24 and fd00:50::i/64; neither has a default route.
type Fabric struct {
	Switch *NS
	Nodes  []*NS
	t      testing.TB
}

// NewFabric makes a switch and n hosts.
func NewFabric(t testing.TB, n int) *Fabric {
	t.Helper()
	f := &Fabric{Switch: New(t), t: t}
	f.Switch.IP("link add br0 type bridge forward_delay 0 mcast_snooping 0")
	f.Switch.IP("link set br0 up")
	for range n {
		f.Add()
	}
	return f
}

// Add hangs one more host on the switch.
func (f *Fabric) Add() *NS {
	f.t.Helper()
	n := New(f.t)
	f.Nodes = append(f.Nodes, n)
	i := len(f.Nodes)
	f.Attach(n, "eth0", f.Port(i))
	n.IP(fmt.Sprintf("addr add %s/24 dev eth0", f.Addr(i)))
	n.IP(fmt.Sprintf("addr add %s/64 dev eth0 nodad", f.Addr6(i)))
	n.SetSysctl("net.ipv4.ip_forward", "1")
	n.SetSysctl("net.ipv6.conf.all.forwarding", "1")
	return n
}

// Attach hangs a device of a namespace on the switch's port of the given name, without an address.
func (f *Fabric) Attach(n *NS, device, port string) {
	f.t.Helper()
	Veth(f.t, n, device, f.Switch, port)
	f.Switch.IP("link set " + port + " master br0")
}

// Port is the switch's port for host i: set it down to cut the host's cable.
func (f *Fabric) Port(i int) string { return fmt.Sprintf("port%d", i) }

// Addr is the IPv4 underlay address of host i, counted from 1.
func (f *Fabric) Addr(i int) netip.Addr { return netip.AddrFrom4([4]byte{192, 168, 50, byte(i)}) }

// Addr6 is the IPv6 underlay address of host i, counted from 1.
func (f *Fabric) Addr6(i int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x50, 14: byte(i >> 8), 15: byte(i)})
}

// Veth joins two namespaces by a cable; both ends are up.
func Veth(t testing.TB, a *NS, aName string, b *NS, bName string) {
	t.Helper()
	a.Run("ip", "link", "add", aName, "type", "veth", "peer", "name", bName, "netns", b.Name)
	a.IP("link set " + aName + " up")
	b.IP("link set " + bName + " up")
}

// Pod makes a pod on a node: a namespace whose eth0 hangs on the node's bridge cni0, with a default route to it. The
// bridge is made on first use and takes the first address of each prefix. A prefix is the pod's address with the
// length of the node's pod range: 10.244.1.5/24. The pod's MTU is mtu, or 1500 when 0.
func (n *NS) Pod(mtu int, addrs ...netip.Prefix) *NS {
	n.t.Helper()
	if mtu == 0 {
		mtu = 1500
	}
	if _, err := n.Try("ip", "link", "show", "cni0"); err != nil {
		n.IP("link add cni0 address " + randomMAC() + " type bridge forward_delay 0 mcast_snooping 0")
		n.IP(fmt.Sprintf("link set cni0 up mtu %d", mtu))
	}
	pod := New(n.t)
	port := "v" + pod.Name[len(pod.Name)-8:]
	Veth(n.t, pod, "eth0", n, port)
	n.IP(fmt.Sprintf("link set %s mtu %d master cni0", port, mtu))
	pod.IP(fmt.Sprintf("link set eth0 mtu %d", mtu))
	for _, a := range addrs {
		gateway := a.Masked().Addr().Next()
		n.IP(fmt.Sprintf("addr replace %s/%d dev cni0%s", gateway, a.Bits(), nodad(a)))
		pod.IP(fmt.Sprintf("addr add %s dev eth0%s", a, nodad(a)))
		pod.IP(fmt.Sprintf("route add default via %s", gateway))
	}
	return pod
}

// randomMAC is an address for a bridge to keep, as CNI's plugin makes one keep its own: a bridge without takes the lowest
// of its ports', and with a new pod another one, which costs the pods that have the old one in their caches a packet.
func randomMAC() string {
	var b [5]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails on Linux
	return fmt.Sprintf("0a:%02x:%02x:%02x:%02x:%02x", b[0], b[1], b[2], b[3], b[4])
}

// nodad is the word that lets an IPv6 address be used at once.
func nodad(a netip.Prefix) string {
	if a.Addr().Is6() {
		return " nodad"
	}
	return ""
}
