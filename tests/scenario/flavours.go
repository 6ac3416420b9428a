package scenario

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
	"github.com/weft-cni/weft/tests/terms"
)

// underlayAddr is the underlay address of node number i in a family.
func underlayAddr(f subnet.Family, i int) netip.Addr {
	return netip.MustParseAddr(terms.In(f, fmt.Sprintf("192.168.%d.%d", 50+i/250, i%250)))
}

// underlayNet is the one link that all nodes are on.
func underlayNet(f subnet.Family) netip.Prefix {
	return netip.PrefixFrom(underlayAddr(f, 1), [2]int{16, 64}[f]).Masked()
}

// underlayAddrs are those of a lane, with the lengths of the underlay's subnets.
func underlayAddrs(l lane.Lane, i int) []netip.Prefix {
	var list []netip.Prefix
	for _, f := range l.Families() {
		list = append(list, netip.PrefixFrom(underlayAddr(f, i), underlayNet(f).Bits()))
	}
	return list
}

// fakes makes worlds of fake kernels. Played in a synctest bubble, waiting costs nothing there.
func fakes(l lane.Lane) flavour {
	return flavour{
		lane:    l,
		virtual: true,
		cluster: func(*World) (cluster, error) { return newCluster(), nil },
		box:     func(i int) (Box, error) { return newFakeBox(underlayAddrs(l, i)), nil },
		agent:   newLoopAgent,
		ping:    walk,
	}
}

// namespaces makes worlds of network namespaces on one fabric, in the lane of the run.
func namespaces(t testing.TB) flavour {
	fabric, l := nstest.NewFabric(t, 0), lane.Of(t)
	return flavour{
		lane:    l,
		cluster: func(*World) (cluster, error) { return newCluster(), nil },
		box:     func(i int) (Box, error) { return newNetnsBox(t, fabric, underlayAddrs(l, i)) },
		agent:   newLoopAgent,
		ping:    echo,
	}
}

// newLoopAgent makes an agent that watches a cluster in memory.
func newLoopAgent(w *World, m *Machine) (agent, error) {
	c, ok := w.cluster.(*Cluster)
	if !ok {
		return nil, errors.New("a loop agent watches a cluster in memory only")
	}
	watch := func() *Source { return c.watch(m.name, w) }
	return &loopAgent{name: m.name, lane: w.lane, cluster: c, watch: watch, box: m.box}, nil
}

// echo sends real packets.
func echo(w *World, f subnet.Family, from, to *Machine) error {
	dst, err := w.gateway(f, to)
	if err != nil {
		return err
	}
	box, ok := from.box.Box.(*netnsBox)
	if !ok {
		return fmt.Errorf("%s is no namespace", from.name)
	}
	if _, err := box.ns.Try("ip", "route", "get", dst.String()); err != nil {
		return err // without a route there is no socket to send from
	}
	return box.ns.CanPing(dst)
}

// gateway is the address of a machine's VXLAN device of a family.
func (w *World) gateway(f subnet.Family, m *Machine) (netip.Addr, error) {
	r, ok := w.cluster.record(m.name)
	if !ok {
		return netip.Addr{}, fmt.Errorf("%s has no Node", m.name)
	}
	cidr, err := netip.ParsePrefix(r.Half[f].CIDR)
	return cidr.Addr(), err
}

// walk takes a packet through the tables of two fake kernels, as the real one does: route, neighbour, forwarding
// entry, and at the other end the device that listens there; then back.
func walk(w *World, f subnet.Family, from, to *Machine) error {
	if err := w.halfWalk(f, from, to); err != nil {
		return fmt.Errorf("request: %w", err)
	}
	if err := w.halfWalk(f, to, from); err != nil {
		return fmt.Errorf("answer: %w", err)
	}
	return nil
}

func (w *World) halfWalk(f subnet.Family, from, to *Machine) error {
	dst, err := w.gateway(f, to)
	if err != nil {
		return err
	}
	here, err := from.box.Dump(context.Background())
	if err != nil {
		return err
	}
	there, err := to.box.Dump(context.Background())
	if err != nil {
		return err
	}
	route, ok := longest(here, dst)
	if !ok {
		return fmt.Errorf("%s has no route to %s", from.name, dst)
	}
	mac, ok := here.Neighs[kernel.Neigh{Link: route.Link, IP: route.Via}]
	if !ok {
		return fmt.Errorf("%s has no neighbour %s", from.name, route.Via)
	}
	dest, ok := here.FDB[kernel.FDBKey{Link: route.Link, MAC: mac}]
	if !ok {
		return fmt.Errorf("%s has no forwarding entry for %s", from.name, mac)
	}
	port := dest.Port
	if port == 0 {
		port = here.Links[route.Link].Port
	}
	if to.box.Underlay(f).Addr != dest.Dst {
		return fmt.Errorf("%s is not at %s", to.name, dest.Dst)
	}
	for name, l := range there.Links {
		_, addressed := there.Addrs[kernel.Addr{Link: name, Prefix: netip.PrefixFrom(dst, dst.BitLen())}]
		if l.Up && l.Port == port && l.VNI == here.Links[route.Link].VNI && l.MAC == mac && addressed {
			return nil
		}
	}
	return fmt.Errorf("%s has no device for port %d, MAC %s and address %s", to.name, port, mac, dst)
}

// longest is the route that a packet takes.
func longest(s kernel.State, dst netip.Addr) (kernel.Route, bool) {
	best, found := -1, kernel.Route{}
	for k, r := range s.Routes {
		if k.Dst.Contains(dst) && k.Dst.Bits() > best && s.Links[r.Link].Up {
			best, found = k.Dst.Bits(), r
		}
	}
	return found, best >= 0
}
