package e2e

import (
	"fmt"
	"os"
	"strings"
	"testing"
	"time"
)

// condition is a Node's condition.
type condition struct {
	Type, Status, Reason, Message string
}

// nodeObject is what tests read of a Node.
type nodeObject struct {
	Metadata struct {
		Name        string
		UID         string
		Annotations map[string]string
	}
	Spec struct {
		PodCIDRs []string
	}
	Status struct {
		Conditions []condition
	}
}

func (n nodeObject) condition(kind string) condition {
	for _, c := range n.Status.Conditions {
		if c.Type == kind {
			return c
		}
	}
	return condition{Type: kind}
}

func nodeObjects(t *testing.T) []nodeObject {
	t.Helper()
	var list struct{ Items []nodeObject }
	must(t, suite.Get(t.Context(), &list, "nodes"))
	return list.Items
}

// Named so that it sorts before all others: it needs the cluster without the product.
func TestC02NodesTurnReadyOnlyAfterTheManifestIsApplied(t *testing.T) {
	if suite.installed || suite.found {
		t.Skip("the product is installed already")
	}
	for _, n := range nodeObjects(t) {
		ready := n.condition("Ready")
		if ready.Status == "True" || !strings.Contains(ready.Message, "cni plugin not initialized") {
			t.Errorf("%s without a network: %+v", n.Metadata.Name, ready)
		}
	}
	// CoreDNS has been waiting for a network since kubeadm init; these join it.
	for _, n := range suite.Nodes() {
		must(t, suite.Apply(t.Context(), podSpec{name: "early-" + n.Name, node: n.Name}.yaml()))
		deleteAtEnd(t, "pod", "early-"+n.Name)
	}

	start := time.Now()
	withProduct(t)
	t.Logf("all nodes and CoreDNS Ready %s after kubectl apply", time.Since(start).Round(100*time.Millisecond))

	for _, n := range nodeObjects(t) {
		got := n.condition("NetworkUnavailable")
		want := condition{"NetworkUnavailable", "False", "FlannelIsUp", "Flannel is running on this node"}
		if got != want {
			t.Errorf("%s: %+v, want %+v", n.Metadata.Name, got, want)
		}
	}
	for _, n := range suite.Nodes() {
		_, err := suite.Kubectl(t.Context(), "wait", "--for=condition=Ready", "pod/early-"+n.Name, "--timeout=60s")
		must(t, err)
	}
	// Before the product there was no conflist at all, which the kubelet reports as "network is not ready"; a sandbox that
	// fails afterwards means a conflist that came too early.
	failed, err := suite.Kubectl(t.Context(), "get", "events", "-A", "--field-selector", "reason=FailedCreatePodSandBox", "-o", "name")
	must(t, err)
	if failed != "" {
		text, _ := suite.Kubectl(t.Context(), "get", "events", "-A", "--field-selector", "reason=FailedCreatePodSandBox")
		t.Errorf("sandboxes failed:\n%s", text)
	}
}

func TestC12PluginsThatTheNodeLacksAreInstalled(t *testing.T) {
	withProduct(t)
	for _, n := range suite.Nodes() {
		for _, plugin := range []string{"flannel", "bridge", "bandwidth", "host-local", "loopback", "portmap"} {
			info, err := os.Stat(n.Path("/opt/cni/bin/" + plugin))
			if err != nil {
				t.Errorf("%s: %v", n.Name, err)
			} else if info.Mode()&0o111 == 0 {
				t.Errorf("%s: %s is not executable: %s", n.Name, plugin, info.Mode())
			}
		}
	}
}

func TestK02TheNamespaceAdmitsTheAgentUnderPodSecurity(t *testing.T) {
	withProduct(t)
	level, err := suite.Kubectl(t.Context(), "get", "namespace", "kube-flannel", "-o",
		`jsonpath={.metadata.labels.pod-security\.kubernetes\.io/enforce}`)
	must(t, err)
	if level != "privileged" {
		t.Errorf("namespace kube-flannel enforces %q", level)
	}
}

func TestK05ANodeTaintDoesNotEvictTheAgent(t *testing.T) {
	withProduct(t)
	before := agentPods(t)
	for _, effect := range []string{"NoExecute", "NoSchedule"} {
		taint := "weft-test=x:" + effect
		_, err := suite.Kubectl(t.Context(), "taint", "node", "node-3", taint)
		must(t, err)
		t.Cleanup(func() {
			if _, err := suite.Kubectl(contextOfCleanup(), "taint", "node", "node-3", taint+"-"); err != nil {
				t.Error(err)
			}
		})
	}
	// An eviction follows a taint at once; a pod without the toleration shows that the taint has been seen to.
	must(t, suite.Apply(t.Context(), strings.Replace(podSpec{name: "evicted", node: "node-3"}.yaml(), "tolerations: [{operator: Exists}]", "", 1)))
	deleteAtEnd(t, "pod", "evicted")
	eventually(t, 30*time.Second, "a pod without tolerations is evicted", func() error {
		left, err := suite.Kubectl(t.Context(), "get", "pod", "evicted", "--ignore-not-found", "-o", "name")
		if err == nil && left != "" {
			err = fmt.Errorf("%s is still there", left)
		}
		return err
	})
	if after := agentPods(t); after["node-3"] != before["node-3"] {
		t.Errorf("the agent on node-3 was %s and is %s", before["node-3"], after["node-3"])
	}
}

func TestK06TheAgentHasRequestsAndNoMemoryLimit(t *testing.T) {
	withProduct(t)
	out, err := suite.Kubectl(t.Context(), "-n", "kube-flannel", "get", "daemonset", "kube-flannel-ds", "-o",
		"jsonpath={.spec.template.spec.containers[0].resources}")
	must(t, err)
	if strings.Contains(out, "limits") || !strings.Contains(out, "requests") {
		t.Errorf("resources are %s", out)
	}
}

// agentPods maps each node to its agent's pod, name and UID.
func agentPods(t *testing.T) map[string]string {
	t.Helper()
	var list struct {
		Items []struct {
			Metadata struct{ Name, UID string }
			Spec     struct{ NodeName string }
		}
	}
	must(t, suite.Get(t.Context(), &list, "pods", "-n", "kube-flannel", "-l", "app=flannel"))
	pods := map[string]string{}
	for _, p := range list.Items {
		pods[p.Spec.NodeName] = p.Metadata.Name + " " + p.Metadata.UID
	}
	return pods
}
