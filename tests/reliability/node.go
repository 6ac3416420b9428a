package reliability

import (
	"context"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// Peer is what the others hold of a node: in each family one route, one neighbour, one forwarding entry.
type Peer struct {
	Name string
	Ends [2]End // by family
	Port uint16 // of its tunnel
	// Backend is the object of a stranger's net-conf.json: what it announces. Empty means VXLAN.
	Backend string
}

// End is a peer's part in one family. The zero value: it has none.
type End struct {
	CIDR netip.Prefix
	IP   netip.Addr // on the underlay
	MAC  subnet.MAC // of its VXLAN device
}

// Node is a machine. Peer is what it has to be for the others, and Underlay and MTU what its own device has to be made of: a
// row that changes the world changes them, and Restored follows.
type Node struct {
	Peer
	NS     *nstest.NS
	Pod    *nstest.NS
	PodIPs [2]netip.Addr // by family
	Dir    string        // its disk: /etc, /run, /var
	Agent  *Agent

	MTU  int    // of its underlay device
	Link string // the name of its underlay device

	conn  *kernel.Conn
	known bool   // remember has seen what the node chose for itself
	rules string // our nft table, as it should be
}

// addNode makes machine i, with a pod and an agent that is not started, and its Node.
func (b *Bench) addNode(i int) {
	ns := b.Fabric.Nodes[i-1]
	ns.SetSysctl("net.ipv4.conf.all.rp_filter", "0")
	if !b.Lane.Has(subnet.IPv4) {
		ns.IP("-4 addr flush dev eth0")
	}
	n := &Node{Peer: Peer{Name: fmt.Sprintf("n%d", i), Port: 4789}, NS: ns, Dir: b.T.TempDir(), MTU: 1500, Link: "eth0"}
	var pods []netip.Prefix
	for _, f := range b.Lane.Families() {
		ns.IP("route add default via " + wordsFor(f).gateway)
		cidr := lane.PodCIDR(f, i)
		n.Ends[f] = End{CIDR: cidr, IP: [2]netip.Addr{b.Fabric.Addr(i), b.Fabric.Addr6(i)}[f]}
		n.PodIPs[f] = cidr.Addr().Next().Next()
		pods = append(pods, netip.PrefixFrom(n.PodIPs[f], cidr.Bits()))
	}
	conn, err := kernel.OpenAt(ns.FD())
	if err != nil {
		b.T.Fatal(err)
	}
	b.T.Cleanup(conn.Close)
	n.conn = conn
	n.Pod = ns.Pod(podMTU(b.Lane, n.MTU), pods...)
	for _, dir := range []string{"net.d", "bin", "cni", "netns", "run", "state"} {
		if err := os.MkdirAll(filepath.Join(n.Dir, dir), 0o755); err != nil {
			b.T.Fatal(err)
		}
	}
	if err := os.Symlink(b.Plugins, n.Path("source")); err != nil {
		b.T.Fatal(err)
	}
	if err := b.Create(n.Peer, nil); err != nil {
		b.T.Fatal(err)
	}
	n.Agent = newAgent(b, n)
	b.Nodes = append(b.Nodes, n)
}

// Path is a file of the node.
func (n *Node) Path(name string) string { return filepath.Join(n.Dir, name) }

// Address is the node's address on the underlay, as `ip addr` takes it.
func (n *Node) Address(f subnet.Family) string {
	text := fmt.Sprintf("%s/%d", n.Ends[f].IP, wordsFor(f).bits)
	if f == subnet.IPv6 {
		text += " nodad" // a second without the address would be a second of the test
	}
	return text
}

// remember takes what a node chose for itself, or what is too long to model: its MACs and its rules.
func (n *Node) remember() error {
	if err := n.learn(); err != nil {
		return err
	}
	rules, err := n.Rules()
	n.rules, n.known = rules, true
	return err
}

// learn takes the MACs of its devices.
func (n *Node) learn() error {
	have, err := n.Dump()
	if err != nil {
		return err
	}
	for _, f := range subnet.Families() {
		if n.Ends[f] != (End{}) {
			n.Ends[f].MAC = have.Links[device(f)].MAC
		}
	}
	return nil
}

// PodAddrs are the addresses of its pod, in the lane's order.
func (n *Node) PodAddrs() []netip.Addr {
	var out []netip.Addr
	for _, f := range n.families() {
		out = append(out, n.PodIPs[f])
	}
	return out
}

// canMake reports whether the kernel has a kind of device.
func (n *Node) canMake(kind string) bool {
	if kind == "" {
		return true
	}
	features := n.conn.Probe(context.Background(), kind)
	return slices.ContainsFunc(features, func(f kernel.Feature) bool { return f.Name == kind && f.Support == kernel.Supported })
}

// cidrs are its pod ranges, in the lane's order.
func (n *Node) cidrs() []netip.Prefix {
	var out []netip.Prefix
	for _, f := range n.families() {
		out = append(out, n.Ends[f].CIDR)
	}
	return out
}

// families are those that the node has a part in.
func (n *Node) families() []subnet.Family {
	var out []subnet.Family
	for _, f := range subnet.Families() {
		if n.Ends[f].CIDR.IsValid() {
			out = append(out, f)
		}
	}
	return out
}
