package claim

import (
	"net/netip"
	"strings"
	"testing"
	"unicode"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
)

const (
	goodVXLAN = `{"VNI":7,"VtepMAC":"0a:00:00:00:00:02"}`
	goodKey   = "AQIDAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="
	goodWG    = `{"PublicKey":"` + goodKey + `","Port":51820}`
)

func TestParseAlsoTakesWhatAnyReleaseMaySay(t *testing.T) {
	mac, key := subnet.MAC{10, 0, 0, 0, 0, 2}, subnet.Key{1, 2, 3}
	for text, want := range map[string]Speech{
		``:                  {},
		`[]`:                {Type: "host-gw"},
		`[{"Type":"ipip"}]`: {Type: "host-gw", Also: subnet.KindsOf("ipip")},
		`[{"Type":"geneve","Data":[1,{"a":2}]},{"Type":"ipip","Data":null,"More":1}]`:                        {Type: "host-gw", Also: subnet.KindsOf("ipip")},
		`[{"Type":"vxlan","Data":` + goodVXLAN + `,"Port":4789}]`:                                            {Type: "host-gw", Also: subnet.KindsOf("vxlan"), VNI: 7, Port: 4789, MACs: [2]subnet.MAC{mac}},
		` [ {"type":"vxlan","v6data":` + goodVXLAN + `} ] `:                                                  {Type: "host-gw", Also: subnet.KindsOf("vxlan"), VNI: 7, MACs: [2]subnet.MAC{{}, mac}},
		`[{"Type":"wireguard","Data":` + goodWG + `,"V6Data":{"PublicKey":"` + goodKey + `"}}]`:              {Type: "host-gw", Also: subnet.KindsOf("wireguard"), Key: key, WGPorts: [2]uint16{51820, 51821}},
		`[{"Type":"wireguard","Data":` + goodWG + `},{"Type":"vxlan","Data":` + goodVXLAN + `,"Port":8472}]`: {Type: "host-gw", Also: subnet.KindsOf("wireguard", "vxlan"), VNI: 7, Port: 8472, MACs: [2]subnet.MAC{mac}, Key: key, WGPorts: [2]uint16{51820}},
	} {
		got, err := parseAlso(text, "host-gw", flannelPorts)
		if err != nil {
			t.Errorf("%s: %v", text, err)
		}
		if diff := cmp.Diff(want, got); diff != "" {
			t.Errorf("%s (-want +got):\n%s", text, diff)
		}
	}
}

func TestParseAlsoRefusesTheWholeOfWhatIsPartlyWrong(t *testing.T) {
	for text, want := range map[string]string{
		`null`:               "is not like",
		`{}`:                 "is not like",
		`["vxlan"]`:          "is not like",
		`[{"Type":"ipip"}`:   "is not like",
		`[{"Type":"ipip"}]x`: "is not like",
		`[{}]`:               `has an entry of Type ""`,
		`[{"Type":"` + strings.Repeat("x", 41) + `"}]`:             `has an entry of Type "xxxx`,
		`[{"Type":"host-gw"}]`:                                     `says "host-gw" twice`,
		`[{"Type":"ipip"},{"Type":"ipip"}]`:                        `says "ipip" twice`,
		`[{"Type":"alloc"}]`:                                       `"alloc": is no way to reach a node`,
		`[{"Type":"vxlan"}]`:                                       `"vxlan": has neither Data nor V6Data`,
		`[{"Type":"vxlan","Data":null}]`:                           `"vxlan": has neither Data nor V6Data`,
		`[{"Type":"vxlan","Data":"x"}]`:                            `"vxlan": "\"x\"" is not like`,
		`[{"Type":"vxlan","Data":` + goodVXLAN + `,"Port":0}]`:     `"vxlan": the port 0 is not one`,
		`[{"Type":"vxlan","Data":` + goodVXLAN + `,"Port":65536}]`: "is not like",
		`[{"Type":"vxlan","Data":` + goodVXLAN + `,"V6Data":{"VNI":8,"VtepMAC":"0a:00:00:00:00:02"}}]`:                                "VNI is 8 here and 7 in the other family",
		`[{"Type":"ipip"},{"Type":"wireguard","Data":{"PublicKey":"x","Port":1}}]`:                                                    `"wireguard": parse key "x"`,
		`[{"Type":"wireguard","Data":` + goodWG + `,"V6Data":{"PublicKey":"BQIDAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":1}}]`: "PublicKey is not that of the other family",
		"[" + strings.Repeat(`{"Type":"a"},`, 8) + `{"Type":"a"}]`:                                                                    "has 9 entries: want at most 8",
		"[" + strings.Repeat(" ", 4096) + "]":                                                                                         "has 4098 bytes: want at most 4096",
	} {
		got, err := parseAlso(text, "host-gw", flannelPorts)
		if err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%.100s: %v, want %s", text, err, want)
		}
		if got != (Speech{}) {
			t.Errorf("%.100s: a half-read one came with the error: %+v", text, got)
		}
	}
}

