package kube

import (
	"net/netip"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

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
	} {
		want := map[string]string{}
		for k, v := range c.want {
			want[testPrefix.Key(k)] = v
		}
		if diff := cmp.Diff(want, c.a.Annotations(testPrefix, c.overwrite)); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
	}
}

func TestWhatIsAnnouncedReadsBackAsThePeer(t *testing.T) {
	node := goodNode(dual)
	for k, v := range announced().Annotations(testPrefix, [2]netip.Addr{}) {
		node.Annotations[k] = v
	}
	c := ParsePeer(node, rulesDual())
	if c.Peer.Port != 4789 || c.Peer.VNI != 1 || len(c.Problems) != 0 {
		t.Errorf("%s", line(c))
	}
	for _, f := range subnet.Families() {
		if e := c.Peer.Endpoints[f]; e.MAC != announced().MAC[f] || e.PublicIP != announced().PublicIP[f] {
			t.Errorf("%v: %+v", f, e)
		}
	}
	if self, _ := ParseSelf(node, testPrefix); self.MAC != announced().MAC || self.Port != 4789 {
		t.Errorf("self: %+v", self)
	}
}

func TestDifferingTellsAbsentFromEmpty(t *testing.T) {
	have := map[string]string{"same": "1", "other": "1", "empty": "", "foreign": "x"}
	got := differing(have, map[string]string{"same": "1", "other": "2", "empty": "", "absent": "", "new": "3"})
	if diff := cmp.Diff(map[string]string{"other": "2", "empty": "", "new": "3"}, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
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
		{nil, true, `{"status":{"conditions":[{"type":"NetworkUnavailable","status":"False","lastHeartbeatTime":"2026-01-02T03:04:05Z",` +
			`"lastTransitionTime":"2026-01-02T03:04:05Z","reason":"FlannelIsUp","message":"Flannel is running on this node"}]}}`},
	} {
		if diff := cmp.Diff(c.want, string(statusPatch(c.notes, c.condition, now))); diff != "" {
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
	var none *Events
	none.Warn(t.Context(), self, "R", "x") // writes nothing, and nothing breaks
	none.problems(t.Context(), subnet.Snapshot{})
}
