package kube

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/subnet"
)

const testPrefix = Prefix("flannel.alpha.coreos.com/")

func prefixes(list ...string) (out [2]netip.Prefix) {
	for i, s := range list {
		if s != "" {
			out[i] = netip.MustParsePrefix(s)
		}
	}
	return out
}

func rules4() Rules {
	return Rules{Prefix: testPrefix, Networks: prefixes("10.244.0.0/16")}
}

func rulesDual() Rules {
	return Rules{Prefix: testPrefix, Networks: prefixes("10.244.0.0/16", "fd00:10:244::/56")}
}

func born(day int) time.Time { return time.Date(2026, 1, day, 0, 0, 0, 0, time.UTC) }

// goodNode is a Node as flannel leaves it; change may spoil it. Keys of notes have no prefix.
func goodNode(change func(n *corev1.Node, notes map[string]string)) *corev1.Node {
	n := &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: "b", UID: types.UID("ub"), CreationTimestamp: metav1.NewTime(born(1).Local())},
		Spec:       corev1.NodeSpec{PodCIDR: "10.244.2.0/24", PodCIDRs: []string{"10.244.2.0/24"}},
		Status: corev1.NodeStatus{Addresses: []corev1.NodeAddress{
			{Type: corev1.NodeHostName, Address: "b"}, {Type: corev1.NodeInternalIP, Address: "192.168.50.2"},
			{Type: corev1.NodeExternalIP, Address: "203.0.113.2"}, {Type: corev1.NodeInternalIP, Address: "fd00::2"},
			{Type: corev1.NodeExternalIP, Address: ""}, {Type: corev1.NodeInternalIP, Address: "192.168.50.2"},
		}},
	}
	notes := map[string]string{
		"kube-subnet-manager": "true", "backend-type": "vxlan", "public-ip": "192.168.50.2",
		"backend-data": `{"VNI":1,"VtepMAC":"0a:00:00:00:00:02"}`,
	}
	if change != nil {
		change(n, notes)
	}
	n.Annotations = map[string]string{"other.io/secret": "hunter2"}
	for k, v := range notes {
		n.Annotations[testPrefix.Key(k)] = v
	}
	return n
}

// dual adds the second family to a good Node.
func dual(n *corev1.Node, notes map[string]string) {
	n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, "fd00:10:244:2::/64")
	notes["public-ipv6"], notes["backend-v6-data"] = "fd00::2", `{"VNI":1,"VtepMAC":"0a:00:00:00:06:02"}`
}

// line is a claim for people to read.
func line(c Claim) string {
	var b strings.Builder
	for _, f := range subnet.Families() {
		if e := c.Peer.Endpoints[f]; !e.IsZero() {
			mac, _ := e.MAC.MarshalText() // empty when there is none
			fmt.Fprintf(&b, "%s via %s %s; ", e.PodCIDR, e.PublicIP, mac)
		}
	}
	fmt.Fprintf(&b, "vni %d port %d managed %t bad %v", c.Peer.VNI, c.Peer.Port, c.Managed, c.Bad)
	if c.Peer.BackendType != subnet.VXLAN && c.Managed {
		fmt.Fprintf(&b, " %s", c.Peer.BackendType)
	}
	if c.Peer.Also != 0 {
		fmt.Fprintf(&b, " also %s", c.Peer.Also)
	}
	if !c.Peer.Key.IsZero() {
		fmt.Fprintf(&b, " %.8s %v", c.Peer.Key.String(), c.Peer.WGPorts)
	}
	for _, p := range c.Problems {
		fmt.Fprintf(&b, "\n%s: %s: %s", p.Node, p.Reason, p.Text)
	}
	return b.String()
}

