package kernel_test

import (
	"math/rand/v2"
	"net/netip"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// wireGuardManners are scripts for WireGuard devices.
func wireGuardManners(int) []conformanceRow {
	first := ok(linkAdd(wg, wgLink()), addr(kernel.AddrSet, wg, "10.244.1.0/32"), addr(kernel.AddrSet, wg, "fd00:244:1::/128"))
	set := peerSet(wg, pub(2), 2, "10.244.2.0/24", "fd00:244:2::/64")
	peer := ok(set, hop(kernel.RouteSet, wg, "10.244.2.0/24", "", false), hop(kernel.RouteSet, wg, "fd00:244:2::/64", "", false))
	both := then(first, peer...)
	k2, k3 := pub(2).String(), pub(3).String()
	const linkText = "link flannel-wg mtu 1420 state UP wireguard listen-port 51820 private-key (hidden)\n"
	const addrText = "addr 10.244.1.0/32 dev flannel-wg\n" + "addr fd00:244:1::/128 dev flannel-wg\n"
	const routeText = "route 10.244.2.0/24 dev flannel-wg proto 87\n" + "route fd00:244:2::/64 dev flannel-wg proto 87 metric 1024\n"
	peerText := "peer " + k2 + " dev flannel-wg endpoint 192.168.50.2:51820 allowed-ips 10.244.2.0/24,fd00:244:2::/64\n"
	all := linkText + addrText + peerText + routeText
	more := changed(set, func(op *kernel.Op) {
		op.Peer.PSK, op.Peer.Keepalive = subnet.Secret{1, 2, 3}, 25*time.Second
		op.Peer.Endpoint = netip.MustParseAddrPort("[fd00:50::2]:51821")
	})
	rows := []conformanceRow{
		{name: "a WireGuard peer", steps: both, want: all},
		{name: "a WireGuard peer set twice", steps: then(both, peer...), want: all},
		{name: "a WireGuard device cannot be made twice", steps: then(both, step{linkAdd(wg, wgLink()), unix.EEXIST}), want: all},
		{name: "a WireGuard device goes with its peers", steps: then(both, ok(linkDel(wg))...)},
		{name: "a WireGuard device that goes down keeps its peers", steps: then(both, ok(linkSet(wg, with(wgLink(), func(l *kernel.Link) { l.Up = false })))...),
			want: strings.Replace(linkText, "UP", "DOWN", 1) + "addr 10.244.1.0/32 dev flannel-wg\n" + peerText},
		{name: "everything of a WireGuard peer changes in place", steps: then(both, ok(more)...), want: linkText + addrText +
			"peer " + k2 + " dev flannel-wg endpoint [fd00:50::2]:51821 allowed-ips 10.244.2.0/24,fd00:244:2::/64 persistent-keepalive 25 preshared-key (hidden)\n" + routeText},
		{name: "what a WireGuard peer need not have goes again", steps: then(both, ok(more, set)...), want: all},
		{name: "a WireGuard endpoint stays where none is named", steps: then(both, ok(changed(set, func(op *kernel.Op) { op.Peer.Endpoint = netip.AddrPort{} }))...), want: all},
		{name: "a WireGuard peer may have no endpoint yet", steps: then(first, ok(changed(set, func(op *kernel.Op) { op.Peer.Endpoint = netip.AddrPort{} }))...),
			want: linkText + addrText + strings.Replace(peerText, " endpoint 192.168.50.2:51820", "", 1)},
		{name: "key, port and MTU of a WireGuard device change on the living device", steps: then(both, ok(linkSet(wg, with(wgLink(), func(l *kernel.Link) {
			l.Key, l.Port, l.MTU = secret(7), 51999, 1380
		})))...), want: strings.NewReplacer("51820 private", "51999 private", "1420", "1380").Replace(all)},
		{name: "a range goes from the old key to the new", steps: then(both, ok(peerSet(wg, pub(3), 2, "10.244.2.0/24", "fd00:244:2::/64"))...),
			want: linkText + addrText + "peer " + k2 + " dev flannel-wg endpoint 192.168.50.2:51820\n" + strings.Replace(peerText, k2, k3, 1) + routeText},
		{name: "a range becomes nobody's and the other stays", steps: then(both, ok(rangeDel(wg, pub(2), "fd00:244:2::/64"), rangeDel(wg6, pub(2), "fd00:244:2::/64"))...),
			want: linkText + addrText + strings.Replace(peerText, ",fd00:244:2::/64", "", 1) + routeText},
		{name: "a range stays until it is taken away", steps: then(both, ok(peerSet(wg, pub(2), 2, "10.244.3.0/24"))...),
			want: linkText + addrText + strings.TrimSpace(peerText) + " and 1 more\n" + routeText},
		{name: "a range moves on", steps: then(both, ok(peerSet(wg, pub(2), 2, "10.244.3.0/24"), rangeDel(wg, pub(2), "10.244.2.0/24"))...),
			want: linkText + addrText + strings.Replace(peerText, "10.244.2", "10.244.3", 1) + routeText},
		{name: "ranges that nobody knows are replaced", steps: then(both, ok(peerSet(wg, pub(2), 2, "10.244.3.0/24"),
			changed(set, func(op *kernel.Op) { op.PeerWas.More = 1 }))...), want: all},
		{name: "removing a WireGuard peer that is not there is success", steps: then(first, ok(peerDel(wg, pub(2)), peerDel(wg6, pub(2)))...), want: linkText + addrText},
		{name: "a WireGuard peer is removed", steps: then(first, ok(set, peerDel(wg, pub(2)))...), want: linkText + addrText},
		{name: "no WireGuard peer without its device", steps: []step{{set, unix.ENODEV}}},
		{name: "another WireGuard device has the port", steps: then(first, step{linkAdd(wg6, wgLink()), kernel.ErrPortTaken},
			step{op: linkAdd(wg6, with(wgLink(), func(l *kernel.Link) { l.Port = 51821 }))}, step{linkSet(wg6, wgLink()), kernel.ErrPortTaken}),
			want: linkText + strings.NewReplacer("wg", "wg-v6", "51820", "51821").Replace(linkText) + addrText},
	}
	for i := range rows {
		rows[i].kinds = []string{kernel.KindWireGuard}
	}
	return rows
}

// tunnelManners are scripts for devices that pack IP into IP, for routes past all devices, and for routes that go from one
// kind of device to another.
func tunnelManners(parent int) []conformanceRow {
	t4, t6 := tunLink(subnet.IPv4), tunLink(subnet.IPv6)
	v4 := ok(linkAdd(tun, t4), addr(kernel.AddrSet, tun, "10.244.1.0/32"), hop(kernel.RouteSet, tun, "10.244.2.0/24", "192.168.50.2", true))
	v6 := ok(linkAdd(tun6, t6), addr(kernel.AddrSet, tun6, "fd00:244:1::/128"), hop(kernel.RouteSet, tun6, "fd00:244:2::/64", "fd00:50::2", false))
	const link4 = "link flannel.ipip mtu 1480 state UP ipip remote any local 192.168.50.1 ttl inherit nopmtudisc\n"
	const link6Text = "link flannel-v6.ipip mtu 1460 state UP ip6tnl mode ip6ip6 remote any local fd00:50::1 encaplimit none\n"
	const addr4, addr6 = "addr 10.244.1.0/32 dev flannel.ipip\n", "addr fd00:244:1::/128 dev flannel-v6.ipip\n"
	const route4 = "route 10.244.2.0/24 via 192.168.50.2 dev flannel.ipip proto 87 onlink\n"
	const route6 = "route fd00:244:2::/64 via fd00:50::2 dev flannel-v6.ipip proto 87 metric 1024\n"
	direct4, direct6 := hop(kernel.RouteSet, "eth0", "10.244.2.0/24", "192.168.50.2", false), hop(kernel.RouteSet, "eth0", "fd00:244:2::/64", "fd00:50::2", false)
	const directText = "route 10.244.2.0/24 via 192.168.50.2 dev eth0 proto 87\n" + "route fd00:244:2::/64 via fd00:50::2 dev eth0 proto 87 metric 1024\n"
	smaller := func(l *kernel.Link) { l.MTU = 1400 }
	tunnels := []string{kernel.KindIPIP, kernel.KindIP6Tnl}
	every := append([]string{kernel.KindWireGuard}, tunnels...)
	move6 := ok(linkAdd(dev6, link6(parent)), linkAdd(wg6, wgLink()), linkAdd(tun6, t6), direct6)
	vx6 := route(kernel.RouteSet, dev6, "fd00:244:2::/64", "fd00:244:2::")
	wg6Route := hop(kernel.RouteSet, wg6, "fd00:244:2::/64", "", false)
	for _, op := range []kernel.Op{vx6, direct6, wg6Route, vx6, v6[2].op, vx6, wg6Route, direct6, v6[2].op, wg6Route, v6[2].op, direct6, vx6} {
		move6 = then(move6, step{op: replaced(op)})
	}
	move4 := ok(linkAdd(dev, link(parent)), linkAdd(wg, wgLink()), linkAdd(tun, t4), direct4)
	vx4 := route(kernel.RouteSet, dev, "10.244.2.0/24", "10.244.2.0")
	wg4Route := hop(kernel.RouteSet, wg, "10.244.2.0/24", "", false)
	for _, op := range []kernel.Op{vx4, direct4, wg4Route, vx4, v4[2].op, vx4, wg4Route, direct4, v4[2].op, wg4Route, v4[2].op, direct4, vx4} {
		move4 = then(move4, step{op: replaced(op)})
	}
	const vxlan4 = "link flannel.1 mtu 1450 state UP address 0a:00:00:00:00:01 vxlan id 1 dev if2 local 192.168.50.1 dstport 8472 nolearning\n"
	const vxlan6 = "link flannel-v6.1 mtu 1430 state UP address 0a:00:00:00:00:61 vxlan id 1 dev if2 local fd00:50::1 dstport 8472 nolearning\n"
	return []conformanceRow{
		{name: "IP in IP", steps: then(v4, v6...), want: link6Text + link4 + addr6 + addr4 + route4 + route6, kinds: tunnels},
		{name: "IP in IP set twice", steps: then(then(v4, v6...), v4[1], v4[2], v6[1], v6[2]), want: link6Text + link4 + addr6 + addr4 + route4 + route6, kinds: tunnels},
		{name: "a tunnel goes with all that is on it", steps: then(v4, ok(linkDel(tun))...), kinds: tunnels},
		{name: "a tunnel's MTU changes in place", steps: then(then(v4, v6...), ok(linkSet(tun, with(t4, smaller)), linkSet(tun6, with(t6, smaller)))...),
			want: strings.NewReplacer("1480", "1400", "1460", "1400").Replace(link6Text+link4) + addr6 + addr4 + route4 + route6, kinds: tunnels},
		{name: "a tunnel that goes down", steps: then(then(v4, v6...), ok(linkSet(tun, with(t4, func(l *kernel.Link) { l.Up = false })), linkSet(tun6, with(t6, func(l *kernel.Link) { l.Up = false })))...),
			want: strings.ReplaceAll(link6Text+link4, "UP", "DOWN") + addr4, kinds: tunnels},
		{name: "a route past all devices", steps: ok(direct4, direct6, direct4), want: directText},
		{name: "a route past all devices is removed", steps: ok(direct4, direct6, hop(kernel.RouteDel, "eth0", "10.244.2.0/24", "192.168.50.2", false),
			hop(kernel.RouteDel, "eth0", "fd00:244:2::/64", "fd00:50::2", false), hop(kernel.RouteDel, "eth0", "10.244.2.0/24", "192.168.50.2", false))},
		{name: "a router that is not on the link", steps: []step{
			{hop(kernel.RouteSet, "eth0", "10.244.2.0/24", "192.168.77.2", false), kernel.ErrNotOnLink},
			{hop(kernel.RouteSet, "eth0", "fd00:244:2::/64", "fd00:77::2", false), kernel.ErrNotOnLink},
			{hop(kernel.RouteSet, "eth9", "10.244.2.0/24", "192.168.50.2", false), unix.ENODEV},
		}},
		{name: "a route comes back from the underlay to VXLAN", steps: ok(linkAdd(dev, link(parent)), linkAdd(dev6, link6(parent)), direct4, direct6, replaced(vx4), replaced(vx6)),
			want: vxlan6 + vxlan4 + "route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink\n" +
				"route fd00:244:2::/64 via fd00:244:2:: dev flannel-v6.1 proto 87 metric 1024 onlink\n"},
		{name: "a route walks over all kinds of device", steps: move4, kinds: every,
			want: "link flannel-wg mtu 1420 state UP wireguard listen-port 51820 private-key (hidden)\n" + vxlan4 + link4 +
				"route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink\n"},
		{name: "an IPv6 route walks over all kinds of device", steps: move6, kinds: every,
			want: vxlan6 + link6Text + "link flannel-wg-v6 mtu 1420 state UP wireguard listen-port 51820 private-key (hidden)\n" +
				"route fd00:244:2::/64 via fd00:244:2:: dev flannel-v6.1 proto 87 metric 1024 onlink\n"},
	}
}

// randomKindOp is randomOp for the other kinds of device.
func randomKindOp(r *rand.Rand, _ int) kernel.Op {
	f := subnet.Family(r.IntN(2))
	cidr := podCIDR(f, r.IntN(4))
	key := pub(byte(2 + r.IntN(3)))
	device := []string{kernel.WireGuardName(f), kernel.WireGuardName(f), kernel.TunnelName(f)}[r.IntN(3)]
	l := tunLink(f)
	if device == kernel.WireGuardName(f) {
		l = with(wgLink(), func(l *kernel.Link) { l.Key, l.Port = secret(byte(r.IntN(2))), uint16(51820+r.IntN(3)) })
	}
	l.MTU -= 20 * r.IntN(3)
	own := netip.PrefixFrom(cidr.Addr(), cidr.Addr().BitLen()).String()
	set := kernel.OpKind(kernel.RouteSet)
	if r.IntN(3) == 0 {
		set = kernel.RouteDel
	}
	switch r.IntN(12) {
	case 0, 1:
		return linkAdd(device, l)
	case 2:
		l.Up = r.IntN(4) > 0
		return linkSet(device, l)
	case 3:
		if r.IntN(3) == 0 {
			return linkDel(device)
		}
		return addr(kernel.AddrSet, device, own)
	case 4:
		return addr([]kernel.OpKind{kernel.AddrSet, kernel.AddrDel}[r.IntN(2)], device, own)
	case 5, 6:
		return peerSet(kernel.WireGuardName(f), key, r.IntN(4), cidr.String(), podCIDR(1-f, r.IntN(4)).String())
	case 7:
		return peerDel(kernel.WireGuardName(f), key)
	case 8:
		return rangeDel(kernel.WireGuardName(f), key, cidr.String())
	case 9:
		return hop(set, kernel.WireGuardName(f), cidr.String(), "", false)
	case 10:
		return hop(set, kernel.TunnelName(f), cidr.String(), underlay(f, 2+r.IntN(2)).String(), f == subnet.IPv4)
	}
	return hop(set, "eth0", cidr.String(), underlay(f, 2+r.IntN(2)).String(), false)
}
