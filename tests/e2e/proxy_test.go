package e2e

import (
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// A second cluster of two nodes, whose kube-proxy writes nftables instead of iptables. It lives through what a cluster that
// ran flannel goes through: our image under flannel's manifest, our manifest over it, and at last the removal.
func TestK13KubeProxyInNftablesModeFromFlannelsManifestToTheRemoval(t *testing.T) {
	needsTunnel(t) // flannel's manifest says vxlan
	cfg := suite.Config
	cfg.Name, cfg.Nodes, cfg.ProxyMode, cfg.Backend = suite.Config.Name+"-nft", 2, "nftables", ""
	if !cfg.Keep {
		t.Cleanup(func() {
			if err := cluster.Down(contextOfCleanup(), cfg); err != nil {
				t.Error(err)
			}
		})
	}
	c, err := cluster.Up(t.Context(), cfg)
	must(t, err)
	first := suite // the helpers work on the second cluster while this test runs
	suite = shared{Cluster: c, product: first.product, installed: true}
	defer func() { suite = first }()

	var pods []pod
	steps := []struct {
		name string
		do   func(t *testing.T)
	}{
		{"TheImageRunsUnderFlannelsManifest", func(t *testing.T) { pods = underFlannelsManifest(t) }},
		{"OurManifestReplacesItInPlaceAndLosesNoPacket", func(t *testing.T) { replaceInPlace(t, pods) }},
		{"ServicesAndHostPortsWork", func(t *testing.T) { throughServices(t, pods) }},
		{"K07TheRemovalLeavesACleanNode", removeFromNodes},
		{"AppliedAgainItWorksAgain", func(t *testing.T) {
			must(t, suite.Install(t.Context(), suite.product))
			scaleDNS(t, 2)
			must(t, suite.WaitReady(t.Context(), 2*time.Minute))
			withPod(t, podSpec{name: "again", node: "node-2"})
			agree(t, 10*time.Second, members(t))
		}},
	}
	for _, step := range steps {
		if !t.Run(step.name, step.do) {
			return // each builds on the one before
		}
	}
}

// underFlannelsManifest: hosts of flannel have the bridge plugin from elsewhere, so these get it too.
func underFlannelsManifest(t *testing.T) []pod {
	must(t, suite.LoadImage(t.Context(), suite.product.Image))
	bridge, err := os.ReadFile(filepath.Join("..", "..", "bin", "cni", "bridge"))
	must(t, err)
	for _, n := range suite.Nodes() {
		must(t, os.WriteFile(n.Path("/opt/cni/bin/bridge"), bridge, 0o755))
	}
	text, err := os.ReadFile(filepath.Join("testdata", "flannel.yml"))
	must(t, err)
	manifest, err := cluster.WithNetConf(string(text), suite.Config.Lane.NetConf(`{"Type": "vxlan"}`))
	must(t, err)
	must(t, suite.Apply(t.Context(), manifest))
	must(t, suite.WaitReady(t.Context(), 2*time.Minute))
	_, err = suite.Kubectl(t.Context(), "-n", "kube-flannel", "rollout", "status", "daemonset/kube-flannel-ds", "--timeout=60s")
	must(t, err)
	pods := startPods(t, podSpec{name: "a", node: "node-1"},
		podSpec{name: "b", node: "node-2", ports: "{containerPort: 8080, hostPort: 18080}"})
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		for _, pair := range pairs(allIn(f, pods)) {
			if got, err := pair[0].get(t, web(pair[1].IP, "8080", "clientip")); err != nil || got != pair[0].IP {
				t.Errorf("%s to %s: seen as %q (%v)", pair[0].Name, pair[1].Name, got, err)
			}
		}
	})
	agree(t, 5*time.Second, members(t))
	return pods
}

func replaceInPlace(t *testing.T, pods []pod) {
	var flows []background
	for _, f := range families() {
		flows = append(flows, pods[0].start(t, "/tmp/stop-"+f.String(), "ping", "-every", "10ms", pods[1].Addrs.In(f)))
	}
	must(t, suite.Install(t.Context(), suite.product))
	_, err := suite.Kubectl(t.Context(), "-n", "kube-flannel", "rollout", "status", "daemonset/kube-flannel-ds", "--timeout=120s")
	must(t, err)
	for _, b := range flows {
		var r lossResult
		b.end(t, &r)
		if len(r.Lost) > 0 || r.Sent == 0 {
			t.Errorf("%d of %d packets lost: %v", len(r.Lost), r.Sent, r.Lost)
		}
	}
	agree(t, 5*time.Second, members(t))
	withPod(t, podSpec{name: "new", node: "node-2"})
}

