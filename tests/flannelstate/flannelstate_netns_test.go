package flannelstate_test

import (
	"fmt"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/flannelstate"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
)

// node is node number i of a fabric.
func node(t *testing.T, i int, rules flannelstate.Rules) flannelstate.Node {
	return flannelstate.Node{
		Name: fmt.Sprintf("n%d", i), Network: netip.MustParsePrefix("10.244.0.0/16"),
		PodCIDR: netip.MustParsePrefix(fmt.Sprintf("10.244.%d.0/24", i)), Underlay: "eth0",
		Addr: netip.MustParseAddr(fmt.Sprintf("192.168.50.%d", i)), MAC: fmt.Sprintf("0a:00:00:00:00:%02x", i), VNI: 1,
		Rules: rules, Root: t.TempDir(),
	}
}

// The texts are those of the contract, sections 6.1, 6.2, 7.1 and 7.4.
func TestStartLeavesWhatTheContractSaysFlannelLeaves(t *testing.T) {
	f := nstest.NewFabric(t, 1)
	h, n := f.Nodes[0], node(t, 1, flannelstate.IPTablesNFT)
	start(t, n, h, node(t, 2, flannelstate.IPTablesNFT).Peer())
	link := h.IP("-d link show flannel.1")
	want := "vxlan id 1 local 192.168.50.1 dev eth0 srcport 0 0 dstport 8472 nolearning ttl auto ageing 300 udpcsum noudp6zerocsumtx noudp6zerocsumrx"
	if !strings.Contains(link, want) || !strings.Contains(link, "mtu 1450") {
		t.Errorf("device:\n%s", link)
	}
	for _, c := range []struct{ command, want string }{
		{"ip -4 -br addr show flannel.1", "flannel.1        UNKNOWN        10.244.1.0/32"},
		{"ip route show 10.244.2.0/24", "10.244.2.0/24 via 10.244.2.0 dev flannel.1 onlink"},
		{"ip neigh show dev flannel.1", "10.244.2.0 lladdr 0a:00:00:00:00:02 PERMANENT"},
		{"bridge fdb show dev flannel.1", "0a:00:00:00:00:02 dst 192.168.50.2 self permanent"},
		{"iptables-nft -t nat -S POSTROUTING", `-P POSTROUTING ACCEPT
-A POSTROUTING -m comment --comment "flanneld masq" -j FLANNEL-POSTRTG`},
		{"iptables-nft -t nat -S FLANNEL-POSTRTG", `-N FLANNEL-POSTRTG
-A FLANNEL-POSTRTG -m mark --mark 0x4000/0x4000 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.1.0/24 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.1.0/24 -m comment --comment "flanneld masq" -j RETURN
-A FLANNEL-POSTRTG -s 10.244.0.0/16 ! -d 224.0.0.0/4 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully
-A FLANNEL-POSTRTG ! -s 10.244.0.0/16 -d 10.244.0.0/16 -m comment --comment "flanneld masq" -j MASQUERADE --random-fully`},
		{"iptables-nft -S FORWARD", `-P FORWARD ACCEPT
-A FORWARD -m comment --comment "flanneld forward" -j FLANNEL-FWD`},
		{"iptables-nft -S FLANNEL-FWD", `-N FLANNEL-FWD
-A FLANNEL-FWD -s 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT
-A FLANNEL-FWD -d 10.244.0.0/16 -m comment --comment "flanneld forward" -j ACCEPT`},
	} {
		if d := cmp.Diff(c.want, strings.TrimSpace(h.Run(strings.Fields(c.command)...))); d != "" {
			t.Errorf("%s (-want +got):\n%s", c.command, d)
		}
	}
	n.Rules = flannelstate.NFTables
	start(t, n, h)
	want = `	chain postrtg {
		comment "chain to manage traffic masquerading by flannel"
		type nat hook postrouting priority srcnat; policy accept;
		meta mark 0x00004000 return
		ip saddr 10.244.1.0/24 ip daddr 10.244.0.0/16 return
		ip saddr 10.244.0.0/16 ip daddr 10.244.1.0/24 return
		ip saddr != 10.244.1.0/24 ip daddr 10.244.0.0/16 return
		ip saddr 10.244.0.0/16 ip daddr != 224.0.0.0/4 masquerade fully-random
		ip saddr != 10.244.0.0/16 ip daddr 10.244.0.0/16 masquerade fully-random
	}`
	if got := h.Run("nft", "list", "chain", "ip", "flannel-ipv4", "postrtg"); !strings.Contains(got, want) {
		t.Errorf("want\n%s\ngot\n%s", want, got)
	}
}

