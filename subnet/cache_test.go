package subnet

import (
	"errors"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var compareAddrs = cmp.Comparer(func(a, b netip.Addr) bool { return a == b })

func kept() Snapshot {
	return Snapshot{
		ClusterID: "c1",
		Self: Self{Name: "n1", UID: "u1", Exists: true, PodCIDRs: [2]netip.Prefix{prefix("10.244.1.0/24")},
			InternalIP: [2]netip.Addr{netip.MustParseAddr("192.168.50.1")}, Announced: map[string]string{"k": "v"},
			NetworkUnavailable: "False", MAC: [2]MAC{{0x0a, 0, 0, 0, 0, 1}}, VNI: 7, Port: 4789, BackendType: "wireguard", Also: KindsOf("vxlan")},
		Peers: []Peer{
			{Name: "n2", UID: "u2", Created: time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC), BackendType: "vxlan", VNI: 1, Port: 8472,
				Endpoints: [2]Endpoint{{PodCIDR: prefix("10.244.2.0/24"), PublicIP: netip.MustParseAddr("192.168.50.2"), MAC: MAC{0x0a, 0, 0, 0, 0, 2}}}},
			{Name: "n3", BackendType: "vxlan", Endpoints: [2]Endpoint{IPv6: {PodCIDR: prefix("fd00:10:244:3::/64"), PublicIP: netip.MustParseAddr("fd00::3")}}},
			{Name: "n4", BackendType: "wireguard", Also: KindsOf("vxlan", "ipip"), VNI: 7, Port: 4789, Key: Key{1, 2, 3}, WGPorts: [2]uint16{51820, 51821},
				Endpoints: [2]Endpoint{{PodCIDR: prefix("10.244.4.0/24"), PublicIP: netip.MustParseAddr("192.168.50.4"), MAC: MAC{0x0a, 0, 0, 0, 0, 4}},
					{PodCIDR: prefix("fd00:10:244:4::/64"), PublicIP: netip.MustParseAddr("fd00::4")}}},
			{Name: "n5", BackendType: "alloc", Endpoints: [2]Endpoint{{PodCIDR: prefix("10.244.5.0/24"), PublicIP: netip.MustParseAddr("192.168.50.5")}}},
		},
		NodeAddrs: []netip.Addr{netip.MustParseAddr("192.168.50.1"), netip.MustParseAddr("192.168.50.2")},
	}
}

func TestAKeptSnapshotComesBackAsItWas(t *testing.T) {
	in := kept()
	in.Problems = []Problem{{Node: "n4", Reason: "Bad", Text: "x"}}
	data, err := RenderCache(in)
	if err != nil {
		t.Fatal(err)
	}
	got, err := ParseCache(data)
	if diff := cmp.Diff(kept(), got, comparePrefixes, compareAddrs); err != nil || diff != "" {
		t.Errorf("%v (-want +got):\n%s", err, diff)
	}
}

