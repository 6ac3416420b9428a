package kernel_test

import (
	"math/rand/v2"
	"net/netip"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// A small world, that of a Fake as it starts: the underlay device is eth0 with 192.168.50.1 and fd00:50::1.
const (
	dev  = "flannel.1"
	dev6 = "flannel-v6.1"
	wg   = "flannel-wg"
	wg6  = "flannel-wg-v6"
	tun  = "flannel.ipip"
	tun6 = "flannel-v6.ipip"
)

func mac(last byte) subnet.MAC { return subnet.MAC{0x0a, 0, 0, 0, 0, last} }

func link(parent int) kernel.Link {
	return kernel.Link{
		Kind: "vxlan", VNI: 1, Local: netip.MustParseAddr("192.168.50.1"), Port: 8472, Parent: parent, MTU: 1450, MAC: mac(1), Up: true,
	}
}

func link6(parent int) kernel.Link {
	l := link(parent)
	l.Local, l.MTU, l.MAC = netip.MustParseAddr("fd00:50::1"), 1430, mac(0x61)
	return l
}

// with returns a changed copy.
func with(l kernel.Link, change func(l *kernel.Link)) kernel.Link {
	change(&l)
	return l
}

func linkAdd(name string, l kernel.Link) kernel.Op {
	return kernel.Op{Kind: kernel.LinkAdd, Name: name, Link: l}
}

func linkSet(name string, l kernel.Link) kernel.Op {
	return kernel.Op{Kind: kernel.LinkSet, Name: name, Link: l}
}

func linkDel(name string) kernel.Op { return kernel.Op{Kind: kernel.LinkDel, Name: name} }

func addr(kind kernel.OpKind, link, prefix string) kernel.Op {
	return kernel.Op{Kind: kind, Addr: kernel.Addr{Link: link, Prefix: netip.MustParsePrefix(prefix)}}
}

func neigh(kind kernel.OpKind, link, ip string, m subnet.MAC) kernel.Op {
	return kernel.Op{Kind: kind, Neigh: kernel.Neigh{Link: link, IP: netip.MustParseAddr(ip)}, MAC: m}
}

func fdb(kind kernel.OpKind, link string, m subnet.MAC, dst string, port uint16) kernel.Op {
	return kernel.Op{
		Kind: kind, FDBKey: kernel.FDBKey{Link: link, MAC: m}, Replace: true,
		FDB: kernel.FDBDest{Dst: netip.MustParseAddr(dst), Port: port},
	}
}

func route(kind kernel.OpKind, link, dst, via string) kernel.Op {
	p := netip.MustParsePrefix(dst)
	k := kernel.RouteKey{Dst: p}
	if p.Addr().Is6() {
		k.Metric = 1024
	}
	r := kernel.Route{Link: link, Via: netip.MustParseAddr(via), Onlink: true, Ours: true, Type: "unicast"}
	return kernel.Op{Kind: kind, Key: k, Route: r}
}

// worldState draws a state that a cluster could want: up to seven peers, one or two families, two VNIs, two ports,
// two underlay devices.
func worldState(r *rand.Rand, parents ...int) kernel.State {
	s := kernel.New()
	s.Networks = [2]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:244::/56")}
	vni := uint32(1 + r.IntN(2))
	base := with(link(parents[r.IntN(len(parents))]), func(l *kernel.Link) {
		l.VNI, l.Port, l.GBP = vni, uint16(8472+r.IntN(2)), r.IntN(4) == 0
		l.Learning, l.MTU = r.IntN(4) == 0, 1400+r.IntN(2)*50
	})
	own := r.IntN(8)
	families := subnet.Families()
	for _, f := range families[:1+r.IntN(2)] {
		addFamily(r, s, f, base, own)
	}
	return s
}

func addFamily(r *rand.Rand, s kernel.State, f subnet.Family, l kernel.Link, own int) {
	name, metric := kernel.DeviceName(f, l.VNI), 0
	l.MAC = mac(byte(1 + r.IntN(3)))
	if f == subnet.IPv6 {
		l.Local, l.MTU, metric = netip.MustParseAddr("fd00:50::1"), l.MTU-20, 1024
	}
	s.Links[name] = l
	for i := range 8 {
		cidr := podCIDR(f, i)
		gateway := cidr.Addr()
		if i == own {
			s.Addrs[kernel.Addr{Link: name, Prefix: netip.PrefixFrom(gateway, gateway.BitLen())}] = struct{}{}
			continue
		}
		if r.IntN(3) == 0 {
			continue
		}
		m := mac(byte(10 + i + 10*r.IntN(2)))
		s.Neighs[kernel.Neigh{Link: name, IP: gateway}] = m
		s.FDB[kernel.FDBKey{Link: name, MAC: m}] = kernel.FDBDest{Dst: underlay(f, 10+r.IntN(20)), Port: []uint16{0, 4789}[r.IntN(2)]}
		s.Routes[kernel.RouteKey{Dst: cidr, Metric: metric}] = kernel.Route{Link: name, Via: gateway, Onlink: true, Ours: true, Type: "unicast"}
	}
}

func podCIDR(f subnet.Family, i int) netip.Prefix {
	if f == subnet.IPv4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, byte(i), 0}), 24)
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 2: 2, 3: 0x44, 7: byte(i)}), 64)
}

