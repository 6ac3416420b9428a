package e2e

import (
	"fmt"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// backendFaults are changes of the backend of a running cluster. WireGuard and IPIP need a kernel that this machine may lack: the
// virtual machine rolls them out.
func backendFaults() []fault {
	return []fault{{
		name: "backend: vxlan to host-gw and back, node by node",
		note: "net-conf.json changed and the DaemonSet restarted, twice; afterwards nothing of the other backend is left",
		do:   backendThereAndBack,
	}}
}

func backendThereAndBack(t *testing.T) time.Duration {
	if !tunnels() || suite.Config.Underlay != cluster.Flat {
		t.Skip("host-gw needs all nodes on one network, and there must be a tunnel to come from")
	}
	first := suite.Config.Backend
	t.Cleanup(func() { suite.Config.Backend = first })
	start := time.Now()
	changeBackend(t, `{"Type": "host-gw"}`)
	eventually(t, time.Minute, "nothing of the tunnel is left", func() error {
		for _, n := range suite.Nodes() {
			if out := onHost(t, n.Machine, "ip", "-o", "link", "show", "type", "vxlan"); out != "" {
				return fmt.Errorf("%s has %s", n.Name, out)
			}
		}
		return nil
	})
	changeBackend(t, first)
	return time.Since(start)
}

// changeBackend does what an administrator does: another Backend in net-conf.json, and the agents restarted one by one.
func changeBackend(t *testing.T, backend string) {
	t.Helper()
	suite.Config.Backend = backend
	manifest, err := suite.Manifest(suite.product)
	must(t, err)
	must(t, suite.Apply(t.Context(), manifest))
	restartAgents(t)
	eventually(t, time.Minute, "every agent is ready", agentsReady)
	eventually(t, time.Minute, "every node announces the backend and nothing else", func() error {
		for _, n := range nodeObjects(t) {
			if got := n.Metadata.Annotations[prefix+"backend-type"]; got != suite.Config.BackendType() {
				return fmt.Errorf("%s announces %q", n.Metadata.Name, got)
			}
		}
		return nil
	})
	agree(t, time.Minute, members(t))
}
