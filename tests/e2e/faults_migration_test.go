package e2e

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/e2e/cluster"
	"github.com/weft-cni/weft/tests/lane"
)

// migrationFaults are the ways between flannel and weft. flannel itself cannot be had here: tests/flannelstate does on each
// node what flannel does when it starts, and judges what a flannel would not take as it is.
func migrationFaults() []fault {
	return []fault{{
		name: "back to flannel by rollback.yml, and to weft again",
		note: "the two commands, node by node; heals: every node is as flannel leaves it, and then as weft does",
		do:   backAndForth,
	}}
}

// flannelNode is a node as tests/flannelstate reads it.
type flannelNode struct {
	Name, Network, PodCIDR, Underlay, Addr, MAC, Rules string
	VNI, Port                                          int
	Also                                               *flannelNode // in the cluster's other family
}

// underFlannel is a member as flannel would make it.
func underFlannel(m member) flannelNode {
	var halves []*flannelNode
	for _, f := range families() {
		halves = append(halves, &flannelNode{
			Name: m.node.Name, Network: lane.Network(f).String(), PodCIDR: m.cidrs[f].String(), Underlay: "eth0", Addr: m.node.Addrs.In(f), MAC: m.macs[f],
			Rules: "iptables-nft", VNI: 1, Port: 4789, // weft's port on a new cluster
		})
	}
	if len(halves) > 1 {
		halves[0].Also = halves[1]
	}
	return *halves[0]
}

func backAndForth(t *testing.T) time.Duration {
	if !tunnels() {
		t.Skip("tests/flannelstate knows flannel over vxlan: the lanes with vxlan play this")
	}
	program := filepath.Join(t.TempDir(), "flannelstate")
	build := exec.CommandContext(t.Context(), "go", "build", "-o", program, "./tests/flannelstate/cmd/flannelstate")
	build.Dir, build.Env = filepath.Dir(filepath.Dir(suite.product.Manifest)), append(os.Environ(), "CGO_ENABLED=0")
	if out, err := build.CombinedOutput(); err != nil {
		t.Fatalf("build flannelstate: %v\n%s", err, out)
	}
	text, err := os.ReadFile(program)
	must(t, err)
	var all []flannelNode
	for _, m := range members(t) {
		must(t, os.WriteFile(m.node.Path("/usr/local/bin/flannelstate"), text, 0o755))
		all = append(all, underFlannel(m))
	}
	start := time.Now()
	roll(t, func() error {
		_, err := suite.Kubectl(t.Context(), "apply", "-f", filepath.Join(filepath.Dir(suite.product.Manifest), "rollback.yml"))
		return err
	})
	for i := range all {
		if said := ask(t, all, i, "judge"); said != "" {
			t.Errorf("%s: flannel would not take this:\n%s", all[i].Name, said)
		}
	}
	for i := range all {
		if said := ask(t, all, i, "start"); said != "" {
			t.Errorf("%s: flannel makes anew:\n%s", all[i].Name, said)
		}
	}
	withPod(t, podSpec{name: "made-under-flannel", node: all[1].Name})
	roll(t, func() error { return suite.Install(t.Context(), suite.product) })
	eventually(t, time.Minute, "every agent is ready", agentsReady)
	for _, n := range suite.Nodes() {
		if rules := onHost(t, n.Machine, "sh", "-c", "nft list ruleset; iptables-legacy-save"); strings.Contains(rules, "FLANNEL") {
			t.Errorf("%s: rules of flannel are left", n.Name)
		}
	}
	return time.Since(start)
}

// roll applies one of our manifests over whatever runs under the agent's name, and waits until every node has it.
func roll(t *testing.T, apply func() error) {
	t.Helper()
	must(t, apply())
	_, err := suite.Kubectl(t.Context(), "-n", "kube-flannel", "rollout", "status", "daemonset/kube-flannel-ds", "--timeout=180s")
	must(t, err)
}

// ask runs flannelstate on a node, with that node first among all, and returns what it has to say.
func ask(t *testing.T, all []flannelNode, i int, verb string) string {
	t.Helper()
	list := append([]flannelNode{all[i]}, all[:i]...)
	data, err := json.Marshal(append(list, all[i+1:]...))
	must(t, err)
	ctx, cancel := context.WithTimeout(t.Context(), time.Minute)
	defer cancel()
	var n *cluster.Node
	for _, m := range suite.Nodes() {
		if m.Name == all[i].Name {
			n = m
		}
	}
	out, err := n.ExecInput(ctx, bytes.NewReader(data), "flannelstate", verb)
	if err != nil {
		t.Fatal(fmt.Errorf("flannelstate %s: %w", verb, err))
	}
	return out
}