func underlay(f subnet.Family, i int) netip.Addr {
	if f == subnet.IPv4 {
		return netip.AddrFrom4([4]byte{192, 168, 50, byte(i)})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x50, 15: byte(i)})
}

// replaced marks an Op as one on a key that is ours.
func replaced(op kernel.Op) kernel.Op {
	op.Replace, op.RouteWas.Ours = true, true
	return op
}

// secret is a private key as the kernel keeps it.
func secret(last byte) subnet.Secret { return subnet.Secret{0: 8, 30: last, 31: 64} }

func pub(last byte) subnet.Key { return subnet.Key{0: 9, 30: last, 31: 1} }

func wgLink() kernel.Link {
	return kernel.Link{Kind: kernel.KindWireGuard, Port: 51820, MTU: 1420, Key: secret(1), Up: true}
}

func tunLink(f subnet.Family) kernel.Link {
	l := kernel.Link{Kind: kernel.TunnelKind(f), Local: underlay(f, 1), MTU: 1480, Up: true}
	if f == subnet.IPv6 {
		l.MTU = 1460
	}
	return l
}

// peerSet makes peer number i the owner of pod ranges.
func peerSet(link string, key subnet.Key, i int, ranges ...string) kernel.Op {
	p := kernel.WGPeer{Endpoint: netip.AddrPortFrom(underlay(subnet.IPv4, i), 51820)}
	for _, r := range ranges {
		prefix := netip.MustParsePrefix(r)
		p.Allowed[subnet.FamilyOf(prefix.Addr())] = prefix
	}
	return kernel.Op{Kind: kernel.PeerSet, PeerKey: kernel.WGKey{Link: link, Key: key}, Peer: p}
}

func peerDel(link string, key subnet.Key) kernel.Op {
	return kernel.Op{Kind: kernel.PeerDel, PeerKey: kernel.WGKey{Link: link, Key: key}}
}

func rangeDel(link string, key subnet.Key, r string) kernel.Op {
	return kernel.Op{Kind: kernel.RangeDel, PeerKey: kernel.WGKey{Link: link, Key: key}, Range: netip.MustParsePrefix(r)}
}

// changed returns a changed copy of an Op.
func changed(op kernel.Op, change func(op *kernel.Op)) kernel.Op {
	change(&op)
	return op
}

// hop is a route of ours with or without a gateway.
func hop(kind kernel.OpKind, link, dst, via string, onlink bool) kernel.Op {
	op := route(kind, link, dst, "::")
	op.Route.Via, op.Route.Onlink = netip.Addr{}, onlink
	if via != "" {
		op.Route.Via = netip.MustParseAddr(via)
	}
	return op
}