func TestP12ParsePeerTakesOrSkipsEachNodeOnItsOwn(t *testing.T) {
	type notes = map[string]string
	const good4 = "10.244.2.0/24 via 192.168.50.2 0a:00:00:00:00:02; "
	const dual6 = "10.244.2.0/24 via 192.168.50.2 ; fd00:10:244:2::/64 via fd00::2 ; "
	const wgData = `{"PublicKey":"AQIDAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":51820}`
	const wgOld = `{"PublicKey":"AQIDAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA="}`
	const bad4WG = "vni 0 port 0 managed true bad [true false] wireguard\nb: BadBackendData: annotation backend-data: "
	const good6 = "fd00:10:244:2::/64 via fd00::2 0a:00:00:00:06:02; "
	set := func(kv ...string) func(*corev1.Node, notes) {
		return func(_ *corev1.Node, n notes) {
			for i := 0; i < len(kv); i += 2 {
				n[kv[i]] = kv[i+1]
			}
		}
	}
	drop := func(key string) func(*corev1.Node, notes) { return func(_ *corev1.Node, n notes) { delete(n, key) } }
	cidrs := func(list ...string) func(*corev1.Node, notes) {
		return func(n *corev1.Node, _ notes) { n.Spec.PodCIDRs = list }
	}
	and := func(fs ...func(*corev1.Node, notes)) func(*corev1.Node, notes) {
		return func(n *corev1.Node, m notes) {
			for _, f := range fs {
				f(n, m)
			}
		}
	}
	bad4 := "vni 0 port 0 managed true bad [true false]\nb: "
	badIP := func(s string) string {
		return bad4 + `BadPublicIP: annotation public-ip: ` + s
	}
	badData := func(s string) string { return bad4 + "BadBackendData: annotation backend-data: " + s }
	badCIDR := func(s string) string { return bad4 + "BadPodCIDR: " + s }
	for name, c := range map[string]struct {
		rules  Rules
		change func(*corev1.Node, notes)
		want   string
	}{
		"as flannel leaves it":       {rules4(), nil, good4 + "vni 1 port 0 managed true bad [false false]"},
		"as weft leaves it":          {rules4(), set("backend-port", "4789"), good4 + "vni 1 port 4789 managed true bad [false false]"},
		"podCIDR alone":              {rules4(), func(n *corev1.Node, _ notes) { n.Spec.PodCIDRs = nil }, good4 + "vni 1 port 0 managed true bad [false false]"},
		"V-01 data in another order": {rules4(), set("backend-data", ` { "VtepMAC" : "0A:00:00:00:00:02", "x":[1], "VNI" : 7 } `), good4 + "vni 7 port 0 managed true bad [false false]"},
		"VNI 0":                      {rules4(), set("backend-data", `{"VNI":0,"VtepMAC":"0a:00:00:00:00:02"}`), good4 + "vni 0 port 0 managed true bad [false false]"},
		"no annotations":             {rules4(), func(_ *corev1.Node, n notes) { clear(n) }, "vni 0 port 0 managed false bad [false false]"},
		"not managed":                {rules4(), set("kube-subnet-manager", "True"), "vni 0 port 0 managed false bad [false false]"},
		"host-gw":                    {rules4(), and(set("backend-type", "host-gw", "backend-data", "null")), "10.244.2.0/24 via 192.168.50.2 ; vni 0 port 0 managed true bad [false false] host-gw"},
		"IPv6-only host-gw as flannel leaves it": {rulesDual(), and(dual, set("backend-type", "host-gw", "public-ip", "0.0.0.0", "backend-data", "null", "backend-v6-data", "null")),
			"fd00:10:244:2::/64 via fd00::2 ; vni 0 port 0 managed true bad [false false] host-gw\nb: NoPublicIP: IPv4 enabled but Node b announces no IPv4 address: " +
				"its pods are not reached by it; its underlay has none, or its agent has not read net-conf.json since"},
		"udp says nothing":              {rules4(), set("backend-type", "", "backend-data", "null"), "10.244.2.0/24 via 192.168.50.2 ; vni 0 port 0 managed true bad [false false] alloc"},
		"a backend of nobody":           {rules4(), set("backend-type", "extension"), "vni 0 port 0 managed true bad [false false] extension\nb: OtherBackend: backend-type is \"extension\", which this release does not have: its pods cannot be reached; run one backend in the whole cluster"},
		"a backend to come":             {rules4(), set("backend-type", "geneve", "backend-also", `[{"Type":"vxlan","Data":{"VNI":1,"VtepMAC":"0a:00:00:00:00:02"},"Port":4789},{"Type":"gre"}]`), good4 + "vni 1 port 4789 managed true bad [false false] geneve also vxlan"},
		"wireguard":                     {rules4(), set("backend-type", "wireguard", "backend-data", wgData), "10.244.2.0/24 via 192.168.50.2 ; vni 0 port 0 managed true bad [false false] wireguard AQIDAAAA [51820 0]"},
		"wireguard, both":               {rulesDual(), and(dual, set("backend-type", "wireguard", "backend-data", wgData, "backend-v6-data", wgData)), dual6 + "vni 0 port 0 managed true bad [false false] wireguard AQIDAAAA [51820 51820]"},
		"wireguard, one device's data":  {rulesDual(), and(dual, set("backend-type", "wireguard", "backend-data", wgData), drop("backend-v6-data")), dual6 + "vni 0 port 0 managed true bad [false false] wireguard AQIDAAAA [51820 51820]"},
		"wireguard, old flannel's data": {rulesDual(), and(dual, set("backend-type", "wireguard", "backend-data", wgOld, "backend-v6-data", wgOld)), dual6 + "vni 0 port 0 managed true bad [false false] wireguard AQIDAAAA [51820 51821]"},
		"wireguard without a key":       {rules4(), set("backend-type", "wireguard"), bad4WG + `parse key "": want 32 bytes in base64, as wg genkey prints them`},
		"wireguard with no data":        {rules4(), set("backend-type", "wireguard", "backend-data", "null"), bad4WG + "is missing"},
		"wireguard with a key of zeros": {rules4(), set("backend-type", "wireguard", "backend-data", `{"PublicKey":"AAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":1}`), bad4WG + `PublicKey is all zero`},
		"wireguard with port 0":         {rules4(), set("backend-type", "wireguard", "backend-data", `{"PublicKey":"AQIDAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":0}`), bad4WG + `the port 0 is not one from 1 to 65535`},
		"wireguard with two keys": {rulesDual(), and(dual, set("backend-type", "wireguard", "backend-data", wgData, "backend-v6-data", `{"PublicKey":"BQIDAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":7}`)),
			"10.244.2.0/24 via 192.168.50.2 ; vni 0 port 0 managed true bad [false true] wireguard AQIDAAAA [51820 0]\nb: BadBackendData: annotation backend-v6-data: PublicKey is not that of the other family"},
		"a bad also-half leaves the rest": {rules4(), set("backend-also", `[{"Type":"wireguard"}]`), good4 + "vni 1 port 0 managed true bad [false false]\nb: BadBackendAlso: annotation backend-also: \"wireguard\": has neither Data nor V6Data"},
		"another backend's port":          {rules4(), set("backend-type", "ipip", "backend-port", "x"), "10.244.2.0/24 via 192.168.50.2 ; vni 0 port 0 managed true bad [false false] ipip"},
		"no public-ip":                    {rules4(), drop("public-ip"), badIP("is missing")},
		"empty public-ip":                 {rules4(), set("public-ip", ""), badIP("is missing")},
		"Go's nil":                        {rules4(), set("public-ip", "<nil>"), badIP(`"<nil>" is not an address`)},
		"IPv6 in the v4 field":            {rules4(), set("public-ip", "fd00::2"), badIP(`"fd00::2" is not an IPv4 address`)},
		"mapped IPv4":                     {rules4(), set("public-ip", "::ffff:192.168.50.2"), badIP(`"::ffff:192.168.50.2" is not an IPv4 address`)},
		"IPv6-only host-gw's":             {rules4(), set("public-ip", "0.0.0.0"), badIP(`"0.0.0.0" is not an address that other nodes can send to`)},
		"loopback":                        {rules4(), set("public-ip", "127.0.0.1"), badIP(`"127.0.0.1" is not an address that other nodes can send to`)},
		"multicast":                       {rules4(), set("public-ip", "224.0.0.1"), badIP(`"224.0.0.1" is not an address that other nodes can send to`)},
		"broadcast":                       {rules4(), set("public-ip", "255.255.255.255"), badIP(`"255.255.255.255" is not an address that other nodes can send to`)},
		"X-01 a command":                  {rules4(), set("public-ip", "$(reboot)"), badIP(`"$(reboot)" is not an address`)},
		"a huge value":                    {rules4(), set("public-ip", strings.Repeat("9", 100000)), badIP(`"` + strings.Repeat("9", 60) + `" is not an address`)},
		"no data":                         {rules4(), drop("backend-data"), badData("is missing")},
		"null data":                       {rules4(), set("backend-data", "null"), badData(`"null" has no VNI from 0 to 16777215`)},
		"half data":                       {rules4(), set("backend-data", `{"VNI":1,`), badData(`"{\"VNI\":1," is not like {"VNI":1,"VtepMAC":"0a:1b:2c:3d:4e:5f"}`)},
		"no VNI":                          {rules4(), set("backend-data", `{"VtepMAC":"0a:00:00:00:00:02"}`), badData(`"{\"VtepMAC\":\"0a:00:00:00:00:02\"}" has no VNI from 0 to 16777215`)},
		"VNI too big":                     {rules4(), set("backend-data", `{"VNI":16777216,"VtepMAC":"0a:00:00:00:00:02"}`), badData(`"{\"VNI\":16777216,\"VtepMAC\":\"0a:00:00:00:00:02\"}" has no VNI from 0 to 16777215`)},
		"no MAC":                          {rules4(), set("backend-data", `{"VNI":1}`), badData(`parse MAC "": want six bytes like 0a:1b:2c:3d:4e:5f`)},
		"zero MAC":                        {rules4(), set("backend-data", `{"VNI":1,"VtepMAC":"00:00:00:00:00:00"}`), badData(`parse MAC "00:00:00:00:00:00": want a unicast address that is not all zero`)},
		"multicast MAC":                   {rules4(), set("backend-data", `{"VNI":1,"VtepMAC":"01:00:5e:00:00:01"}`), badData(`parse MAC "01:00:5e:00:00:01": want a unicast address that is not all zero`)},
		"bad port":                        {rules4(), set("backend-port", "0"), bad4 + `BadBackendPort: annotation backend-port: "0" is not a port from 1 to 65535`},
		"no pod CIDR":                     {rules4(), func(n *corev1.Node, _ notes) { n.Spec = corev1.NodeSpec{} }, badCIDR("it has no pod CIDR, or announces no address, in a family that is on")},
		"three pod CIDRs":                 {rules4(), cidrs("10.244.2.0/24", "10.244.3.0/24", "fd00::/64"), badCIDR("it has 3 pod CIDRs: want one of each family")},
		"two of one family":               {rules4(), cidrs("10.244.2.0/24", "10.244.3.0/24"), badCIDR("it has two IPv4 pod CIDRs, 10.244.2.0/24 and 10.244.3.0/24: want one of each family")},
		"host bits":                       {rules4(), cidrs("10.244.2.5/24"), badCIDR("pod CIDR 10.244.2.5/24 has host bits set: re-create the Node with 10.244.2.0/24")},
		"no room":                         {rules4(), cidrs("10.244.2.0/32"), badCIDR("pod CIDR 10.244.2.0/32 has no room for a pod")},
		"no CIDR at all":                  {rules4(), cidrs("10.244.2.0"), badCIDR(`pod CIDR "10.244.2.0" is not a CIDR`)},
		"D-02 outside Network":            {rules4(), cidrs("10.42.2.0/24"), "vni 0 port 0 managed true bad [false false]\nb: PodCIDROutsideNetwork: pod CIDR 10.42.2.0/24 is outside the Network 10.244.0.0/16: its pods are not reached over the overlay; make Network cover it, or re-create the Node"},
		"wider than Network":              {rules4(), cidrs("10.0.0.0/8"), "vni 0 port 0 managed true bad [false false]\nb: PodCIDROutsideNetwork: pod CIDR 10.0.0.0/8 is outside the Network 10.244.0.0/16: its pods are not reached over the overlay; make Network cover it, or re-create the Node"},
		"a family that is off":            {rules4(), dual, good4 + "vni 1 port 0 managed true bad [false false]"},
		"both families":                   {rulesDual(), dual, good4 + good6 + "vni 1 port 0 managed true bad [false false]"},
		"S-02 one of two": {rulesDual(), nil, good4 + "vni 1 port 0 managed true bad [false false]\nb: NoPodCIDR: IPv6 enabled but Node b has no IPv6 podCIDR: " +
			"its pods have none of the family; a Node that is re-created gets one"},
		"S-02 not announced yet": {rulesDual(), cidrs("10.244.2.0/24", "fd00:10:244:2::/64"), good4 + "vni 1 port 0 managed true bad [false false]\nb: NoPublicIP: IPv6 enabled but Node b announces no IPv6 address: " +
			"its pods are not reached by it; its underlay has none, or its agent has not read net-conf.json since"},
		"a bad v6 half": {rulesDual(), and(dual, set("public-ipv6", "fe80::1")), good4 + "vni 1 port 0 managed true bad [false true]\nb: BadPublicIP: annotation public-ipv6: \"fe80::1\" is not an address that other nodes can send to"},
		"a bad v4 half": {rulesDual(), and(dual, set("backend-data", "x")), good6 + "vni 1 port 0 managed true bad [true false]\nb: BadBackendData: annotation backend-data: \"x\" is not like {\"VNI\":1,\"VtepMAC\":\"0a:1b:2c:3d:4e:5f\"}"},
		"two VNIs":      {rulesDual(), and(dual, set("backend-v6-data", `{"VNI":2,"VtepMAC":"0a:00:00:00:06:02"}`)), good4 + "vni 1 port 0 managed true bad [false true]\nb: BadBackendData: annotation backend-v6-data: VNI is 2 here and 1 in the other family"},
		"a zone":        {rulesDual(), and(dual, set("public-ipv6", "fd00::2%eth0")), good4 + "vni 1 port 0 managed true bad [false true]\nb: BadPublicIP: annotation public-ipv6: \"fd00::2%eth0\" is not an IPv6 address"},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(c.want, line(ParsePeer(goodNode(c.change), c.rules))); diff != "" {
				t.Errorf("(-want +got):\n%s", diff)
			}
		})
	}
}