func throughServices(t *testing.T, pods []pod) {
	addrs := service(t, "b", "b", "type: NodePort")
	serveOn(t, suite.Outside)
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		for _, host := range []string{addrs.In(f), "b.default.svc.cluster.local"} {
			eventually(t, 30*time.Second, "a and b reach b through "+host, func() error {
				for _, p := range pods {
					if _, err := p.get(t, web(host, "80", "hostname")); err != nil {
						return err
					}
				}
				return nil
			})
		}
		for _, p := range pods {
			if got, err := p.get(t, web(outside(f), "8080", "clientip")); err != nil || got != nodeIP(t, p.Node, f) {
				t.Errorf("%s: the outside sees %q (%v)", p.Name, got, err)
			}
		}
		if got, err := suite.Outside.Exec(t.Context(), curl(web(nodeIP(t, "node-2", f), "18080", "clientip"))...); err != nil || got != outside(f) {
			t.Errorf("hostPort from outside: seen as %q (%v)", got, err)
		}
	})
	if rules := onHost(t, suite.Node(1).Machine, "iptables-save", "-t", "nat"); strings.Contains(rules, "KUBE-SERVICES") {
		t.Error("kube-proxy wrote iptables rules: this was no test of its nftables mode")
	}
}

// removeFromNodes follows the steps that manifests/uninstall.yml documents.
func removeFromNodes(t *testing.T) {
	scaleDNS(t, 0) // pods of the removed network are of no use
	uninstall := filepath.Join(filepath.Dir(suite.product.Manifest), "uninstall.yml")
	for _, args := range [][]string{
		{"delete", "pod", "a", "b"},
		{"-n", "kube-flannel", "delete", "daemonset", "kube-flannel-ds"},
		{"apply", "-f", uninstall},
		{"-n", "kube-flannel", "rollout", "status", "daemonset", "kube-flannel-uninstall", "--timeout=120s"},
		{"delete", "-f", uninstall},
		{"delete", "--ignore-not-found", "-f", suite.product.Manifest},
	} {
		_, err := suite.Kubectl(t.Context(), args...)
		must(t, err)
	}
	for _, n := range suite.Nodes() {
		for what, text := range map[string]string{
			"link":  onHost(t, n.Machine, "ip", "-br", "link"),
			"table": onHost(t, n.Machine, "nft", "list", "tables"),
			"file":  onHost(t, n.Machine, "ls", "/opt/cni/bin", "/etc/cni/net.d", "/run/flannel", "/var/lib/cni"),
			"rule":  onHost(t, n.Machine, "sh", "-c", "iptables-save; ip6tables-save"),
			"route": onHost(t, n.Machine, "sh", "-c", "ip -4 route show table all proto 87; ip -6 route show table all proto 87"),
		} {
			for _, ours := range []string{"flannel", "weft", "cni0", "FLANNEL"} {
				text = strings.ReplaceAll(text, "/run/flannel:", "") // the mount point of the manifest, empty
				if strings.Contains(text, ours) || what == "route" && text != "" {
					t.Errorf("%s: a %s of ours is left, %s:\n%s", n.Name, what, ours, text)
				}
			}
		}
	}
	for _, n := range nodeObjects(t) {
		for key := range n.Metadata.Annotations {
			if strings.HasPrefix(key, prefix) {
				t.Errorf("%s: annotation %s is left", n.Metadata.Name, key)
			}
		}
	}
}

func scaleDNS(t *testing.T, replicas int) {
	t.Helper()
	_, err := suite.Kubectl(t.Context(), "-n", "kube-system", "scale", "deployment", "coredns", fmt.Sprintf("--replicas=%d", replicas))
	must(t, err)
	if replicas == 0 {
		_, err = suite.Kubectl(t.Context(), "-n", "kube-system", "wait", "--for=delete", "pod", "-l", "k8s-app=kube-dns", "--timeout=60s")
		must(t, err)
	}
}

// K-01: a second agent on a node stays not ready and names the first.
func TestK01ASecondAgentOnANodeStaysAwayAndNamesTheFirst(t *testing.T) {
	withProduct(t)
	template, err := suite.Kubectl(t.Context(), "-n", "kube-flannel", "get", "daemonset", "kube-flannel-ds", "-o", "jsonpath={.spec.template.spec}")
	must(t, err)
	spec := strings.ReplaceAll(template, "8081", "18081")
	must(t, suite.Apply(t.Context(), fmt.Sprintf(
		`{"apiVersion":"v1","kind":"Pod","metadata":{"name":"second","namespace":"kube-flannel"},"spec":{"nodeName":"node-3",%s}`,
		strings.TrimPrefix(spec, "{"))))
	t.Cleanup(func() {
		if _, err := suite.Kubectl(contextOfCleanup(), "-n", "kube-flannel", "delete", "pod", "second", "--timeout=60s"); err != nil {
			t.Error(err)
		}
	})
	n := suite.Node(3)
	eventually(t, 30*time.Second, "the second agent says who the first is", func() error {
		out, err := n.Exec(t.Context(), "curl", "-sS", "-m", "5", "-w", "\n%{http_code}", "http://127.0.0.1:18081/readyz")
		if err == nil && (!strings.HasSuffix(out, "503") || !strings.Contains(out, "kube-flannel-ds-") && !strings.Contains(out, "pid")) {
			err = fmt.Errorf("readyz says %q", out)
		}
		return err
	})
	agree(t, 5*time.Second, members(t))
}
