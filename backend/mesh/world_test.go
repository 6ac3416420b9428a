package mesh_test

import (
	"net/netip"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/backend/wireguard"
	"github.com/weft-cni/weft/subnet"
)

// noon is when the tests' clocks start.
func noon() time.Time { return time.Date(2026, 11, 30, 12, 0, 0, 0, time.UTC) }

func prefix(f subnet.Family, i byte) netip.Prefix {
	if f == subnet.IPv4 {
		return netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 0}), 24)
	}
	return netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x10, 4: 2, 5: 0x44, 7: i}), 64)
}

func public(f subnet.Family, i byte) netip.Addr {
	if f == subnet.IPv4 {
		return netip.AddrFrom4([4]byte{192, 168, 50, i})
	}
	return netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x50, 15: i})
}

func mac(f subnet.Family, i byte) subnet.MAC { return subnet.MAC{0x0a + 4*byte(f), 0, 0, 0, 0, i} }

// secret differs from others in bits that count: X25519 passes over the lowest three of the first byte.
func secret(i byte) subnet.Secret { return subnet.Secret{1: i, 31: 0x40} }

func networks() [2]netip.Prefix {
	return [2]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")}
}

// config is node i of a dual-stack cluster, able to speak every kind.
func config(i byte, kind string) mesh.Config {
	c := mesh.Config{
		Kind: kind, Networks: networks(),
		VXLAN: mesh.VXLAN{VNI: 1, Port: 4789},
		WireGuard: mesh.WireGuard{
			Key: secret(i), Conf: subnet.WireGuardConf{Ports: [2]uint16{51820, 51821}, Mode: subnet.ModeSeparate},
		},
	}
	for _, f := range subnet.Families() {
		c.Ends[f] = mesh.End{PodCIDR: prefix(f, i), Local: public(f, i), Parent: 2, ParentName: "eth0", UnderlayMTU: 1500}
		c.VXLAN.MACs[f] = mac(f, i)
	}
	return c
}

// only switches the other family off.
func only(f subnet.Family, c mesh.Config) mesh.Config {
	c.Ends[1-f] = mesh.End{}
	return c
}

// peer is node i of that cluster as others see it.
func peer(i byte, kind string, also ...string) subnet.Peer {
	p := subnet.Peer{
		Name: "n" + string('0'+rune(i)), BackendType: kind, Also: subnet.KindsOf(also...), VNI: 1, Port: 4789,
		Key: wireguard.PublicKey(secret(i)), WGPorts: [2]uint16{51820, 51821},
	}
	for _, f := range subnet.Families() {
		p.Endpoints[f] = subnet.Endpoint{PodCIDR: prefix(f, i), PublicIP: public(f, i), MAC: mac(f, i)}
	}
	return p
}

// changed returns a peer with one family's endpoint changed.
func changed(p subnet.Peer, f subnet.Family, change func(e *subnet.Endpoint)) subnet.Peer {
	change(&p.Endpoints[f])
	return p
}

// lan is a host with one NIC on the nodes' link, and a gateway to the rest.
func lan() kernel.Host {
	route := func(dst, via string) kernel.HostRoute {
		r := kernel.HostRoute{Dst: netip.MustParsePrefix(dst), Type: "unicast", Hops: []kernel.Hop{{Index: 2}}}
		if via != "" {
			r.Hops[0].Via = netip.MustParseAddr(via)
		}
		return r
	}
	return kernel.Host{
		Links: []kernel.HostLink{{Index: 2, Name: "eth0", Kind: "device", MTU: 1500, Up: true, Carrier: true}},
		Routes: []kernel.HostRoute{
			route("0.0.0.0/0", "192.168.50.254"), route("192.168.50.0/24", ""),
			route("::/0", "fd00:50::fe"), route("fd00:50::/64", ""),
		},
	}
}

// input is a plan's for a newcomer.
func input(c mesh.Config, peers ...subnet.Peer) mesh.Input {
	return mesh.Input{Config: c, Snapshot: subnet.Snapshot{Peers: peers}, Host: lan(), Have: kernel.New(), Now: noon()}
}
