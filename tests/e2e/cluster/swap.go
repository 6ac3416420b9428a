package cluster

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
)

// places says which node's address a node has that does not have its own, by number.
type places map[int]int

// place is the number of the node whose first address the n-th node has now.
func (c *Cluster) place(n int) int {
	if other, moved := c.places[n]; moved {
		return other
	}
	return n
}

// Place is the number of the node whose first addresses a node has.
func (c *Cluster) Place(n *Node) int { return c.place(n.number) }

// SwapAddresses gives two nodes that are off each other's addresses, as a new lease would, and what an administrator has told
// their kubelets about them.
func (c *Cluster) SwapAddresses(a, b *Node) error {
	for _, n := range []*Node{a, b} {
		if _, err := n.pid(); err == nil {
			return fmt.Errorf("swap the addresses of %s and %s: %s is on", a.Name, b.Name, n.Name)
		}
	}
	old := map[*Node]Addrs{a: b.Addrs, b: a.Addrs}
	if c.places == nil {
		c.places = places{}
	}
	c.places[a.number], c.places[b.number] = c.place(b.number), c.place(a.number)
	for n, addrs := range old {
		file := filepath.Join(n.disk(), "kubelet", "kubeadm-flags.env")
		text, err := os.ReadFile(file)
		if err != nil {
			return fmt.Errorf("read the flags of the kubelet on %s: %w", n.Name, err)
		}
		moved := strings.Replace(string(text), "--node-ip="+n.Addrs.of(c.Config.Lane).list(), "--node-ip="+addrs.of(c.Config.Lane).list(), 1)
		if moved == string(text) {
			return fmt.Errorf("move %s to %v: the kubelet's flags do not say %v: %s", n.Name, addrs, n.Addrs, text)
		}
		if err := writeFile(file, moved); err != nil {
			return err
		}
		n.setAddrs(addrs)
	}
	return c.save()
}
