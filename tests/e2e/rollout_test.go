package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"
)

// A restart finds a device that is good, and keeps it.
func TestV12ARestartKeepsTheDevice(t *testing.T) {
	needsTunnel(t)
	withProduct(t)
	n := suite.Node(2)
	indices := func() string {
		var all string
		for _, f := range families() {
			all += device(f) + " " + onHost(t, n.Machine, "cat", "/sys/class/net/"+device(f)+"/ifindex") + "; "
		}
		return all
	}
	index := indices()
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
	if now := indices(); now != index {
		t.Errorf("the devices were %s and are %s", index, now)
	}
}