func TestAKeptSnapshotOfAnOlderReleaseIsRead(t *testing.T) {
	const old = `{"Version": 1, "Snapshot": {"ClusterID": "c1", "Self": {"Name": "n1", "UID": "u1", "Exists": true,
		"PodCIDRs": ["10.244.1.0/24", ""], "InternalIP": ["192.168.50.1", ""], "Announced": {"k": "v"}, "NetworkUnavailable": "False",
		"NodePublicIP": ["", ""], "Overwrite": ["", ""], "PublicIP": ["192.168.50.1", ""], "MAC": ["0a:00:00:00:00:01", ""], "Port": 4789},
		"Peers": [{"Name": "n2", "UID": "u2", "Created": "2026-01-02T03:04:05Z", "BackendType": "vxlan", "VNI": 1, "Port": 8472,
			"Endpoints": [{"PodCIDR": "10.244.2.0/24", "PublicIP": "192.168.50.2", "MAC": "0a:00:00:00:00:02"}, {"PodCIDR": "", "PublicIP": "", "MAC": ""}]}],
		"NodeAddrs": ["192.168.50.1", "192.168.50.2"], "Problems": null}}`
	got, err := ParseCache([]byte(old))
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(kept().Peers[:1], got.Peers, comparePrefixes, compareAddrs); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestParseCacheRefusesAnyDoubt(t *testing.T) {
	for name, c := range map[string]struct {
		spoil func(*Snapshot)
		want  string
	}{
		"no own node":    {func(s *Snapshot) { s.Self.Exists = false }, "no own node"},
		"host bits":      {func(s *Snapshot) { s.Self.PodCIDRs[IPv4] = prefix("10.244.1.1/24") }, "not a masked IPv4 range"},
		"other family":   {func(s *Snapshot) { s.Self.PodCIDRs[IPv6] = prefix("10.244.1.0/24") }, "not a masked IPv6 range"},
		"unsorted":       {func(s *Snapshot) { s.Peers[0].Name = "z" }, "not sorted"},
		"unsorted addrs": {func(s *Snapshot) { s.NodeAddrs[1] = netip.MustParseAddr("1.1.1.1") }, "not sorted"},
		"twice":          {func(s *Snapshot) { s.Peers[1].Name = "n2" }, "twice"},
		"own as a peer":  {func(s *Snapshot) { s.Self.Name = "n2" }, "twice"},
		"big VNI":        {func(s *Snapshot) { s.Peers[0].VNI = 1 << 24 }, "VNI"},
		"no endpoint":    {func(s *Snapshot) { s.Peers[0].Endpoints = [2]Endpoint{} }, "endpoint"},
		"peer host bits": {func(s *Snapshot) { s.Peers[0].Endpoints[0].PodCIDR = prefix("10.244.2.9/24") }, "masked"},
		"no public IP":   {func(s *Snapshot) { s.Peers[0].Endpoints[0].PublicIP = netip.Addr{} }, "not an IPv4 address"},
		"loopback":       {func(s *Snapshot) { s.Peers[0].Endpoints[0].PublicIP = netip.MustParseAddr("127.0.0.1") }, "can send to"},
		"family of IP":   {func(s *Snapshot) { s.Peers[1].Endpoints[1].PublicIP = netip.MustParseAddr("1.2.3.4") }, "not an IPv6 address"},
	} {
		s := kept()
		c.spoil(&s)
		data, err := RenderCache(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseCache(data); err == nil || !strings.Contains(err.Error(), c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	data, err := RenderCache(kept())
	if err != nil {
		t.Fatal(err)
	}
	good := string(data)
	for name, text := range map[string]string{
		"empty": "", "garbage": "\x00", "half": good[:len(good)/2], "more": good + "{}", "another version": strings.Replace(good, `"Version": 1`, `"Version": 2`, 1),
		"unknown key": strings.Replace(good, `"ClusterID"`, `"ClusterId2"`, 1), "multicast MAC": strings.Replace(good, "0a:00:00:00:00:02", "0b:00:00:00:00:02", 1),
		"bad prefix": strings.Replace(good, "10.244.2.0/24", "10.244.2.0/99", 1),
	} {
		if _, err := ParseCache([]byte(text)); err == nil {
			t.Errorf("%s: accepted", name)
		}
	}
}

func TestCheckCacheRefusesAnotherNodeOrCluster(t *testing.T) {
	if err := CheckCache(kept(), "n1", "c1"); err != nil {
		t.Error(err)
	}
	if err := CheckCache(kept(), "n1", ""); err != nil {
		t.Error(err)
	}
	for _, id := range [][2]string{{"n9", "c1"}, {"n1", "c2"}} {
		if err := CheckCache(kept(), id[0], id[1]); !errors.Is(err, ErrOtherCluster) {
			t.Errorf("%v: %v", id, err)
		}
	}
}

func TestMACReadsWhatItWrites(t *testing.T) {
	for _, in := range []string{"0A:1b:2c:3d:4e:5F", "0a-1b-2c-3d-4e-5f"} {
		if m, err := ParseMAC(in); err != nil || m.String() != "0a:1b:2c:3d:4e:5f" {
			t.Errorf("%s: %v %v", in, m, err)
		}
	}
	for _, in := range []string{"", "0a:1b", "00:00:00:00:00:00", "01:00:5e:00:00:01", "ff:ff:ff:ff:ff:ff", "0a:1b:2c:3d:4e:5f:60:61", "x"} {
		if m, err := ParseMAC(in); err == nil {
			t.Errorf("%s: read as %v", in, m)
		}
	}
	if FamilyOf(netip.MustParseAddr("1.2.3.4")).String() != "IPv4" || FamilyOf(netip.MustParseAddr("::ffff:1.2.3.4")).String() != "IPv6" {
		t.Error("families are mixed up")
	}
}

func FuzzParseCache(f *testing.F) {
	data, err := RenderCache(kept())
	if err != nil {
		f.Fatal(err)
	}
	f.Add(data)
	f.Add([]byte(`{"Version":1,"Snapshot":{"Self":{"Name":"n","Exists":true},"Peers":[{"Name":"a","Endpoints":[{"PodCIDR":"10.0.0.0/24","PublicIP":"1.2.3.4","MAC":""},{}]}]}}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		s, err := ParseCache(data)
		if err != nil {
			return
		}
		for _, p := range s.Peers {
			for _, f := range Families() {
				if e := p.Endpoints[f]; !e.IsZero() && e.Check(f) != nil {
					t.Errorf("peer %+v", p)
				}
			}
		}
		again, err := RenderCache(s)
		if err != nil {
			t.Fatal(err)
		}
		if _, err := ParseCache(again); err != nil {
			t.Errorf("not read back: %v", err)
		}
	})
}
