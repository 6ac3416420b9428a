package e2e

import (
	"os"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// A second cluster of two nodes, whose kube-proxy writes nftables instead of iptables. It takes the place of the first in
// the helpers while this test runs.
func TestK13KubeProxyInNftablesMode(t *testing.T) {
	withProduct(t)
	cfg := cluster.Default()
	cfg.Name, cfg.Nodes, cfg.ProxyMode, cfg.Log = "e2e-nft", 2, "nftables", os.Stdout
	t.Cleanup(func() {
		if err := cluster.Down(contextOfCleanup(), cfg); err != nil {
			t.Error(err)
		}
	})
	c, err := cluster.Up(t.Context(), cfg)
	must(t, err)
	first := suite
	suite = shared{Cluster: c, product: first.product}
	defer func() { suite = first }()
	withProduct(t)

	pods := startPods(t, podSpec{name: "a", node: "node-1"},
		podSpec{name: "b", node: "node-2", ports: "{containerPort: 8080, hostPort: 18080}"})
	for _, pair := range pairs(pods) {
		if got, err := pair[0].get(t, "http://"+pair[1].IP+":8080/clientip"); err != nil || got != pair[0].IP {
			t.Errorf("%s to %s: seen as %q (%v)", pair[0].Name, pair[1].Name, got, err)
		}
	}
	ip := service(t, "b", "b", "type: NodePort")
	for _, host := range []string{ip, "b.default.svc.cluster.local"} {
		eventually(t, 30*time.Second, "a and b reach b through "+host, func() error {
			for _, p := range pods {
				if _, err := p.get(t, "http://"+host+"/hostname"); err != nil {
					return err
				}
			}
			return nil
		})
	}
	serveOn(t, suite.Outside)
	for _, p := range pods {
		eventually(t, 10*time.Second, p.Name+" reaches the outside under its node's address", func() error {
			got, err := p.get(t, "http://"+outside+":8080/clientip")
			if err == nil && got != nodeIP(t, p.Node) {
				t.Errorf("%s: seen as %s", p.Name, got)
			}
			return err
		})
	}
	if got, err := suite.Outside.Exec(t.Context(), curl("http://"+suite.Node(2).IP+":18080/clientip")...); err != nil || got != outside {
		t.Errorf("hostPort from outside: seen as %q (%v)", got, err)
	}
	if rules := onHost(t, suite.Node(1).Machine, "iptables-save", "-t", "nat"); strings.Contains(rules, "KUBE-SERVICES") {
		t.Error("kube-proxy wrote iptables rules: this was no test of its nftables mode")
	}
	agree(t, 5*time.Second, members(t))
}
