package vxlan_test

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/vxlan"
	"github.com/weft-cni/weft/subnet"
)

// config is node 1 of a cluster in both families.
func config() vxlan.Config {
	return vxlan.Config{
		VNI: 1, Port: 4789,
		Networks: [2]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/56")},
		VTEPs: [2]vxlan.VTEP{
			{
				PodCIDR: netip.MustParsePrefix("10.244.1.0/24"), Local: netip.MustParseAddr("192.168.50.1"),
				Parent: 2, ParentName: "eth0", UnderlayMTU: 1500, MAC: subnet.MAC{0x0a, 0, 0, 0, 0, 1},
			},
			{
				PodCIDR: netip.MustParsePrefix("fd00:10:244:1::/64"), Local: netip.MustParseAddr("fd00:50::1"),
				Parent: 2, ParentName: "eth0", UnderlayMTU: 1500, MAC: subnet.MAC{0x0e, 0, 0, 0, 0, 1},
			},
		},
	}
}

// v4 switches IPv6 off.
func v4(c vxlan.Config) vxlan.Config {
	c.VTEPs[subnet.IPv6] = vxlan.VTEP{}
	return c
}

// peer is node i of that cluster, announcing port 4789.
func peer(i byte) subnet.Peer {
	return subnet.Peer{
		Name: "n" + string('0'+rune(i)), BackendType: "vxlan", VNI: 1, Port: 4789,
		Endpoints: [2]subnet.Endpoint{
			{
				PodCIDR:  netip.PrefixFrom(netip.AddrFrom4([4]byte{10, 244, i, 0}), 24),
				PublicIP: netip.AddrFrom4([4]byte{192, 168, 50, i}), MAC: subnet.MAC{0x0a, 0, 0, 0, 0, i},
			},
			{
				PodCIDR:  netip.PrefixFrom(netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x10, 4: 2, 5: 0x44, 7: i}), 64),
				PublicIP: netip.AddrFrom16([16]byte{0: 0xfd, 3: 0x50, 15: i}), MAC: subnet.MAC{0x0e, 0, 0, 0, 0, i},
			},
		},
	}
}

// changed returns a peer with one family's endpoint changed.
func changed(p subnet.Peer, f subnet.Family, change func(e *subnet.Endpoint)) subnet.Peer {
	change(&p.Endpoints[f])
	return p
}

func snapshot(peers ...subnet.Peer) subnet.Snapshot { return subnet.Snapshot{Peers: peers} }