func FuzzParseAlso(f *testing.F) {
	f.Add("vxlan", goodWG, `[{"Type":"wireguard","Data":`+goodWG+`}]`)
	f.Add("wireguard", goodWG, `[{"Type":"vxlan","Data":`+goodVXLAN+`,"V6Data":`+goodVXLAN+`,"Port":4789},{"Type":"ipip"}]`)
	f.Add("", "null", `[{"Type":"host-gw","Data":null}]`)
	f.Add("geneve", `{"PublicKey":1}`, `[{"Type":"geneve"},{"type":"VXLAN"}]`)
	f.Fuzz(func(t *testing.T, kind, data, also string) {
		node := Node{Name: "n", PodCIDRs: []string{"10.244.2.0/24", "fd00:10:244:2::/64"}, Annotations: map[string]string{
			testPrefix.Key(KeyManaged): "true", testPrefix.Key(KeyBackendType): kind, testPrefix.Key(KeyBackendAlso): also,
			testPrefix.Key("public-ip"): "192.168.50.2", testPrefix.Key("public-ipv6"): "fd00::2",
			testPrefix.Key("backend-data"): data, testPrefix.Key("backend-v6-data"): data,
		}}
		c := Parse(node, bothFamilies())
		p := c.Peer
		if p.Endpoints == [2]subnet.Endpoint{} && len(c.Problems) == 0 {
			t.Error("skipped without a word")
		}
		if p.Key.IsZero() != (p.WGPorts == [2]uint16{}) || !p.Key.IsZero() && !p.Speaks(subnet.WireGuard) {
			t.Errorf("a key without its use: %+v", p)
		}
		if p.Also.Has(p.BackendType) || p.Also.Has(subnet.Alloc) || len(p.BackendType) > 40 {
			t.Errorf("accepted %+v", p)
		}
		for _, problem := range c.Problems {
			if len(problem.Text) > 1000 || strings.ContainsFunc(problem.Text, unicode.IsControl) {
				t.Errorf("problem of %d bytes: %q", len(problem.Text), problem.Text)
			}
		}
		again := Speech{Type: p.BackendType, Also: p.Also, VNI: p.VNI, Port: p.Port, Key: p.Key, WGPorts: p.WGPorts}
		public := [2]netip.Addr{}
		for f, e := range p.Endpoints {
			public[f], again.MACs[f] = e.PublicIP, e.MAC
		}
		if public == [2]netip.Addr{} || subnet.KindsOf(p.BackendType) == 0 {
			return
		}
		if public[0].IsValid() != public[1].IsValid() && p.Speaks(subnet.VXLAN) {
			return // one half is all there is of something
		}
		for key, value := range again.Annotations(public) {
			node.Annotations[testPrefix.Key(key)] = value
			if testPrefix.Removes(testPrefix.Key(key), value) {
				delete(node.Annotations, testPrefix.Key(key))
			}
		}
		if back := Parse(node, bothFamilies()); back.Peer != p && p.WGPorts[0] != 0 == (p.WGPorts[1] != 0) {
			t.Errorf("what was read is written and read as another:\n%+v\n%+v\n%v", p, back.Peer, back.Problems)
		}
	})
}