func TestParsePeerKeepsIdentityAndAddresses(t *testing.T) {
	c := ParsePeer(goodNode(nil), rules4())
	want := []netip.Addr{netip.MustParseAddr("192.168.50.2"), netip.MustParseAddr("203.0.113.2"), netip.MustParseAddr("fd00::2")}
	if c.Peer.Name != "b" || c.Peer.UID != "ub" || c.Peer.Created != born(1) || c.Peer.BackendType != "vxlan" || fmt.Sprint(c.Addrs) != fmt.Sprint(want) {
		t.Errorf("%+v", c)
	}
}

func TestParseSelfReadsWhatIsThereAndNamesWhatIsNot(t *testing.T) {
	node := goodNode(func(n *corev1.Node, notes map[string]string) {
		dual(n, notes)
		notes["node-public-ip"], notes["public-ip-overwrite"], notes["public-ipv6-overwrite"] = "192.168.50.2", "203.0.113.7", "10.1.2.3"
		notes["backend-port"] = "4789"
		n.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeReady, Status: "True"}, {Type: corev1.NodeNetworkUnavailable, Status: "Unknown"}}
	})
	self, problems := ParseSelf(node, testPrefix)
	addr := netip.MustParseAddr
	want := subnet.Self{
		Name: "b", UID: "ub", Exists: true, PodCIDRs: prefixes("10.244.2.0/24", "fd00:10:244:2::/64"),
		InternalIP: [2]netip.Addr{addr("192.168.50.2"), addr("fd00::2")}, NetworkUnavailable: "Unknown",
		PublicIP: [2]netip.Addr{addr("192.168.50.2"), addr("fd00::2")}, NodePublicIP: [2]netip.Addr{addr("192.168.50.2")}, Overwrite: [2]netip.Addr{addr("203.0.113.7")},
		MAC: [2]subnet.MAC{{10, 0, 0, 0, 0, 2}, {10, 0, 0, 0, 6, 2}}, Port: 4789,
		Announced: map[string]string{},
	}
	for k, v := range node.Annotations {
		if strings.HasPrefix(k, string(testPrefix)) {
			want.Announced[k] = v
		}
	}
	if !sameSelf(want, self) {
		t.Errorf("got  %+v\nwant %+v", self, want)
	}
	if len(problems) != 1 || problems[0].Reason != ReasonBadAnnotation || !strings.Contains(problems[0].Text, `public-ipv6-overwrite has no effect: "10.1.2.3"`) {
		t.Errorf("problems: %v", problems)
	}
	if slimSelf, _ := ParseSelf(slim(node, testPrefix), testPrefix); !sameSelf(self, slimSelf) {
		t.Errorf("slim lost something: %+v", slimSelf)
	}
	if a, b := ParsePeer(node, rulesDual()), ParsePeer(slim(node, testPrefix), rulesDual()); !sameClaim(a, b) {
		t.Errorf("slim lost something: %+v", b)
	}
}

func TestParseSelfWithoutAnythingIsZero(t *testing.T) {
	self, problems := ParseSelf(&corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "n", Annotations: map[string]string{
		testPrefix.Key("backend-data"): "rubbish", testPrefix.Key("backend-port"): "x",
	}}, Spec: corev1.NodeSpec{PodCIDR: "10.244.0.1/24"}}, testPrefix)
	self.Announced = nil
	if !sameSelf(subnet.Self{Name: "n", Exists: true}, self) {
		t.Errorf("%+v", self)
	}
	if len(problems) != 2 {
		t.Errorf("problems: %v", problems)
	}
}
