package e2e

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// reachAll checks that the first pod reaches each other pod, in each family.
func reachAll(t *testing.T, pods []pod) error {
	t.Helper()
	var errs []error
	for _, f := range families() {
		for _, to := range allIn(f, pods[1:]) {
			if _, err := pods[0].exec(t, "ping", "-c", "1", "-W", "1", to.IP); err != nil {
				errs = append(errs, fmt.Errorf("%s to %s: %w", pods[0].Node, to.Node, err))
			}
		}
	}
	return errors.Join(errs...)
}

func TestV02ADeletedDeviceComesBackWithItsPeers(t *testing.T) {
	needsTunnel(t)
	pods := podOnEachNode(t)
	all := members(t)
	node := suite.Node(1)
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		for range 3 {
			onHost(t, node.Machine, "ip", "link", "del", device(f))
			took := agree(t, bound(5*time.Second), all) // the same MAC too: it is in what the peers hold
			t.Logf("back after %s", took.Round(10*time.Millisecond))
			must(t, reachAll(t, pods))
		}
	})
}

func TestV04RoutesComeBackAfterALinkFlap(t *testing.T) {
	pods := podOnEachNode(t)
	all := members(t)
	node := suite.Node(1).Machine
	for _, f := range families() {
		if tunnels() {
			onHost(t, node, "ip", "link", "set", device(f), "down")
			onHost(t, node, "ip", "link", "set", device(f), "up")
			agree(t, bound(5*time.Second), all)
			must(t, reachAll(t, pods))
		}
	}

	second := suite.Node(2)
	must(t, second.Unplug(t.Context()))
	must(t, second.Plug(t.Context()))
	agree(t, bound(5*time.Second), all)
	eventually(t, 10*time.Second, "the pods talk again", func() error { return reachAll(t, pods) })
}

// flushRoutes removes a node's routes to the pods of others.
func flushRoutes(t *testing.T, n *cluster.Node) {
	t.Helper()
	for _, f := range families() {
		onHost(t, n.Machine, "ip", word(f, "-4", "-6"), "route", "flush", "proto", "87")
	}
}

func TestP09RoutesThatSomebodyRemovedComeBack(t *testing.T) {
	withProduct(t)
	all := members(t)
	flushRoutes(t, suite.Node(1))
	agree(t, 30*time.Second, all)
}

func TestP09EntriesThatSomebodyRemovedComeBack(t *testing.T) {
	needsTunnel(t)
	withProduct(t)
	all := members(t)
	node := suite.Node(1).Machine
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		for _, damage := range [][]string{
			{"ip", word(f, "-4", "-6"), "neigh", "flush", "dev", device(f), "nud", "permanent"},
			{"bridge", "fdb", "del", all[1].macs[f], "dev", device(f), "dst", all[1].node.Addrs.In(f), "self"},
			{"ip", word(f, "-4", "-6"), "addr", "flush", "dev", device(f)},
			{"ip", "link", "set", device(f), "address", "02:00:00:00:00:99"},
		} {
			if direct() && damage[0] == "bridge" {
				continue // the second node needs no entry
			}
			onHost(t, node, damage...)
			agree(t, 30*time.Second, all)
			eventually(t, 30*time.Second, "the device is as it was", func() error {
				text, err := node.Exec(t.Context(), "ip", "addr", "show", device(f))
				if err == nil && (!strings.Contains(text, all[0].macs[f]) || !strings.Contains(text, all[0].vtep(f)+word(f, "/32", "/128"))) {
					err = fmt.Errorf("it is\n%s", text)
				}
				return err
			})
		}
	})
}

func TestM03RulesThatSomebodyWipedAreBackWithinASecond(t *testing.T) {
	withProduct(t)
	first := suite.Node(1).Machine
	before := onHost(t, first, "nft", "-s", "list", "table", "inet", "weft")
	for _, damage := range [][]string{{"nft", "delete", "table", "inet", "weft"}, {"nft", "flush", "table", "inet", "weft"}} {
		onHost(t, first, damage...)
		eventually(t, bound(time.Second), "the table is back after "+strings.Join(damage, " "), func() error {
			after, err := first.Exec(t.Context(), "nft", "-s", "list", "table", "inet", "weft")
			if err == nil && strings.TrimSpace(after) != before {
				err = fmt.Errorf("the table is\n%s", after)
			}
			return err
		})
	}
}

