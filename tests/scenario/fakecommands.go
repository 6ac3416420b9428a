package scenario

import (
	"context"
	"fmt"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// Do implements Box: it knows the commands of the stories, and no other.
func (b *fakeBox) Do(command string) error {
	w := slices.DeleteFunc(strings.Fields(command), func(word string) bool { return word == "-6" })
	dev := after(w, "dev")
	if len(w) > 3 && w[1] == "link" {
		dev = w[3]
	}
	known := false
	for _, c := range commands() {
		if !c.matches(w) {
			continue
		}
		known = true
		if err := c.run(b, w, dev); err != nil {
			return fmt.Errorf("%s: %w", command, err)
		}
	}
	if !known {
		return fmt.Errorf("%s: the fake kernel does not know this command", command)
	}
	return nil
}

// after is the word that follows a word.
func after(words []string, name string) string {
	i := slices.Index(words, name)
	if i < 0 || i+1 >= len(words) {
		return ""
	}
	return words[i+1]
}

// command is one that a fakeBox understands: words that are to be there in this order, "*" for any.
type command struct {
	words string
	run   func(b *fakeBox, w []string, dev string) error
}

func (c command) matches(w []string) bool {
	want := strings.Fields(c.words)
	if len(w) < len(want) {
		return false
	}
	for i, word := range want {
		if word != "*" && word != w[i] && !(word == "flannel" && strings.HasPrefix(w[i], word)) {
			return false
		}
	}
	return true
}

func commands() []command {
	edit := func(change func(s *kernel.State, w []string, dev string) error) func(*fakeBox, []string, string) error {
		return func(b *fakeBox, w []string, dev string) error {
			var err error
			b.Edit(func(s *kernel.State) {
				if _, ok := s.Links[dev]; !ok && dev != "" {
					err = fmt.Errorf("cannot find device %q", dev)
					return
				}
				err = change(s, w, dev)
			})
			return err
		}
	}
	return []command{
		{"unplug", (*fakeBox).unplug},
		{"plug", (*fakeBox).plug},
		{"ip link del *", func(b *fakeBox, _ []string, dev string) error {
			return b.Meddle(kernel.Op{Kind: kernel.LinkDel, Name: dev})
		}},
		{"ip link set *", (*fakeBox).setLink},
		{"ip addr *", (*fakeBox).setAddr},
		{"ip route flush dev *", edit(func(s *kernel.State, _ []string, dev string) error {
			maps.DeleteFunc(s.Routes, func(_ kernel.RouteKey, r kernel.Route) bool { return r.Link == dev })
			return nil
		})},
		{"ip route del *", edit(func(s *kernel.State, w []string, _ string) error { return delRoute(s, w[3]) })},
		{"ip route replace * via * dev eth0", (*fakeBox).hostRoute},
		{"ip route replace * via * dev flannel", edit(setRoute)},
		{"ip neigh flush dev * nud permanent", edit(func(s *kernel.State, _ []string, dev string) error {
			maps.DeleteFunc(s.Neighs, func(n kernel.Neigh, _ subnet.MAC) bool { return n.Link == dev })
			return nil
		})},
		{"ip neigh del *", edit(func(s *kernel.State, w []string, dev string) error {
			ip, err := netip.ParseAddr(w[3])
			delete(s.Neighs, kernel.Neigh{Link: dev, IP: ip})
			return err
		})},
		{"ip neigh replace *", edit(setNeigh)},
		{"bridge fdb * *", edit(setFDB)},
	}
}

func delRoute(s *kernel.State, dst string) error {
	p, err := netip.ParsePrefix(dst)
	delete(s.Routes, routeKey(p))
	return err
}

// routeKey is the key of a route that says no metric.
func routeKey(dst netip.Prefix) kernel.RouteKey {
	if dst.Addr().Is6() {
		return kernel.RouteKey{Dst: dst, Metric: 1024}
	}
	return kernel.RouteKey{Dst: dst}
}

// hostRoute is "ip route replace DST via GATEWAY dev eth0", which takes the place of one of ours.
func (b *fakeBox) hostRoute(w []string, dev string) error {
	dst, err := netip.ParsePrefix(w[3])
	if err != nil {
		return err
	}
	via, err := netip.ParseAddr(w[5])
	key := routeKey(dst)
	b.Edit(func(s *kernel.State) { delete(s.Routes, key) })
	b.EditHost(func(h *kernel.Host) {
		i := slices.IndexFunc(h.Links, func(l kernel.HostLink) bool { return l.Name == dev })
		if i < 0 {
			return
		}
		h.Routes = slices.DeleteFunc(h.Routes, func(r kernel.HostRoute) bool { return r.Dst == dst && r.Metric == key.Metric })
		h.Routes = append(h.Routes, kernel.HostRoute{
			Dst: dst, Metric: key.Metric, Type: "unicast", Hops: []kernel.Hop{{Index: h.Links[i].Index, Via: via}}, ByHand: true,
		})
	})
	return err
}

// setRoute is "ip route replace DST via GATEWAY dev DEV onlink [proto N]".
func setRoute(s *kernel.State, w []string, dev string) error {
	dst, err := netip.ParsePrefix(w[3])
	if err != nil {
		return err
	}
	via, err := netip.ParseAddr(after(w, "via"))
	s.Routes[routeKey(dst)] = kernel.Route{
		Link: dev, Via: via, Onlink: slices.Contains(w, "onlink"), Type: "unicast",
		Ours: after(w, "proto") == strconv.Itoa(kernel.Protocol),
	}
	return err
}

// setNeigh is "ip neigh replace ADDR lladdr MAC dev DEV nud permanent".
func setNeigh(s *kernel.State, w []string, dev string) error {
	ip, err := netip.ParseAddr(w[3])
	if err != nil {
		return err
	}
	mac, err := subnet.ParseMAC(after(w, "lladdr"))
	s.Neighs[kernel.Neigh{Link: dev, IP: ip}] = mac
	return err
}

// setFDB is "bridge fdb del|replace|append MAC dev DEV dst ADDR".
func setFDB(s *kernel.State, w []string, dev string) error {
	mac, err := subnet.ParseMAC(w[3])
	if err != nil {
		return err
	}
	key := kernel.FDBKey{Link: dev, MAC: mac}
	if w[2] == "del" {
		delete(s.FDB, key)
		return nil
	}
	dst, err := netip.ParseAddr(after(w, "dst"))
	dest := s.FDB[key]
	if w[2] == "append" && dest.Dst.IsValid() {
		dest.More++
	} else {
		dest = kernel.FDBDest{Dst: dst}
	}
	s.FDB[key] = dest
	return err
}

// setLink is "ip link set DEV up|down|mtu N|address MAC", for our device and for eth0.
func (b *fakeBox) setLink(w []string, dev string) error {
	if dev == underlayDevice {
		b.EditHost(func(h *kernel.Host) {
			for i := range h.Links {
				if h.Links[i].Name == dev {
					h.Links[i].Up = !slices.Contains(w, "down")
					h.Links[i].MTU = numberAfter(w, "mtu", h.Links[i].MTU)
				}
			}
		})
		return nil
	}
	have, err := b.Dump(context.Background())
	if err != nil {
		return err
	}
	l, ok := have.Links[dev]
	if !ok {
		return fmt.Errorf("no device %s", dev)
	}
	switch w[4] {
	case "up", "down":
		l.Up = w[4] == "up"
	case "mtu":
		l.MTU = numberAfter(w, "mtu", l.MTU)
	case "address":
		mac, err := subnet.ParseMAC(w[5])
		if err != nil {
			return err
		}
		l.MAC = mac
	}
	return b.Meddle(kernel.Op{Kind: kernel.LinkSet, Name: dev, Link: l})
}

func numberAfter(w []string, name string, otherwise int) int {
	n, err := strconv.Atoi(after(w, name))
	if err != nil {
		return otherwise
	}
	return n
}

// setAddr is "ip addr add|del PREFIX dev DEV", for our device and for eth0.
func (b *fakeBox) setAddr(w []string, dev string) error {
	p, err := netip.ParsePrefix(w[3])
	if err != nil {
		return err
	}
	if dev != underlayDevice {
		kind := kernel.AddrSet
		if w[2] == "del" {
			kind = kernel.AddrDel
		}
		return b.Meddle(kernel.Op{Kind: kind, Addr: kernel.Addr{Link: dev, Prefix: p}})
	}
	b.EditHost(func(h *kernel.Host) {
		i := slices.IndexFunc(h.Links, func(l kernel.HostLink) bool { return l.Name == dev })
		if i < 0 {
			return
		}
		has := func(a kernel.HostAddr) bool { return a.Prefix == p }
		if w[2] == "del" {
			h.Addrs = slices.DeleteFunc(h.Addrs, has)
			return
		}
		if slices.ContainsFunc(h.Addrs, has) {
			return
		}
		h.Addrs = append(h.Addrs, kernel.HostAddr{Index: h.Links[i].Index, Prefix: p, Permanent: true})
	})
	return nil
}

// unplug takes eth0 away, and with it what hangs on it.
func (b *fakeBox) unplug([]string, string) error {
	b.EditHost(func(h *kernel.Host) {
		h.Links = slices.DeleteFunc(h.Links, func(l kernel.HostLink) bool { return l.Name == underlayDevice })
		h.Addrs, h.Routes = nil, nil
	})
	return nil
}

// plug puts a new eth0 in, with an index of its own.
func (b *fakeBox) plug([]string, string) error {
	b.nics++
	index := 1000 + b.nics // no card has the index of another
	b.EditHost(func(h *kernel.Host) {
		h.Links = append(h.Links, kernel.HostLink{Index: index, Name: underlayDevice, Kind: "device", MTU: 1500, Up: true, Carrier: true})
		b.number(h, index)
	})
	return nil
}
