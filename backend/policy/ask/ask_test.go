package ask

import (
	"net/netip"
	"strconv"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/backend/policy"
)

// shop is a namespace whose database lets in its web servers only, with one pod of each and one somewhere else.
func shop(t *testing.T) policy.World {
	t.Helper()
	sel := func(labels map[string]string) policy.Selector {
		s, err := policy.NewSelector(metav1.LabelSelector{MatchLabels: labels})
		if err != nil {
			t.Fatal(err)
		}
		return s
	}
	pod := func(ns, name, addr string, local bool) *policy.Pod {
		return &policy.Pod{
			Namespace: ns, Name: name, UID: ns + name, Local: local, Phase: policy.Running,
			Labels: policy.LabelsOf(map[string]string{"app": name}), Addrs: [2]netip.Addr{netip.MustParseAddr(addr)},
		}
	}
	return policy.World{
		Namespaces: []*policy.Namespace{{Name: "other"}, {Name: "shop"}},
		Pods:       []*policy.Pod{pod("other", "thief", "10.244.3.3", false), pod("shop", "db", "10.244.1.2", true), pod("shop", "web", "10.244.2.2", false)},
		Policies: []*policy.NetworkPolicy{{
			Namespace: "shop", Name: "db", Pods: sel(map[string]string{"app": "db"}), Isolates: [2]bool{true, false},
			Rules: [2][]policy.Rule{{{AllPorts: true, Peers: []policy.Peer{{Namespace: "shop", Pods: sel(map[string]string{"app": "web"})}}}}, nil},
		}},
	}
}

func answer(t *testing.T, w policy.World, from, to string) (string, bool) {
	t.Helper()
	a, err := find(w, "--from", from)
	if err != nil {
		t.Fatal(err)
	}
	b, err := find(w, "--to", to)
	if err != nil {
		t.Fatal(err)
	}
	var out strings.Builder
	denied := traced{world: w, from: a, to: b, flows: between(a, b, policy.TCP, 5432)}.print(&out)
	return out.String(), denied
}

func TestATraceNamesThePolicyThatDecides(t *testing.T) {
	w := shop(t)
	for _, c := range []struct {
		from, to string
		denied   bool
		want     []string
	}{
		{"shop/web", "shop/db", false, []string{"allowed: shop/web (10.244.2.2) to shop/db (10.244.1.2), 5432/tcp", "ingress allowed: shop/db"}},
		{"other/thief", "shop/db", true, []string{"DENIED: other/thief", "ingress denied: isolated by shop/db"}},
		{"10.244.3.3", "10.244.1.2", true, []string{"DENIED: other/thief (10.244.3.3) to shop/db"}},
		{"192.0.2.1", "shop/db", true, []string{"DENIED: 192.0.2.1 (192.0.2.1) to shop/db"}},
		{"shop/db", "other/thief", false, []string{"no policy has a say over either end"}},
	} {
		text, denied := answer(t, w, c.from, c.to)
		if denied != c.denied {
			t.Errorf("%s to %s: denied %v; want %v\n%s", c.from, c.to, denied, c.denied, text)
		}
		for _, want := range c.want {
			if !strings.Contains(text, want) {
				t.Errorf("%s to %s: %q is not in\n%s", c.from, c.to, want, text)
			}
		}
	}
	if _, err := find(w, "--to", "shop/none"); err == nil || !strings.Contains(err.Error(), `--to="shop/none"`) {
		t.Errorf("a pod that is not there: %v", err)
	}
}

