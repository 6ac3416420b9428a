package e2e

import (
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"
)

// A rollout of the agent, and the agent killed on every node, while packets are counted by number: D-14, K-12 and M-02. Lost
// means not back one second after the last packet was sent.
func TestD14ARolloutAndAKillLoseNoPacketAndNoConnection(t *testing.T) {
	pods := podOnEachNode(t)
	serveOn(t, suite.Outside)
	capture, err := suite.Outside.Capture(t.Context(), "eth0", "src net "+suite.Config.PodCIDR)
	must(t, err)

	var pings []background
	for _, pair := range pairs(pods) {
		pings = append(pings, pair[0].start(t, "/tmp/stop-ping-"+pair[1].Node, "ping", "-every", "10ms", pair[1].IP))
	}
	stream := pods[0].start(t, "/tmp/stop-stream", "stream", "-every", "10ms", pods[1].IP+":9000")
	outbound := pods[1].start(t, "/tmp/stop-connect", "connect", "-every", "50ms", outside+":9000")

	before := agentPods(t)
	restartAgents(t)
	for node, pod := range agentPods(t) {
		if before[node] == pod {
			t.Errorf("the agent on %s was not replaced", node)
		}
	}
	for _, n := range suite.Nodes() {
		onHost(t, n.Machine, "pkill", "-KILL", "-x", "flanneld")
	}
	eventually(t, 90*time.Second, "every agent is back after a kill", func() error {
		var errs []error
		for _, n := range suite.Nodes() {
			_, err := n.Exec(t.Context(), curl("http://127.0.0.1:8081/readyz")...)
			errs = append(errs, err)
		}
		return errors.Join(errs...)
	})

	for i, b := range pings {
		var r lossResult
		b.end(t, &r)
		pair := pairs(pods)[i]
		t.Logf("%s to %s: %d sent, %d back", pair[0].Node, pair[1].Node, r.Sent, r.Received)
		if len(r.Lost) > 0 || r.Sent == 0 {
			t.Errorf("%s to %s: %d of %d lost: %v", pair[0].Node, pair[1].Node, len(r.Lost), r.Sent, r.Lost)
		}
	}
	var s streamResult
	stream.end(t, &s)
	t.Logf("the stream: %+v", s)
	if s.Error != "" || s.Received != s.Sent || s.Sent == 0 {
		t.Errorf("the stream: %+v", s)
	}
	var c connectResult
	outbound.end(t, &c)
	if c.OK != c.Tried || c.OK == 0 {
		t.Errorf("connections to the outside: %+v", c)
	}
	packets, err := capture.Stop(contextOfCleanup())
	must(t, err)
	if len(packets) > 0 {
		t.Errorf("%d packets left with a pod's own address:\n%s", len(packets), strings.Join(packets[:min(5, len(packets))], "\n"))
	}
}

// A restart finds a device that is good, and keeps it.
func TestV12ARestartKeepsTheDevice(t *testing.T) {
	withProduct(t)
	n := suite.Node(2)
	index := onHost(t, n.Machine, "cat", "/sys/class/net/flannel.1/ifindex")
	before := agentPods(t)[n.Name]
	_, err := suite.Kubectl(t.Context(), "-n", "kube-flannel", "delete", "pod", strings.Fields(before)[0])
	must(t, err)
	eventually(t, 60*time.Second, "a new agent is ready", func() error {
		if now := agentPods(t)[n.Name]; now == before || now == "" {
			return fmt.Errorf("the agent is %q", now)
		}
		_, err := n.Exec(t.Context(), curl("http://127.0.0.1:8081/readyz")...)
		return err
	})
	if now := onHost(t, n.Machine, "cat", "/sys/class/net/flannel.1/ifindex"); now != index {
		t.Errorf("flannel.1 was device %s and is %s", index, now)
	}
}