func start(t *testing.T, n flannelstate.Node, h flannelstate.Host, peers ...flannelstate.Peer) {
	t.Helper()
	if remade, err := n.Start(h, peers...); err != nil || len(remade) > 0 {
		t.Fatalf("start %s: made anew %v, %v", n.Name, remade, err)
	}
}

// inLane is node number i of a fabric in the families of a lane.
func inLane(t *testing.T, l lane.Lane, i int, rules flannelstate.Rules) flannelstate.Node {
	n := node(t, i, rules)
	six := n
	six.Network, six.PodCIDR = lane.Network(subnet.IPv6), lane.PodCIDR(subnet.IPv6, i)
	six.Addr, six.MAC = netip.MustParseAddr(fmt.Sprintf("fd00:50::%x", i)), fmt.Sprintf("0a:06:00:00:00:%02x", i)
	switch l {
	case lane.Dual:
		n.Also = &six
	case lane.IPv6:
		n = six
	}
	return n
}

func TestTwoFlannelsTalkAndAreJudgedAsFlannels(t *testing.T) {
	l := lane.Of(t)
	for _, rules := range []flannelstate.Rules{flannelstate.IPTablesNFT, flannelstate.IPTablesLegacy, flannelstate.NFTables} {
		fabric := nstest.NewFabric(t, 2)
		n := []flannelstate.Node{inLane(t, l, 1, rules), inLane(t, l, 2, rules)}
		pods := []*nstest.NS{}
		for i, h := range fabric.Nodes {
			var prefixes []netip.Prefix
			var addrs []netip.Addr
			for _, f := range l.Families() {
				cidr := lane.PodCIDR(f, i+1)
				addrs = append(addrs, cidr.Addr().Next().Next())
				prefixes = append(prefixes, netip.PrefixFrom(addrs[len(addrs)-1], cidr.Bits()))
			}
			pods = append(pods, h.Pod(1430, prefixes...))
			for range 2 { // a restart keeps everything
				start(t, n[i], h, n[1-i].Peer())
			}
			if err := n[i].Pod("abc", 1430, addrs...); err != nil {
				t.Fatal(err)
			}
			if got, err := n[i].Judge(h); err != nil || len(got) > 0 {
				t.Errorf("%s: %q, %v", rules, got, err)
			}
		}
		for _, f := range l.Families() {
			nstest.Eventually(t, 20*time.Second, func() error { return pods[0].CanPing(lane.PodCIDR(f, 2).Addr().Next().Next()) })
		}
	}
}

func TestEveryStrangeThingIsFound(t *testing.T) {
	f := nstest.NewFabric(t, 1)
	h, n := f.Nodes[0], node(t, 1, flannelstate.IPTablesNFT)
	start(t, n, h)
	judge := func(want string) {
		t.Helper()
		if got, err := n.Judge(h); err != nil || !strings.Contains(strings.Join(got, "\n"), want) {
			t.Errorf("want %q, got %q, %v", want, got, err)
		}
	}
	h.IP("route add blackhole 10.244.1.0/24 metric 4294967295 proto 87")
	judge("a route that flannel never removes: blackhole 10.244.1.0/24 proto 87")
	h.SetNFT("table inet weft { chain c { }; }")
	judge("a rule that flannel does not know: table inet weft")
	if err := os.WriteFile(n.Path("run/flannel/weft.json"), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	judge("a file that flannel does not know")
	if err := os.WriteFile(n.Path("run/flannel/subnet.env"), []byte("FLANNEL_NETWORK=\"10.244.0.0/16\"\n"), 0o644); err != nil {
		t.Fatal(err)
	}
	judge("subnet.env is missing FLANNEL_MTU")
	judge(`subnet.env: "FLANNEL_NETWORK=`)
	h.Run("iptables-nft", "-t", "nat", "-F", "POSTROUTING")
	judge("pods' packets leave untranslated")
	n.Port = 4789
	judge("the device is made anew: port: 8472 vs 4789")
	if remade, err := n.Start(h); err != nil || len(remade) != 1 {
		t.Errorf("made anew %v, %v", remade, err)
	}
	n.MAC = "0a:00:00:00:00:99"
	judge("the device has the MAC 0a:00:00:00:00:01")
	h.IP("link del flannel.1")
	judge("there is no device flannel.1")
}

func TestTheMACIsReadBackFromOneLayoutOnly(t *testing.T) {
	n := flannelstate.Node{MAC: "0a:00:00:00:00:01", VNI: 1}
	a := n.Annotations()
	if got := flannelstate.MACIn(a); got != n.MAC {
		t.Errorf("read back %q", got)
	}
	a[flannelstate.Prefix+"backend-data"] = `{"VtepMAC": "0a:00:00:00:00:01", "VNI": 1}`
	if got := flannelstate.MACIn(a); got == n.MAC {
		t.Error("a layout that flannel cannot read is read")
	}
}