func TestATraceKnowsThatANodeReachesItsOwnPods(t *testing.T) { // N-11, N-21
	w := shop(t)
	w.Policies[0].Isolates[policy.Egress] = true
	w.Pods = append(w.Pods, &policy.Pod{Namespace: "shop", Name: "agent", UID: "a", Local: true, HostNetwork: true, Phase: policy.Running})
	node := netip.MustParseAddr("192.168.0.1")
	say := func(from, to string) (string, bool) {
		a, err := find(w, "--from", from)
		b, err2 := find(w, "--to", to)
		if err != nil || err2 != nil {
			t.Fatal(err, err2)
		}
		var out strings.Builder
		denied := traced{world: w, from: a, to: b, flows: between(a, b, policy.TCP, 80), own: map[netip.Addr]bool{node: true}}.print(&out)
		return out.String(), denied
	}
	for _, c := range []struct {
		from, to string
		denied   bool
		want     string
	}{
		{"192.168.0.1", "shop/db", false, "allowed: the node reaches its own pods, whatever policies say"},
		{"::ffff:192.168.0.1", "::ffff:10.244.1.2", false, "to shop/db (10.244.1.2)"},
		{"shop/db", "192.168.0.1", false, "only ClusterNetworkPolicies have a say over what a pod sends its own node"},
		{"192.168.0.2", "shop/db", true, "denied: isolated by shop/db"},
		{"shop/db", "192.168.0.2", true, "denied: isolated by shop/db"},
	} {
		if text, denied := say(c.from, c.to); denied != c.denied || !strings.Contains(text, c.want) {
			t.Errorf("%s to %s: denied %v; want %v and %q\n%s", c.from, c.to, denied, c.denied, c.want, text)
		}
	}
	w.Pods[1].Local = false
	if text, denied := say("192.168.0.2", "shop/db"); !denied || !strings.Contains(text, "unless 192.168.0.2 is the node of shop/db, which reaches its own pods whatever policies say") {
		t.Errorf("the node of a pod that is elsewhere:\n%s", text)
	}
	for _, text := range []string{"shop/agent", "fe80::1%eth0"} {
		if e, err := find(w, "--from", text); err == nil || !strings.Contains(err.Error(), "--from="+strconv.Quote(text)) {
			t.Errorf("%s is found: %+v %v", text, e, err)
		}
	}
}

func TestAnAuditNamesPodsAndConnections(t *testing.T) {
	w := shop(t)
	var out strings.Builder
	printPolicies(&out, w)
	printForbidden(&out, w, []policy.Forbidden{{
		Flow:     policy.Flow{Src: netip.MustParseAddr("10.244.3.3"), Dst: netip.MustParseAddr("10.244.1.2"), Proto: policy.TCP, SrcPort: 40000, DstPort: 5432},
		Policies: []string{"shop/db"},
	}})
	want := `1 NetworkPolicies, 0 ClusterNetworkPolicies
shop/db isolates ingress of 1 pods, 1 of this node: shop/db
open connections of this node that are not allowed: 1
  other/thief > shop/db 5432/tcp: denied by shop/db (1)
`
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Error(d)
	}
}

func TestAPortIsANumberAndAProtocol(t *testing.T) {
	for in, want := range map[string]policy.Flow{
		"80": {Proto: policy.TCP, DstPort: 80}, "80/tcp": {Proto: policy.TCP, DstPort: 80}, "53/UDP": {Proto: policy.UDP, DstPort: 53},
		"3868/sctp": {Proto: policy.SCTP, DstPort: 3868},
	} {
		port, proto, err := parsePort(in)
		if err != nil || port != want.DstPort || proto != want.Proto {
			t.Errorf("%s: %d/%s, %v", in, port, proto, err)
		}
	}
	for _, in := range []string{"", "0/tcp", "70000/tcp", "http/tcp", "80/icmp", "80/"} {
		if _, _, err := parsePort(in); err == nil || !strings.Contains(err.Error(), "--port") {
			t.Errorf("%q: %v", in, err)
		}
	}
}

// N-01, N-02: a pod that is about to go is listed with an address that is another's by now.
func TestATraceAsksAboutThePodThatHasTheAddress(t *testing.T) {
	w := shop(t)
	old := *w.Pods[1]
	old.Name, old.UID, old.Terminating, old.Labels = "a-db", "old", true, policy.LabelsOf(map[string]string{"app": "old"})
	w.Pods = []*policy.Pod{w.Pods[0], &old, w.Pods[1], w.Pods[2]}
	if text, denied := answer(t, w, "other/thief", "10.244.1.2"); !denied || !strings.Contains(text, "to shop/db (10.244.1.2)") {
		t.Errorf("denied %v:\n%s", denied, text)
	}
	if e, err := find(w, "--to", "shop/a-db"); err == nil || !strings.Contains(err.Error(), `--to="shop/a-db": its address 10.244.1.2 is that of shop/db by now`) {
		t.Errorf("found %+v, %v", e, err)
	}
	var out strings.Builder
	printForbidden(&out, w, []policy.Forbidden{{Flow: policy.Flow{Src: netip.MustParseAddr("10.244.3.3"), Dst: netip.MustParseAddr("10.244.1.2"), DstPort: 5432}}})
	if !strings.Contains(out.String(), "other/thief > shop/db") {
		t.Error(out.String())
	}
	w.Pods[2].Phase, old.Terminating = policy.Finished, false // the other way round
	if _, denied := answer(t, w, "other/thief", "10.244.1.2"); denied {
		t.Error("denied by the policy of a pod that has ended")
	}
}
