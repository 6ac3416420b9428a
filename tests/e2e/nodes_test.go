package e2e

import (
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// Twice, since the second node-4 has the name of the first but another machine behind it: another MAC, perhaps another range.
// The first has a crowd of pods, the second one that shows the way to it.
func TestP05ANodeJoinsWithinFiveSecondsAndIsForgottenWithinFive(t *testing.T) {
	pods := podOnEachNode(t)
	for _, crowd := range []int{12, 1} {
		fourth, err := suite.AddNode(t.Context())
		must(t, err)
		joined := waitAnnotated(t, fourth)
		agree(t, bound(5*time.Second)-time.Since(joined), members(t))
		t.Logf("every node knows %s, and it them, %s after it was announced", fourth.Name, time.Since(joined).Round(10*time.Millisecond))
		names := crowdOnAFreshNode(t, fourth, pods, crowd)

		must(t, suite.RemoveLastNode(t.Context()))
		_, err = suite.Kubectl(t.Context(), "delete", "node", fourth.Name)
		must(t, err)
		left := agree(t, bound(5*time.Second), members(t))
		t.Logf("no node knows %s any more after %s", fourth.Name, left.Round(10*time.Millisecond))
		_, err = suite.Kubectl(t.Context(), append([]string{"delete", "--ignore-not-found", "--grace-period=0", "--force"}, names...)...)
		must(t, err)
	}
}

// crowdOnAFreshNode is the case C-15: many ADDs race on a node that has no bridge yet. All pods must get a network, and as
// many state records and reservations as pods must be left.
func crowdOnAFreshNode(t *testing.T, n *cluster.Node, pods []pod, crowd int) (names []string) {
	t.Helper()
	var specs []podSpec
	for i := range crowd {
		specs = append(specs, podSpec{name: fmt.Sprintf("first-%d", i), node: n.Name})
		names = append(names, "pod/"+specs[i].name)
	}
	seen := map[string]string{}
	for _, p := range startPods(t, specs...) {
		if other, twice := seen[p.IP]; twice {
			t.Errorf("C-15: %s and %s both have %s", p.Name, other, p.IP)
		}
		seen[p.IP] = p.Name
		for _, f := range families() {
			if _, err := pods[0].exec(t, "ping", "-c", "1", "-W", "2", p.Addrs.In(f)); err != nil {
				t.Errorf("C-15: %s does not answer over %v: %v", p.Name, f, err)
			}
		}
	}
	records, err := filepath.Glob(n.Path("/var/lib/cni/flannel/[0-9a-f]*"))
	must(t, err)
	if given := reservations(t, n); len(records) != len(specs) || len(given) != len(specs)*len(families()) {
		sandboxes, _ := n.Exec(t.Context(), "crictl", "pods")
		events, _ := suite.Kubectl(t.Context(), "get", "events", "--field-selector", "type=Warning")
		t.Errorf("C-06: %d pods, but records %v and reservations %v\n%s\n%s", len(specs), records, given, sandboxes, events)
	}
	return names
}

// waitAnnotated waits until the node has announced itself and returns when that was seen.
func waitAnnotated(t *testing.T, n *cluster.Node) time.Time {
	t.Helper()
	eventually(t, time.Minute, n.Name+" announces itself", func() error {
		out, err := suite.Kubectl(t.Context(), "get", "node", n.Name, "-o", `jsonpath={.metadata.annotations.flannel\.alpha\.coreos\.com/`+strings.TrimPrefix(publicIP(first()), prefix)+"}")
		if err == nil && out == "" {
			err = fmt.Errorf("no address yet")
		}
		return err
	})
	return time.Now()
}

// C-08 and C-02: a power cut leaves the reservations of all pods on the disk and a conflist that is true no more.
func TestC08APowerCutLeaksNoAddressesAndFailsNoSandbox(t *testing.T) {
	pods := podOnEachNode(t)
	n := suite.Node(3)
	var specs []podSpec
	for i := range 8 {
		specs = append(specs, podSpec{name: fmt.Sprintf("crowd-%d", i), node: n.Name})
		deleteAtEnd(t, "pod", specs[i].name)
	}
	crowd := startPods(t, specs...)
	before := reservations(t, n)
	since := time.Now().UTC()

	all := append(crowd, pods[2])
	counts, err := restartCounts(t, all)
	must(t, err)
	must(t, n.PowerOff(t.Context()))
	if _, err := pods[0].exec(t, "ping", "-c", "1", "-W", "1", crowd[0].IP); err == nil {
		t.Error("a pod on a node without power answers")
	}
	must(t, n.PowerOn(t.Context()))
	start := time.Now()
	waitRestarted(t, all, counts)
	t.Logf("%d pods run again %s after the boot", len(all), time.Since(start).Round(100*time.Millisecond))

	agree(t, 5*time.Second, members(t))
	must(t, reachAll(t, podOnEachNode(t)))
	eventually(t, 30*time.Second, "only living pods hold addresses", func() error {
		if after := reservations(t, n); len(after) != len(before) {
			return fmt.Errorf("%d reservations before, %d after: %v", len(before), len(after), after)
		}
		return nil
	})
	var events struct {
		Items []struct {
			LastTimestamp time.Time
			Message       string
			Source        struct{ Host string }
		}
	}
	must(t, suite.Get(t.Context(), &events, "events", "-A", "--field-selector", "reason=FailedCreatePodSandBox"))
	for _, e := range events.Items {
		if e.Source.Host == n.Name && e.LastTimestamp.After(since) {
			t.Errorf("a sandbox failed: %s", e.Message)
		}
	}
}

// restartCounts asks how often each pod's container has been started again.
func restartCounts(t *testing.T, pods []pod) (map[string]string, error) {
	t.Helper()
	counts := map[string]string{}
	for _, p := range pods {
		count, err := suite.Kubectl(t.Context(), "get", "pod", p.Name, "-o", "jsonpath={.status.containerStatuses[0].restartCount}")
		if err != nil {
			return nil, err
		}
		counts[p.Name] = count
	}
	return counts, nil
}

// waitRestarted waits until the kubelets have reported new containers for all the pods, and the pods are Ready.
func waitRestarted(t *testing.T, pods []pod, before map[string]string) {
	t.Helper()
	eventually(t, 3*time.Minute, "the containers were started again", func() error {
		now, err := restartCounts(t, pods)
		if err != nil {
			return err
		}
		for name, count := range now {
			if count == before[name] {
				return fmt.Errorf("%s has not been started again", name)
			}
		}
		return nil
	})
	wait := []string{"wait", "--for=condition=Ready", "--timeout=120s"}
	for _, p := range pods {
		wait = append(wait, "pod/"+p.Name)
	}
	_, err := suite.Kubectl(t.Context(), wait...)
	must(t, err)
}

// All machines of a site go dark at once and come back in another order, the control plane last, and two of them with each
// other's addresses.
func TestK09AfterAPowerCutOfTheWholeClusterThePodsTalkAgain(t *testing.T) {
	pods := podOnEachNode(t)
	before, err := restartCounts(t, pods)
	must(t, err)
	nodes := suite.Nodes()
	for _, n := range nodes {
		must(t, n.PowerOff(t.Context()))
	}
	must(t, suite.SwapAddresses(nodes[1], nodes[2]))
	slices.Reverse(nodes)
	for _, n := range nodes {
		must(t, n.PowerOn(t.Context()))
	}
	start := time.Now()
	eventually(t, 2*time.Minute, "the API server is back", func() error {
		_, err := suite.Kubectl(t.Context(), "get", "--raw", "/readyz")
		return err
	})
	untilAnnounced(t)
	waitRestarted(t, pods, before)
	must(t, suite.WaitReady(t.Context(), 2*time.Minute))
	t.Logf("everything is Ready %s after the last boot", time.Since(start).Round(time.Second))
	agree(t, 10*time.Second, members(t))
	pods = podOnEachNode(t)
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		for _, pair := range pairs(allIn(f, pods)) {
			if _, err := pair[0].exec(t, "ping", "-c", "1", "-W", "2", pair[1].IP); err != nil {
				t.Errorf("%s to %s: %v", pair[0].Node, pair[1].Node, err)
			}
		}
	})
}

// reservations lists the addresses, of all families, that host-local has given away on a node.
func reservations(t *testing.T, n *cluster.Node) []string {
	t.Helper()
	files, err := os.ReadDir(n.Path("/var/lib/cni/networks/cbr0"))
	must(t, err)
	var all []string
	for _, f := range files {
		if _, err := netip.ParseAddr(f.Name()); err == nil {
			all = append(all, f.Name())
		}
	}
	return all
}

// While the API server is away nothing can be learnt, and nothing needs to change.
func TestP13TheDataPlaneOutlivesTheAPIServer(t *testing.T) {
	pods := podOnEachNode(t)
	all := members(t)
	back := takeAPIAway(t)
	// The damage of an hour without the API server, done at once: it is healed from what the agent knows.
	flushRoutes(t, suite.Node(2))
	agree(t, 30*time.Second, all)
	for _, f := range families() {
		if _, err := suite.Node(2).Exec(t.Context(), "ping", "-c", "2", "-i", "0.2", "-W", "2", pods[2].Addrs.In(f)); err != nil {
			t.Error(err)
		}
	}
	back()
	restored(t)
}