func TestC13PluginsThatWereDeletedAreRestored(t *testing.T) {
	withProduct(t)
	n := suite.Node(2)
	onHost(t, n.Machine, "sh", "-c", "rm -f /opt/cni/bin/*")
	eventually(t, 20*time.Second, "the plugins are back", func() error {
		var errs []error
		for _, plugin := range []string{"flannel", "bridge", "host-local", "loopback", "portmap", "bandwidth"} {
			_, err := os.Stat(n.Path("/opt/cni/bin/" + plugin))
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})
	withPod(t, podSpec{name: "after-restore", node: n.Name})
}

func TestC16AnotherConfigurationThatSortsBeforeOursIsReported(t *testing.T) {
	withProduct(t)
	n := suite.Node(3)
	const foreign = "00-bridge.conflist"
	must(t, os.WriteFile(n.Path("/etc/cni/net.d/"+foreign), []byte(
		`{"cniVersion":"1.0.0","name":"foreign","plugins":[{"type":"ptp","ipam":{"type":"host-local","subnet":"10.99.0.0/24"}}]}`), 0o644))
	t.Cleanup(func() {
		if err := os.Remove(n.Path("/etc/cni/net.d/" + foreign)); err != nil {
			t.Error(err)
		}
		waitReadyz(t, n.Machine.Name, "200")
	})
	eventually(t, 30*time.Second, "readyz names the file", func() error {
		out, err := n.Exec(t.Context(), "curl", "-sS", "-m", "5", "http://127.0.0.1:8081/readyz")
		if err == nil && !strings.Contains(out, foreign) {
			err = fmt.Errorf("readyz says %q", out)
		}
		return err
	})
}

// waitReadyz waits until the agent on a node answers its readiness probe with a status code.
func waitReadyz(t *testing.T, name, code string) {
	t.Helper()
	m, err := suite.Machine(name)
	if err != nil {
		t.Error(err)
		return
	}
	start := time.Now()
	var out string
	for time.Since(start) < 30*time.Second {
		out, err = m.Exec(contextOfCleanup(), "curl", "-sS", "-m", "5", "-w", "\n%{http_code}", "http://127.0.0.1:8081/readyz")
		if err == nil && strings.HasSuffix(out, code) {
			return
		}
		time.Sleep(100 * time.Millisecond)
	}
	t.Errorf("readyz on %s: %q (%v), want %s", name, out, err, code)
}

func TestD12HealthAndReadinessAnswerOnEachNode(t *testing.T) {
	withProduct(t)
	for _, n := range suite.Nodes() {
		for _, path := range []string{"healthz", "readyz"} {
			if out, err := n.Exec(t.Context(), curl("http://127.0.0.1:8081/"+path)...); err != nil {
				t.Errorf("%s /%s: %q (%v)", n.Name, path, out, err)
			}
		}
		if out, err := n.Exec(t.Context(), curl("http://127.0.0.1:8081/metrics")...); err != nil || !strings.Contains(out, "weft_peers") {
			t.Errorf("%s /metrics: %v, %d bytes, no weft_peers", n.Name, err, len(out))
		}
	}
}

func TestD15TheConditionIsPutBackWhenSomebodyChangesIt(t *testing.T) {
	withProduct(t)
	_, err := suite.Kubectl(t.Context(), "patch", "node", "node-2", "--subresource=status", "--type=strategic", "-p",
		`{"status":{"conditions":[{"type":"NetworkUnavailable","status":"True","reason":"Test","message":"test"}]}}`)
	must(t, err)
	eventually(t, 10*time.Second, "NetworkUnavailable is False again", func() error {
		for _, n := range nodeObjects(t) {
			if c := n.condition("NetworkUnavailable"); c.Status != "False" {
				return fmt.Errorf("%s: %+v", n.Metadata.Name, c)
			}
		}
		return nil
	})
}

func TestStrippedAnnotationsArePublishedAgainWithinTwoSeconds(t *testing.T) {
	withProduct(t)
	all := members(t)
	keys := []string{prefix + "kube-subnet-manager"}
	for _, f := range families() {
		keys = append(keys, backendData(f), publicIP(f))
	}
	for _, key := range keys {
		before := nodeObjects(t)[1].Metadata.Annotations[key]
		_, err := suite.Kubectl(t.Context(), "annotate", "node", "node-2", key+"-")
		must(t, err)
		eventually(t, bound(2*time.Second), key+" is back", func() error {
			if got := nodeObjects(t)[1].Metadata.Annotations[key]; got != before {
				return fmt.Errorf("it is %q, was %q", got, before)
			}
			return nil
		})
	}
	agree(t, bound(5*time.Second), all)
}
