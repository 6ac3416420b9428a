package scenario

import (
	"context"
	"fmt"
	"net/netip"
	"strings"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// fakeBox is a machine made of a fake kernel.
type fakeBox struct {
	*kernel.Fake
	addrs []netip.Prefix // underlay addresses
	nics  int            // network cards put in so far
}

func newFakeBox(addrs []netip.Prefix) *fakeBox {
	b := &fakeBox{Fake: kernel.NewFake(), addrs: addrs}
	b.EditHost(func(h *kernel.Host) {
		index := h.Addrs[0].Index
		h.Addrs, h.Routes = nil, nil
		b.number(h, index)
	})
	return b
}

// number gives the network card of an index its addresses, and the routes that come with them.
func (b *fakeBox) number(h *kernel.Host, index int) {
	for _, a := range b.addrs {
		h.Addrs = append(h.Addrs, kernel.HostAddr{Index: index, Prefix: a, Permanent: true})
		h.Routes = append(h.Routes, kernel.HostRoute{
			Dst: a.Masked(), Metric: [2]int{0, 256}[subnet.FamilyOf(a.Addr())], Type: "unicast", Hops: []kernel.Hop{{Index: index}},
		})
	}
}

// Tables implements Box.
func (b *fakeBox) Tables() (Tables, error) {
	s, err := b.Dump(context.Background())
	if err != nil {
		return Tables{}, err
	}
	host, err := b.Host(context.Background())
	if err != nil {
		return Tables{}, err
	}
	var t Tables
	for name, l := range s.Links {
		t.Link = append(t.Link, linkText(name, l, deviceName(host, l.Parent)))
	}
	for a := range s.Addrs {
		t.Addr = append(t.Addr, a.String())
	}
	// The sections of State.String are written as ip and bridge print them, with the kind in front.
	for line := range strings.Lines(s.String()) {
		kind, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		switch kind {
		case "neigh":
			t.Neigh = append(t.Neigh, text)
		case "fdb":
			t.FDB = append(t.FDB, text)
		case "route":
			t.Route = append(t.Route, plain(text))
		}
	}
	return t.sorted(), nil
}

func linkText(name string, l kernel.Link, parent string) string {
	state, learning := "DOWN", "nolearning"
	if l.Up {
		state = "UP"
	}
	if l.Learning {
		learning = "learning"
	}
	return fmt.Sprintf("%s %s mtu %d address %s %s id %d local %s dev %s dstport %d %s",
		name, state, l.MTU, l.MAC, l.Kind, l.VNI, l.Local, parent, l.Port, learning)
}

func deviceName(h kernel.Host, index int) string {
	for _, l := range h.Links {
		if l.Index == index {
			return l.Name
		}
	}
	return ""
}

// Underlay implements Box.
func (b *fakeBox) Underlay(f subnet.Family) Underlay {
	h, err := b.Host(context.Background())
	if err != nil {
		return Underlay{}
	}
	for _, l := range h.Links {
		for _, a := range h.Addrs {
			if l.Name == underlayDevice && a.Index == l.Index && subnet.FamilyOf(a.Prefix.Addr()) == f {
				return Underlay{Device: l.Name, MTU: l.MTU, Addr: a.Prefix.Addr()}
			}
		}
	}
	return Underlay{}
}
