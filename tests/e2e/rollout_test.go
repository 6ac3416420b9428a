package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

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