func TestPlanIsWhatFlannelWritesWithTheOverheadOfEachFamily(t *testing.T) {
	got, err := vxlan.Plan(config(), snapshot(peer(2)))
	if err != nil {
		t.Fatal(err)
	}
	want := `link flannel-v6.1 mtu 1430 state UP address 0e:00:00:00:00:01 vxlan id 1 dev if2 local fd00:50::1 dstport 4789 nolearning
link flannel.1 mtu 1450 state UP address 0a:00:00:00:00:01 vxlan id 1 dev if2 local 192.168.50.1 dstport 4789 nolearning
addr fd00:10:244:1::/128 dev flannel-v6.1
addr 10.244.1.0/32 dev flannel.1
neigh fd00:10:244:2:: dev flannel-v6.1 lladdr 0e:00:00:00:00:02 PERMANENT
neigh 10.244.2.0 dev flannel.1 lladdr 0a:00:00:00:00:02 PERMANENT
fdb 0e:00:00:00:00:02 dev flannel-v6.1 dst fd00:50::2 self permanent
fdb 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.2 self permanent
route 10.244.2.0/24 via 10.244.2.0 dev flannel.1 proto 87 onlink
route fd00:10:244:2::/64 via fd00:10:244:2:: dev flannel-v6.1 proto 87 metric 1024 onlink
`
	if d := cmp.Diff(want, got.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestPlanCarriesTheSettingsOfNetConf(t *testing.T) {
	c := v4(config())
	c.VNI, c.Port, c.MTU, c.GBP, c.Learning = 7, 8472, 1400, true, true
	got, err := vxlan.Plan(c, snapshot())
	if err != nil {
		t.Fatal(err)
	}
	want := `link flannel.7 mtu 1350 state UP address 0a:00:00:00:00:01 vxlan id 7 dev if2 local 192.168.50.1 dstport 8472 learning gbp
addr 10.244.1.0/32 dev flannel.7
`
	if d := cmp.Diff(want, got.String()); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
}

func TestForwardingEntriesCarryThePeersPort(t *testing.T) {
	flannel, other, same := peer(2), peer(3), peer(4)
	flannel.Port, other.Port = 0, 4790
	c := v4(config())
	port := func(c vxlan.Config, i byte) uint16 {
		t.Helper()
		s, err := vxlan.Plan(c, snapshot(flannel, other, same))
		if err != nil {
			t.Fatal(err)
		}
		dest, ok := s.FDB[kernel.FDBKey{Link: "flannel.1", MAC: subnet.MAC{0x0a, 0, 0, 0, 0, i}}]
		if !ok {
			t.Fatalf("no entry for peer %d", i)
		}
		return dest.Port
	}
	if a, b, d := port(c, 2), port(c, 3), port(c, 4); a != 8472 || b != 4790 || d != 0 {
		t.Errorf("ports %d, %d, %d", a, b, d)
	}
	c.SilentPort = 4789
	if got := port(c, 2); got != 0 {
		t.Errorf("with net-conf's Port a silent peer has it too, not %d", got)
	}
}

func TestPlanLeavesOutPeersThatCannotBeReachedAndSaysWhy(t *testing.T) {
	hostGW, both, otherVNI := peer(2), peer(2), peer(2)
	hostGW.BackendType, otherVNI.VNI = "host-gw", 5
	both.BackendType, both.Also = "host-gw", subnet.KindsOf(subnet.VXLAN)
	tests := []struct {
		name     string
		peers    []subnet.Peer
		reason   string
		text     string // part of it
		routes   int    // of IPv4, to the peers
		problems int
	}{
		{"a good peer", []subnet.Peer{peer(2)}, "", "", 1, 0},
		{"P-12: another backend", []subnet.Peer{hostGW}, "", "", 0, 0}, // package mesh reports it
		{"another backend, and ours besides", []subnet.Peer{both}, "", "", 1, 0},
		{"another VNI is told and programmed", []subnet.Peer{otherVNI}, "OtherVNI", "announces VNI 5, ours is 1", 1, 1},
		{"no MAC", []subnet.Peer{changed(peer(2), 0, func(e *subnet.Endpoint) { e.MAC = subnet.MAC{} })}, "Incomplete", "lacks", 0, 1},
		{"our own MAC", []subnet.Peer{changed(peer(2), 0, func(e *subnet.Endpoint) { e.MAC[5] = 1 })}, "DuplicateMAC", "is that of this node", 0, 1},
		{"another peer's MAC", []subnet.Peer{peer(2), changed(peer(3), 0, func(e *subnet.Endpoint) { e.MAC[5] = 2 })},
			"DuplicateMAC", "is that of node n2", 1, 1},
		{"S-02: a peer without a family", []subnet.Peer{changed(peer(2), 0, func(e *subnet.Endpoint) { *e = subnet.Endpoint{} })}, "", "", 0, 0},
	}
	for _, test := range tests {
		s, err := vxlan.Plan(config(), snapshot(test.peers...))
		problems := vxlan.Problems(config(), snapshot(test.peers...))
		routes := 0
		for k := range s.Routes {
			if k.Dst.Addr().Is4() {
				routes++
			}
		}
		if err != nil || routes != test.routes || len(problems) != test.problems {
			t.Errorf("%s: %d routes, problems %v, %v", test.name, routes, problems, err)
			continue
		}
		for _, p := range problems {
			if p.Reason != test.reason || !strings.Contains(p.Text, test.text) || !strings.HasPrefix(p.Node, "n") {
				t.Errorf("%s: %+v", test.name, p)
			}
		}
	}
}

func TestOneFamilysFaultLeavesTheOtherInPlace(t *testing.T) {
	bad := changed(peer(2), subnet.IPv4, func(e *subnet.Endpoint) { e.MAC = subnet.MAC{} })
	s, err := vxlan.Plan(config(), snapshot(bad))
	if err != nil || len(s.Routes) != 1 || len(s.FDB) != 1 {
		t.Errorf("%v\n%s", err, s)
	}
}

func TestP07DualStackChangesOfOneFamilyChangeThatFamily(t *testing.T) {
	before, _ := vxlan.Plan(config(), snapshot(peer(2)))
	after, _ := vxlan.Plan(config(), snapshot(changed(peer(2), subnet.IPv4, func(e *subnet.Endpoint) { e.PublicIP = e.PublicIP.Next() })))
	ops := kernel.Diff(before, after)
	if len(ops) != 1 || ops[0].String() != "bridge fdb replace 0a:00:00:00:00:02 dev flannel.1 dst 192.168.50.3 self permanent" {
		t.Errorf("got %v", ops)
	}
}

func TestPlanRefusesWhatCannotWorkHereWithValuePlaceAndCure(t *testing.T) {
	tests := []struct {
		name   string
		change func(c *vxlan.Config)
		want   string
	}{
		{"no MAC", func(c *vxlan.Config) { c.VTEPs[0].MAC = subnet.MAC{} }, "needs a unicast MAC"},
		{"no port", func(c *vxlan.Config) { c.Port = 0 }, "no UDP port"},
		{"VNI of 25 bits", func(c *vxlan.Config) { c.VNI = 1 << 24 }, "VNI 16777216 in net-conf.json does not fit into 24 bits"},
	}
	for _, test := range tests {
		c := v4(config())
		test.change(&c)
		s, err := vxlan.Plan(c, snapshot(peer(2)))
		if err == nil || !strings.Contains(err.Error(), test.want) || s.Links != nil {
			t.Errorf("%s: %v", test.name, err)
		}
		if p := vxlan.Problems(c, snapshot(peer(2))); p != nil {
			t.Errorf("%s: problems %v", test.name, p)
		}
	}
	c := v4(config())
	c.VNI, c.Port = 1<<24, 0
	if _, err := vxlan.Plan(c, snapshot()); strings.Count(errors.Unwrap(err).Error(), "\n") != 1 {
		t.Errorf("all problems at once: %v", err)
	}
}

func TestV07PodMTUIsTheSmallestOfTheFamiliesInUse(t *testing.T) {
	dual, six := config(), config()
	six.VTEPs[subnet.IPv4] = vxlan.VTEP{}
	jumbo := v4(config())
	jumbo.VTEPs[0].UnderlayMTU = 9001
	set := config()
	set.MTU = 1400
	for _, test := range []struct {
		name string
		c    vxlan.Config
		want int
	}{
		{"IPv4", v4(config()), 1450}, {"IPv6", six, 1430}, {"both", dual, 1430}, {"jumbo frames", jumbo, 8951},
		{"set in net-conf", set, 1330}, {"none", vxlan.Config{}, 0},
	} {
		if got := test.c.PodMTU(); got != test.want {
			t.Errorf("%s: %d, want %d", test.name, got, test.want)
		}
	}
}

func TestThePortIsChosenInTheOrderOfTrust(t *testing.T) {
	at := func(port uint16) subnet.Peer { return subnet.Peer{BackendType: "vxlan", Port: port} }
	for _, test := range []struct {
		name                 string
		netconf, device, own uint16
		peers                []subnet.Peer
		want                 uint16
		why                  string
	}{
		{"net-conf", 1, 2, 3, []subnet.Peer{at(4)}, 1, "net-conf.json says so"},
		{"the device that is there", 0, 2, 3, []subnet.Peer{at(4)}, 2, "the device that is there has it"},
		{"the own announcement", 0, 0, 3, []subnet.Peer{at(4)}, 3, "this node announced it before"},
		{"flannel's peers", 0, 0, 0, []subnet.Peer{at(0), at(0), at(4789)}, 8472, "2 of 3 peers use it"},
		{"weft's peers", 0, 0, 0, []subnet.Peer{at(0), at(4789), at(4789)}, 4789, "2 of 3 peers use it"},
		{"equals", 0, 0, 0, []subnet.Peer{at(0), at(4789)}, 4789, "1 of 2 peers use it"},
		{"a new cluster", 0, 0, 0, nil, 4789, "it is the assigned one, and no peer has another"},
		{"peers of another backend", 0, 0, 0, []subnet.Peer{{BackendType: "host-gw"}}, 4789, "it is the assigned one, and no peer has another"},
	} {
		if got, why := vxlan.ChoosePort(test.netconf, test.device, test.own, test.peers); got != test.want || why != test.why {
			t.Errorf("%s: %d because %s", test.name, got, why)
		}
	}
}

func TestTheMACIsKeptWhereThereIsOne(t *testing.T) {
	ones := func(b []byte) {
		for i := range b {
			b[i] = 0xff
		}
	}
	a, b := subnet.MAC{2, 1}, subnet.MAC{2, 2}
	for _, test := range []struct{ device, announced, want subnet.MAC }{
		{a, b, a}, {subnet.MAC{}, b, b}, {subnet.MAC{}, subnet.MAC{}, subnet.MAC{0xfe, 0xff, 0xff, 0xff, 0xff, 0xff}},
	} {
		if got := vxlan.ChooseMAC(test.device, test.announced, ones); got != test.want {
			t.Errorf("device %s, announced %s: %s", test.device, test.announced, got)
		}
	}
}
