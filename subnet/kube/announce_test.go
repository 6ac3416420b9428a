package kube

import (
	"errors"
	"io"
	"log/slog"
	"net/netip"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/client-go/kubernetes/fake"
	clienttesting "k8s.io/client-go/testing"

	"github.com/weft-cni/weft/subnet"
)

func announced() Announcement {
	return Announcement{BackendType: "vxlan", VNI: 1, Port: 4789,
		PublicIP: [2]netip.Addr{netip.MustParseAddr("192.168.50.1"), netip.MustParseAddr("fd00::1")},
		MAC:      [2]subnet.MAC{{0xaa, 0xbb, 0xcc, 0xdd, 0xee, 0xff}, {10, 0, 0, 0, 6, 1}}}
}

func TestAnnotationsAreByteForByteFlannels(t *testing.T) {
	both, four := announced(), announced()
	four.PublicIP[subnet.IPv6], four.Port = netip.Addr{}, 0
	host := Announcement{BackendType: "host-gw", PublicIP: four.PublicIP}
	alloc := Announcement{BackendType: "alloc", PublicIP: both.PublicIP}
	wg := Announcement{BackendType: "wireguard", PublicIP: both.PublicIP, Key: subnet.Key{1, 2, 3}, WGPorts: [2]uint16{51820, 51821}}
	six := wg
	six.PublicIP[subnet.IPv4] = netip.Addr{}
	mixed := both
	mixed.BackendType, mixed.Also, mixed.Key, mixed.WGPorts = "wireguard", subnet.KindsOf("vxlan", "ipip"), wg.Key, wg.WGPorts
	turned := mixed
	turned.BackendType, turned.Also, turned.PublicIP = "host-gw", subnet.KindsOf("wireguard"), four.PublicIP
	overwrite := [2]netip.Addr{netip.MustParseAddr("203.0.113.7")}
	for name, c := range map[string]struct {
		a         Announcement
		overwrite [2]netip.Addr
		want      map[string]string
	}{
		"both families": {both, [2]netip.Addr{}, map[string]string{
			"kube-subnet-manager": "true", "backend-type": "vxlan", "backend-port": "4789",
			"public-ip": "192.168.50.1", "backend-data": `{"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:ff"}`,
			"public-ipv6": "fd00::1", "backend-v6-data": `{"VNI":1,"VtepMAC":"0a:00:00:00:06:01"}`}},
		"one family, overwritten, no port": {four, overwrite, map[string]string{
			"kube-subnet-manager": "true", "backend-type": "vxlan", "backend-port": "",
			"public-ip": "203.0.113.7", "backend-data": `{"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:ff"}`, "public-ipv6": "", "backend-v6-data": ""}},
		"a backend without data": {host, [2]netip.Addr{}, map[string]string{
			"kube-subnet-manager": "true", "backend-type": "host-gw", "backend-port": "",
			"public-ip": "192.168.50.1", "backend-data": "null", "public-ipv6": "", "backend-v6-data": ""}},
		"a backend without a name": {alloc, [2]netip.Addr{}, map[string]string{
			"kube-subnet-manager": "true", "backend-type": "", "backend-port": "",
			"public-ip": "192.168.50.1", "backend-data": "null", "public-ipv6": "fd00::1", "backend-v6-data": "null"}},
		"WireGuard": {wg, overwrite, map[string]string{
			"kube-subnet-manager": "true", "backend-type": "wireguard", "backend-port": "",
			"public-ip": "203.0.113.7", "backend-data": `{"PublicKey":"AQIDAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":51820}`,
			"public-ipv6": "fd00::1", "backend-v6-data": `{"PublicKey":"AQIDAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":51821}`}},
		"S-03 IPv6 alone, overwritten in IPv4": {six, overwrite, map[string]string{
			"kube-subnet-manager": "true", "backend-type": "wireguard", "backend-port": "", "public-ip": "", "backend-data": "",
			"public-ipv6": "fd00::1", "backend-v6-data": `{"PublicKey":"AQIDAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":51821}`}},
		"on the way from vxlan": {mixed, [2]netip.Addr{}, map[string]string{
			"kube-subnet-manager": "true", "backend-type": "wireguard", "backend-port": "",
			"public-ip": "192.168.50.1", "backend-data": `{"PublicKey":"AQIDAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":51820}`,
			"public-ipv6": "fd00::1", "backend-v6-data": `{"PublicKey":"AQIDAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":51821}`,
			"backend-also": `[{"Type":"vxlan","Data":{"VNI":1,"VtepMAC":"aa:bb:cc:dd:ee:ff"},"V6Data":{"VNI":1,"VtepMAC":"0a:00:00:00:06:01"},"Port":4789},{"Type":"ipip"}]`}},
		"from wireguard, IPv4 alone": {turned, [2]netip.Addr{}, map[string]string{
			"kube-subnet-manager": "true", "backend-type": "host-gw", "backend-port": "",
			"public-ip": "192.168.50.1", "backend-data": "null", "public-ipv6": "", "backend-v6-data": "",
			"backend-also": `[{"Type":"wireguard","Data":{"PublicKey":"AQIDAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAAA=","Port":51820}}]`}},
	} {
		want := map[string]string{testPrefix.Key("backend-also"): ""}
		for k, v := range c.want {
			want[testPrefix.Key(k)] = v
		}
		if diff := cmp.Diff(want, c.a.Annotations(testPrefix, c.overwrite)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestWhatIsAnnouncedReadsBackAsThePeer(t *testing.T) {
	key := subnet.Key{1, 2, 3}
	for _, kind := range subnet.BackendKinds() {
		for also := subnet.Kinds(0); also < 1<<len(subnet.BackendKinds()); also++ {
			a := announced()
			a.BackendType, a.Also = kind, also
			if also.Has(kind) || also.Has(subnet.Alloc) {
				continue
			}
			want := subnet.Peer{Name: "b", UID: "ub", Created: born(1), BackendType: kind, Also: also}
			for f, cidr := range prefixes("10.244.2.0/24", "fd00:10:244:2::/64") {
				want.Endpoints[f] = subnet.Endpoint{PodCIDR: cidr, PublicIP: a.PublicIP[f]}
				if want.Speaks(subnet.VXLAN) {
					want.VNI, want.Port, want.Endpoints[f].MAC = a.VNI, a.Port, a.MAC[f]
				}
			}
			a.Key, a.WGPorts = key, [2]uint16{51820, 51821}
			if want.Speaks(subnet.WireGuard) {
				want.Key, want.WGPorts = a.Key, a.WGPorts
			}
			node := goodNode(dual)
			for k, v := range a.Annotations(testPrefix, [2]netip.Addr{}) {
				node.Annotations[k] = v
				if testPrefix.Removes(k, v) {
					delete(node.Annotations, k)
				}
			}
			c := ParsePeer(node, rulesDual())
			if c.Peer != want || len(c.Problems) != 0 {
				t.Errorf("%s also %s:\ngot  %+v\nwant %+v\n%v", kind, also, c.Peer, want, c.Problems)
			}
			self, problems := ParseSelf(node, testPrefix)
			if self.BackendType != kind || self.Also != also || self.Port != want.Port || self.VNI != want.VNI || len(problems) != 0 ||
				self.MAC != [2]subnet.MAC{want.Endpoints[0].MAC, want.Endpoints[1].MAC} || self.PublicIP != a.PublicIP {
				t.Errorf("%s also %s: self %+v, %v", kind, also, self, problems)
			}
			if diff := differing(testPrefix, node.Annotations, a.Annotations(testPrefix, [2]netip.Addr{})); len(diff) > 0 {
				t.Errorf("%s also %s: would be written again: %v", kind, also, diff)
			}
		}
	}
}

func TestDifferingTellsAbsentFromEmpty(t *testing.T) {
	kind := testPrefix.Key("backend-type")
	have := map[string]string{"same": "1", "other": "1", "empty": "", "foreign": "x"}
	got := differing(testPrefix, have, map[string]string{"same": "1", "other": "2", "empty": "", "absent": "", "new": "3", kind: ""})
	if diff := cmp.Diff(map[string]string{"other": "2", "empty": "", "new": "3", kind: ""}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
	have[kind] = ""
	if got := differing(testPrefix, have, map[string]string{kind: ""}); len(got) != 0 {
		t.Errorf("alloc's type is written again: %v", got)
	}
}

func TestStatusPatchNamesOnlyWhatChanges(t *testing.T) {
	now := metav1.NewTime(time.Date(2026, 1, 2, 3, 4, 5, 6, time.UTC))
	for _, c := range []struct {
		notes     map[string]string
		condition bool
		want      string
	}{
		{map[string]string{"a/b": "1", "a/gone": ""}, false, `{"metadata":{"annotations":{"a/b":"1","a/gone":null}}}`},
		{map[string]string{testPrefix.Key("backend-type"): ""}, false, `{"metadata":{"annotations":{"flannel.alpha.coreos.com/backend-type":""}}}`},
		{nil, true, `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","lastHeartbeatTime":"2026-01-02T03:04:05Z",` +
			`"lastTransitionTime":"2026-01-02T03:04:05Z","reason":"FlannelIsUp","message":"Flannel is running on this node"}]}}`},
	} {
		if diff := cmp.Diff(c.want, string(statusPatch(testPrefix, c.notes, c.condition, now))); diff != "" {
			t.Errorf("(-want +got):\n%s", diff)
		}
	}
}

func TestSelfProblemsArePickedByName(t *testing.T) {
	s := subnet.Snapshot{Self: subnet.Self{Name: "a"}, Problems: []subnet.Problem{{Node: "a", Reason: "x"}, {Node: "b", Reason: "y"}}}
	if got := SelfProblems(s); len(got) != 1 || got[0].Reason != "x" {
		t.Error(got)
	}
}

func TestEventsOfOneTextHaveOneNameAndAreRare(t *testing.T) {
	self := subnet.Self{Name: "n1", UID: "u1", Exists: true}
	if a, b := eventName(self, "R", "x"), eventName(self, "R", "y"); a == b || a != eventName(self, "R", "x") {
		t.Errorf("%s %s", a, b)
	}
	ev := event(self, "R", "x")
	if ev.InvolvedObject.Kind != "Node" || ev.InvolvedObject.UID != "u1" || ev.Type != corev1.EventTypeWarning || ev.Namespace != "default" {
		t.Errorf("%+v", ev)
	}
	e := NewEvents(nil, nil)
	if !e.due("a", born(1)) || e.due("a", born(1).Add(repeat-1)) || !e.due("a", born(1).Add(repeat)) {
		t.Error("an Event is repeated too early or too late")
	}
	written := 0
	for i := range 1000 {
		if e.due(string(rune(i)), born(2)) {
			written++
		}
	}
	if written != mostEvents {
		t.Errorf("%d Events in a period, want at most %d", written, mostEvents)
	}
	e.postpone("b", born(3))
	if e.due("b", born(3).Add(rewrite-1)) || !e.due("b", born(3).Add(rewrite)) {
		t.Error("an Event that could not be written is tried again too early or too late")
	}
	var none *Events
	none.Warn(t.Context(), self, "R", "x") // writes nothing, and nothing breaks
	none.problems(t.Context(), subnet.Snapshot{})
}

// P-10 wants an Event on both Nodes, and the API server may be busy just then, or away.
func TestP10AnEventThatCouldNotBeWrittenIsTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		api := fake.NewClientset()
		answer := error(apierrors.NewInternalError(errors.New("busy")))
		asked := 0
		api.PrependReactor("create", "events", func(clienttesting.Action) (bool, runtime.Object, error) { asked++; return true, nil, answer })
		client := &Client{Interface: api, Server: "fake"}
		e := NewEvents(client, slog.New(slog.DiscardHandler))
		warn := func(after time.Duration, want int) {
			t.Helper()
			time.Sleep(after)
			e.Warn(t.Context(), subnet.Self{Name: "n1", UID: "u1", Exists: true}, "R", "x")
			if asked != want {
				t.Errorf("asked %d times, want %d", asked, want)
			}
		}
		warn(0, 1)
		warn(time.Second, 1)
		client.way.note(io.EOF, time.Now())
		warn(rewrite, 1) // it is away
		client.way.note(nil, time.Now())
		warn(0, 2)
		answer = apierrors.NewForbidden(corev1.Resource("events"), "", errors.New("no rule"))
		warn(rewrite, 3)
		warn(rewrite, 3) // which it will be for good
		answer = nil
		warn(repeat, 4)
		warn(rewrite, 4)
	})
}
