package claim

import (
	"net/netip"
	"strings"
	"testing"
	"unicode"

	"github.com/weft-cni/weft/subnet"
)

const testPrefix = Prefix("flannel.alpha.coreos.com/")

func bothFamilies() Rules {
	return Rules{Prefix: testPrefix, Networks: [2]netip.Prefix{netip.MustParsePrefix("10.244.0.0/16"), netip.MustParsePrefix("fd00:10:244::/48")}}
}

func TestParseKnowsWhichAddressAnAdministratorHasTold(t *testing.T) {
	for overwrite, want := range map[string]bool{"": false, "203.0.113.2": true, "203.0.113.3": false} {
		c := Parse(Node{Name: "n", PodCIDRs: []string{"10.244.2.0/24"}, Annotations: map[string]string{
			testPrefix.Key(KeyManaged): "true", testPrefix.Key(KeyBackendType): "vxlan",
			testPrefix.Key("public-ip"): "203.0.113.2", testPrefix.Key("public-ip-overwrite"): overwrite,
			testPrefix.Key("backend-data"): `{"VNI":1,"VtepMAC":"0a:00:00:00:00:02"}`,
		}}, bothFamilies())
		if c.Told != [2]bool{want} || c.Peer.Endpoints[subnet.IPv4].IsZero() {
			t.Errorf("overwrite %q: told %v, %+v", overwrite, c.Told, c.Peer)
		}
	}
}

func TestParseNamesAMegabyteOfAnythingInAFewCleanWords(t *testing.T) {
	for _, data := range []string{
		strings.Repeat("A", 1<<20), strings.Repeat("[", 1<<20), strings.Repeat("\x1b[2J\n", 1<<18), strings.Repeat("\u202e", 1<<19),
		`{"VNI":1,"VtepMAC":"` + strings.Repeat("a:", 1<<19) + `"}`, `{"VNI":1,` + strings.Repeat(`"x":{},`, 1<<17) + `"VtepMAC":1}`,
		`{"VNI":` + strings.Repeat("9", 1<<20) + `}`,
	} {
		for _, key := range []string{KeyBackendType, KeyBackendPort, "public-ip", "backend-data"} {
			notes := map[string]string{
				KeyManaged: "true", KeyBackendType: "vxlan", "public-ip": "192.168.50.2", "backend-data": `{"VNI":1,"VtepMAC":"0a:00:00:00:00:02"}`,
			}
			notes[key] = data
			n := Node{Name: "n", PodCIDRs: []string{"10.244.2.0/24"}, Annotations: map[string]string{}}
			for k, v := range notes {
				n.Annotations[testPrefix.Key(k)] = v
			}
			c := Parse(n, bothFamilies())
			if len(c.Problems) != 1 || len(c.Peer.BackendType) > 100 {
				t.Errorf("%s=%.20q: problems %v", key, data, c.Problems)
			}
			for _, p := range c.Problems {
				if len(p.Text) > 1000 || strings.ContainsFunc(p.Text, func(r rune) bool { return unicode.IsControl(r) || unicode.Is(unicode.Cf, r) }) {
					t.Errorf("%s=%.20q: %d bytes: %q", key, data, len(p.Text), p.Text)
				}
			}
		}
	}
}

func FuzzParseNode(f *testing.F) {
	f.Add("10.244.2.0/24", "192.168.50.2", `{"VNI":1,"VtepMAC":"0a:00:00:00:00:02"}`, "4789", "203.0.113.2")
	f.Add("fd00:10:244:1::/64", "fd00::1", "null", "", "%zone")
	f.Add("10.244.0.0/0", "<nil>", `{"VNI":1e9,"VtepMAC":"ff"}`, "-1", "::ffff:1.2.3.4")
	f.Fuzz(func(t *testing.T, cidr, ip, data, port, addr string) {
		node := Node{Name: "n", PodCIDRs: []string{cidr}, Addresses: []Address{{InternalIP, addr}}, Annotations: map[string]string{
			testPrefix.Key(KeyManaged): "true", testPrefix.Key(KeyBackendType): "vxlan", testPrefix.Key(KeyBackendPort): port,
		}}
		for _, f := range subnet.Families() {
			k := KeysOf(f)
			for key, v := range map[string]string{k.PublicIP: ip, k.BackendData: data, k.Overwrite: addr, k.NodePublicIP: ip} {
				node.Annotations[testPrefix.Key(key)] = v
			}
		}
		c := Parse(node, bothFamilies())
		for _, f := range subnet.Families() {
			e := c.Peer.Endpoints[f]
			if !e.IsZero() && (e.Check(f) != nil || e.MAC.IsZero() || !subnet.Contains(bothFamilies().Networks[f], e.PodCIDR)) {
				t.Errorf("accepted %+v", e)
			}
		}
		if c.Peer.Endpoints == [2]subnet.Endpoint{} && len(c.Problems) == 0 {
			t.Error("skipped without a word")
		}
		for _, p := range c.Problems {
			if len(p.Text) > 1000 || strings.ContainsFunc(p.Text, unicode.IsControl) {
				t.Errorf("problem of %d bytes: %q", len(p.Text), p.Text)
			}
		}
		if _, problems := ParseSelf(node, testPrefix); len(problems) > 6 {
			t.Errorf("%d problems", len(problems))
		}
	})
}
