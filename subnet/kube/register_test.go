package kube

import (
	"errors"
	"log/slog"
	"net/netip"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes/fake"

	"github.com/weft-cni/weft/subnet"
)

func TestD15TheConditionIsWrittenWhenReadyAndNotLeftToTheCloud(t *testing.T) {
	for _, c := range []struct {
		status       string
		ready, leave bool
		want         bool
	}{
		{"True", true, false, true}, {"Unknown", true, false, true}, {"", true, false, true}, {"False", true, false, false},
		{"True", false, false, false}, {"True", true, true, false},
	} {
		r := &Registrar{cfg: RegistrarConfig{LeaveUnavailable: c.leave}}
		if got := r.wantsCondition(subnet.Self{NetworkUnavailable: c.status}, Announcement{Ready: c.ready}); got != c.want {
			t.Errorf("%+v: %v", c, got)
		}
	}
}

// D-15, L-03: a controller that sets the condition back as fast as we clear it is not answered as fast.
func TestD15AConditionThatIsSetBackAgainAndAgainIsNoStormOfPatches(t *testing.T) {
	r, client, snap := dualRegistrar(t, goodNode(dual))
	a := announced()
	a.Ready = true
	duels := 0
	for range 5 * duelBurst {
		node, err := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		node.Status.Conditions = []corev1.NodeCondition{{Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionTrue, Reason: "NoRouteCreated"}}
		if _, err := client.CoreV1().Nodes().Update(t.Context(), node, metav1.UpdateOptions{}); err != nil {
			t.Fatal(err)
		}
		snap.Self, _ = ParseSelf(node, testPrefix)
		switch err := r.Sync(t.Context(), snap, a); {
		case errors.Is(err, ErrDuel) && strings.Contains(err.Error(), "NetworkUnavailable=True"):
			duels++
		case err != nil:
			t.Fatal(err)
		}
	}
	patches := 0
	for _, action := range client.Actions() {
		if action.GetVerb() == "patch" {
			patches++
		}
	}
	if patches > 2*duelBurst || duels == 0 {
		t.Errorf("%d patches for %d changes, %d times held back", patches, 5*duelBurst, duels)
	}
}

// dualRegistrar has a fake API server with the given Node, and what a snapshot says of it.
func dualRegistrar(t *testing.T, node *corev1.Node) (*Registrar, *fake.Clientset, subnet.Snapshot) {
	t.Helper()
	client := fake.NewClientset(node)
	self, _ := ParseSelf(node, testPrefix)
	log := slog.New(slog.DiscardHandler)
	c := &Client{Interface: client, Server: "fake"}
	return NewRegistrar(RegistrarConfig{
		Client: c, NodeName: node.Name, Prefix: testPrefix, Events: NewEvents(c, log), Log: log,
		Conf: subnet.NetConf{Networks: rulesDual().Networks, Enabled: [2]bool{true, true}, Backend: subnet.Backend{Type: "vxlan"}},
	}), client, subnet.Snapshot{Self: self}
}

func TestS02OnlyTheFamiliesOfTheNodeAreAnnounced(t *testing.T) {
	node := goodNode(nil) // IPv4 alone
	node.Annotations = map[string]string{testPrefix.Key("public-ipv6"): "fd00::9", testPrefix.Key("backend-v6-data"): "null"}
	r, client, snap := dualRegistrar(t, node)
	s := newStore("b", rulesDual(), slog.New(slog.DiscardHandler), func() {})
	snap.Problems = s.parseOwn(node).problems
	if err := r.Sync(t.Context(), snap, announced()); err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if got.Annotations[testPrefix.Key("public-ip")] != "192.168.50.1" {
		t.Errorf("IPv4 is not announced: %v", got.Annotations)
	}
	for _, key := range []string{"public-ipv6", "backend-v6-data"} {
		if v, there := got.Annotations[testPrefix.Key(key)]; there {
			t.Errorf("%s stays with %q", key, v)
		}
	}
	events, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(events.Items) != 1 || !strings.HasPrefix(events.Items[0].Message, "IPv6 enabled but Node b has no IPv6 podCIDR") {
		t.Errorf("%v %+v", err, events)
	}
}

func TestD02ARangeOutsideItsNetworkIsToldAndTheOtherFamilyIsAnnounced(t *testing.T) {
	node := goodNode(func(n *corev1.Node, _ map[string]string) { n.Spec.PodCIDRs = append(n.Spec.PodCIDRs, "fd99::/64") })
	r, client, snap := dualRegistrar(t, node)
	s := newStore("b", rulesDual(), slog.New(slog.DiscardHandler), func() {})
	snap.Problems = s.parseOwn(node).problems
	if err := r.Sync(t.Context(), snap, announced()); err != nil {
		t.Fatal(err)
	}
	got, err := client.CoreV1().Nodes().Get(t.Context(), "b", metav1.GetOptions{})
	if err != nil {
		t.Fatal(err)
	}
	if _, there := got.Annotations[testPrefix.Key("public-ipv6")]; there || got.Annotations[testPrefix.Key("public-ip")] != "192.168.50.1" {
		t.Errorf("announced: %v", got.Annotations)
	}
	events, err := client.CoreV1().Events("default").List(t.Context(), metav1.ListOptions{})
	if err != nil || len(events.Items) != 1 || events.Items[0].Reason != ReasonOutsideNetwork {
		t.Errorf("%v %+v", err, events)
	}
}

func TestSyncWaitsForAnAddressAndForTheRightNode(t *testing.T) {
	r, client, snap := dualRegistrar(t, goodNode(dual))
	none := announced()
	none.PublicIP = [2]netip.Addr{}
	if err := r.Sync(t.Context(), snap, none); err == nil || !strings.Contains(err.Error(), "no public IP is chosen yet") {
		t.Errorf("no address: %v", err)
	}
	snap.Self.UID = "of-another"
	if err := r.Sync(t.Context(), snap, announced()); !errors.Is(err, ErrNodeChanged) {
		t.Errorf("P-05 another Node: %v", err)
	}
	for _, a := range client.Actions() {
		if a.GetVerb() == "patch" {
			t.Errorf("written: %v", a)
		}
	}
	if err := client.CoreV1().Nodes().Delete(t.Context(), "b", metav1.DeleteOptions{}); err != nil {
		t.Fatal(err)
	}
	if err := r.Sync(t.Context(), snap, announced()); err == nil {
		t.Error("announced on a Node that is gone")
	}
}
