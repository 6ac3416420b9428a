package reliability

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// Peer is what the others hold of a node: one route, one neighbour, one forwarding entry.
type Peer struct {
	Name string
	CIDR netip.Prefix
	IP   netip.Addr // on the underlay
	MAC  subnet.MAC // of its VXLAN device
	Port uint16     // of its tunnel
}

// Node is a machine. Peer is what it has to be for the others, and Underlay and MTU what its own device has to be made of: a
// row that changes the world changes them, and Restored follows.
type Node struct {
	Peer
	NS    *nstest.NS
	Pod   *nstest.NS
	PodIP netip.Addr
	Dir   string // its disk: /etc, /run, /var
	Agent *Agent

	MTU  int    // of its underlay device
	Link string // the name of its underlay device

	conn  *kernel.Conn
	rules string // our nft table, as it should be
}

// addNode makes machine i, with a pod and an agent that is not started, and its Node.
func (b *Bench) addNode(i int) {
	ns := b.Fabric.Nodes[i-1]
	ns.IP("route add default via " + gateway)
	ns.SetSysctl("net.ipv4.conf.all.rp_filter", "0")
	n := &Node{
		Peer: Peer{Name: fmt.Sprintf("n%d", i), IP: b.Fabric.Addr(i), CIDR: cidr(i), Port: 4789},
		NS:   ns, Dir: b.T.TempDir(), MTU: 1500, Link: "eth0",
	}
	conn, err := kernel.OpenAt(ns.FD())
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(conn.Close)
	n.conn = conn
	n.PodIP = n.CIDR.Addr().Next().Next()
	n.Pod = ns.Pod(1450, netip.PrefixFrom(n.PodIP, n.CIDR.Bits()))
	for _, dir := range []string{"net.d", "bin", "cni", "netns", "run", "state"} {
		if err := os.MkdirAll(filepath.Join(n.Dir, dir), 0o755); err != nil {
			b.T.Fatal(err)
		}
	}
	if err := os.Symlink(b.Plugins, n.Path("source")); err != nil {
		b.T.Fatal(err)
	}
	if err := b.Create(n.Name, n.CIDR.String(), nil); err != nil {
		b.T.Fatal(err)
	}
	n.Agent = newAgent(b, n)
	b.Nodes = append(b.Nodes, n)
}

func cidr(i int) netip.Prefix {
	return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)
}

// Path is a file of the node.
func (n *Node) Path(name string) string { return filepath.Join(n.Dir, name) }

// Device is the name of its VXLAN device.
func (n *Node) Device() string { return kernel.DeviceName(subnet.IPv4, 1) }

// remember takes what a node chose for itself, or what is too long to model: its MAC and its rules.
func (n *Node) remember() error {
	have, err := n.Dump()
	if err != nil {
		return err
	}
	n.MAC = have.Links[n.Device()].MAC
	n.rules, err = n.Rules()
	return err
}
