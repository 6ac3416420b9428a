package reliability

import (
	"context"
	"fmt"
	"net"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/traffic"
	"github.com/weft-cni/weft/subnet"
)

// Dump reads what the node's kernel holds of ours.
func (n *Node) Dump() (kernel.State, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	return n.conn.Dump(ctx)
}

// Rules is our nft table, with the elements of sets in order.
func (n *Node) Rules() (string, error) {
	text, err := n.NS.Try("nft", "--stateless", "list", "table", "inet", traffic.TableName)
	if err != nil {
		return "", err
	}
	return ordered(strings.FieldsFunc(text, func(r rune) bool { return strings.ContainsRune(" \t\n,", r) })), nil
}

// ordered writes a table one word a line, with the elements of sets in order.
func ordered(words []string) string {
	open := -1
	for i, w := range words {
		switch {
		case w == "elements":
			open = i + 3 // elements = {
		case w == "}" && open >= 0:
			slices.Sort(words[open:i])
			open = -1
		}
	}
	return strings.Join(words, "\n")
}

// Want is what a node's kernel should hold of ours, written straight from the contract: per family a device, and per peer one
// route, one neighbour and one forwarding entry, or a route straight to it.
func (b *Bench) Want(n *Node) (kernel.State, error) {
	parent, err := n.index(n.Link)
	if err != nil {
		return kernel.State{}, err
	}
	form, err := formOf(b.Backend)
	if err != nil {
		return kernel.State{}, err
	}
	s := kernel.New()
	for _, f := range b.Lane.Families() {
		own, link, w := n.Ends[f], device(f), wordsFor(f)
		if form.hasDevice() {
			s.Links[link] = kernel.Link{
				Kind: "vxlan", VNI: 1, Local: own.IP, Port: n.Port, Parent: parent, MTU: n.MTU - w.overhead, MAC: own.MAC, Up: true,
			}
			first := own.CIDR.Addr()
			s.Addrs[kernel.Addr{Link: link, Prefix: netip.PrefixFrom(first, first.BitLen())}] = struct{}{}
		}
		for _, p := range b.peers(n) {
			end := p.Ends[f]
			if end == (End{}) {
				continue
			}
			if form.isDirect() {
				s.Routes[kernel.RouteKey{Dst: end.CIDR, Metric: w.metric}] = kernel.Route{Link: n.Link, Via: end.IP, Ours: true, Type: "unicast"}
				continue
			}
			via := end.CIDR.Addr()
			s.Neighs[kernel.Neigh{Link: link, IP: via}] = end.MAC
			s.FDB[kernel.FDBKey{Link: link, MAC: end.MAC}] = kernel.FDBDest{Dst: end.IP, Port: p.Port}
			s.Routes[kernel.RouteKey{Dst: end.CIDR, Metric: w.metric}] = kernel.Route{Link: link, Via: via, Onlink: true, Ours: true, Type: "unicast"}
		}
	}
	return s, nil
}

func (b *Bench) peers(but *Node) []Peer {
	list := slices.Clone(b.Strangers)
	for _, n := range b.Nodes {
		if n != but {
			list = append(list, n.Peer)
		}
	}
	return list
}

// Right reports what is not right with what is ours on a node.
func (b *Bench) Right(n *Node) error {
	if err := b.kernelRight(n); err != nil {
		return err
	}
	return b.rulesRight(n)
}

// kernelRight looks at devices and tables.
func (b *Bench) kernelRight(n *Node) error {
	want, err := b.Want(n)
	if err != nil {
		return err
	}
	have, err := n.Dump()
	if err != nil {
		return err
	}
	have.Read, have.Foreign, want.Foreign = time.Time{}, nil, nil // about the host, not ours
	for name, l := range have.Links {
		l.Index, l.SoftChecksum = 0, false
		if !n.known {
			l.MAC = subnet.MAC{}
		}
		have.Links[name] = l
	}
	for key, d := range have.FDB {
		if d.Port == 0 {
			d.Port = want.Links[key.Link].Port
		}
		have.FDB[key] = d
	}
	if !n.known {
		want.Neighs, want.FDB, have.Neighs, have.FDB = nil, nil, nil, nil
	}
	if diff := cmp.Diff(want, have, cmp.Comparer(sameAddr), cmp.Comparer(samePrefix)); diff != "" {
		return fmt.Errorf("%s: the kernel (+) is not as it should be (-):\n%s", n.Name, diff)
	}
	return nil
}

// rulesRight looks at our nft table.
func (b *Bench) rulesRight(n *Node) error {
	rules, err := n.Rules()
	if err != nil {
		return err
	}
	if n.rules == "" {
		n.rules = rules
	}
	if diff := cmp.Diff(strings.Split(n.rules, "\n"), strings.Split(rules, "\n")); diff != "" && n.known {
		return fmt.Errorf("%s: the rules (+) are not as they should be (-):\n%s", n.Name, diff)
	}
	return nil
}

func sameAddr(a, b netip.Addr) bool     { return a == b }
func samePrefix(a, b netip.Prefix) bool { return a == b }

// index is the number of a device of the node.
func (n *Node) index(name string) (int, error) {
	nic, err := n.device(name)
	if err != nil {
		return 0, err
	}
	return nic.Index, nil
}

// device is a device of the node as it is now.
func (n *Node) device(name string) (*net.Interface, error) {
	var nic *net.Interface
	err := n.NS.Do(func() (err error) {
		nic, err = net.InterfaceByName(name)
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("find device %s of %s: %w", name, n.Name, err)
	}
	return nic, nil
}
