package e2e

import (
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"
)

// truth is one line of the truth table: what one rule of a policy lets through. The same rule is the ingress of one pod and the
// egress of another, and is asked from and to pods of the same node and of another, of the own namespace and of another.
type truth struct {
	name  string
	rules string   // of ingress; "peers" stands for "from", or for "to" where the rule is egress
	peers []string // the pods that are let through
	ports []string // the ports that are
}

// The peers by their names: of the namespace default on node-1 and node-2, and of the namespace pol-other on the same.
const (
	nearPeer, farPeer           = "pol-near", "pol-far"
	nearForeigner, farForeigner = "pol-other-near", "pol-other-far"
)

var (
	allPeers = []string{nearPeer, farPeer, nearForeigner, farForeigner}
	allPorts = []string{"8080/tcp", "9000/udp"}
)

// webPort names the port of HTTP, as policies may.
const webPort = "{name: web, containerPort: 8080}"

// truths are all lines. near and far are the pod ranges of node-1 and node-2, one a family.
func truths(near, far []string) []truth {
	blocks := func(ranges []string) string {
		return `{ipBlock: {cidr: "` + strings.Join(ranges, `"}}, {ipBlock: {cidr: "`) + `"}}`
	}
	var allButFar []string
	for i, f := range families() {
		allButFar = append(allButFar, fmt.Sprintf("{ipBlock: {cidr: %q, except: [%q]}}", word(f, "0.0.0.0/0", "::/0"), far[i]))
	}
	foreigners := "namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: " + foreign + "}}"
	return []truth{
		{"no rule", "[]", nil, nil},
		{"an empty rule", "[{}]", allPeers, allPorts},
		{"an empty pod selector", "[{peers: [{podSelector: {}}]}]", []string{nearPeer, farPeer}, allPorts},
		{"a label", "[{peers: [{podSelector: {matchLabels: {app: pol-far}}}]}]", []string{farPeer}, allPorts},
		{
			"an expression", "[{peers: [{podSelector: {matchExpressions: [{key: app, operator: NotIn, values: [pol-far]}]}}]}]",
			[]string{nearPeer}, allPorts,
		},
		{"an empty namespace selector", "[{peers: [{namespaceSelector: {}}]}]", allPeers, allPorts},
		{"a namespace", "[{peers: [{" + foreigners + "}]}]", []string{nearForeigner, farForeigner}, allPorts},
		{
			"a pod of a namespace", "[{peers: [{" + foreigners + ", podSelector: {matchLabels: {app: pol-other-far}}}]}]",
			[]string{farForeigner}, allPorts,
		},
		{
			"a namespace, and a pod of the own", "[{peers: [{" + foreigners + "}, {podSelector: {matchLabels: {app: pol-far}}}]}]",
			[]string{nearForeigner, farForeigner, farPeer}, allPorts,
		},
		{"an address block", "[{peers: [" + blocks(far) + "]}]", []string{farPeer, farForeigner}, allPorts},
		{
			"an address block with an exception", "[{peers: [" + strings.Join(allButFar, ", ") + "]}]",
			[]string{nearPeer, nearForeigner}, allPorts,
		},
		{"a port", "[{ports: [{port: 8080}]}]", allPeers, []string{"8080/tcp"}},
		{"a port by name", "[{ports: [{port: web}]}]", allPeers, []string{"8080/tcp"}},
		{"a range of ports", "[{ports: [{port: 8999, endPort: 9001, protocol: UDP}]}]", allPeers, []string{"9000/udp"}},
		{
			"peers and ports", "[{peers: [" + blocks(near) + "], ports: [{port: 8080}]}]",
			[]string{nearPeer, nearForeigner}, []string{"8080/tcp"},
		},
	}
}

// policies are the rule as ingress of one pod and as egress of another.
func (r truth) policies() string {
	var text strings.Builder
	for _, side := range []struct{ app, kind, field, peers string }{
		{"pol-target", "Ingress", "ingress", "from"}, {"pol-source", "Egress", "egress", "to"},
	} {
		text.WriteString(policyText("pol-table-"+side.field, fmt.Sprintf("{podSelector: {matchLabels: {app: %s}}, policyTypes: [%s], %s: %s}",
			side.app, side.kind, side.field, strings.ReplaceAll(r.rules, "peers:", side.peers+":"))))
	}
	return text.String()
}

// questions are all that is asked under the rule, with the answer that it wants.
func (r truth) questions(pods map[string]pod) map[try]bool {
	want := map[try]bool{}
	for _, f := range families() {
		at := func(name string) string { return pods[name].Addrs.In(f) }
		for _, port := range allPorts {
			for _, peer := range allPeers {
				let := slices.Contains(r.peers, peer) && slices.Contains(r.ports, port)
				want[try{peer, at("pol-target"), port}] = let
				want[try{"pol-source", at(peer), port}] = let
				want[try{"pol-target", at(peer), port}] = true // the other direction is nobody's business
			}
			want[try{"node-1", at("pol-target"), port}] = true // the own node always reaches its pods
			want[try{"node-1", at("pol-source"), port}] = true
		}
	}
	return want
}

func TestTheTruthTableHoldsForBothDirectionsPlacementsAndProtocols(t *testing.T) {
	g, pods := withTable(t)
	for _, name := range []string{"pol-table-ingress", "pol-table-egress"} {
		deleteAtEnd(t, "networkpolicy", name)
	}
	all := truth{"no policy", "", allPeers, allPorts}
	g.hold(t, "all talk before there is a policy", all.questions(pods))
	asked := 0
	for _, r := range truths(podCIDRs(t, "node-1"), podCIDRs(t, "node-2")) {
		t.Run(strings.ReplaceAll(r.name, " ", "_"), func(t *testing.T) {
			start := time.Now()
			must(t, suite.Apply(t.Context(), r.policies()))
			questions := r.questions(pods)
			g.hold(t, r.name, questions)
			asked += len(questions)
			t.Logf("%d questions, %s", len(questions), time.Since(start).Round(100*time.Millisecond))
		})
	}
	for _, name := range []string{"pol-table-ingress", "pol-table-egress"} {
		unpolicy(t, name)
	}
	g.hold(t, "all talk when there is no policy any more", all.questions(pods))
	t.Logf("%d questions answered as the policies want", asked)
}

// withTable adds to withGuarded the pod that egress is about, and those of another namespace.
func withTable(t *testing.T) (guarded, map[string]pod) {
	t.Helper()
	g := withGuarded(t)
	pods := map[string]pod{g.target.Name: g.target, g.near.Name: g.near, g.far.Name: g.far}
	pods["pol-source"] = withPod(t, podSpec{name: "pol-source", node: "node-1", ports: webPort})
	deleteAtEnd(t, "namespace", foreign)
	must(t, suite.Apply(t.Context(), "{apiVersion: v1, kind: Namespace, metadata: {name: "+foreign+"}}"))
	eventually(t, 30*time.Second, "the namespace has its service account", func() error {
		_, err := suite.Kubectl(t.Context(), "-n", foreign, "get", "serviceaccount", "default")
		return err
	})
	for _, spec := range []podSpec{{name: nearForeigner, node: "node-1", ports: webPort}, {name: farForeigner, node: "node-2", ports: webPort}} {
		pods[spec.name] = foreigner(t, spec)
	}
	for _, p := range pods {
		g.nets[p.Name] = networkOf(t, p)
	}
	return g, pods
}

// foreign is the namespace that no policy is in.
const foreign = "pol-other"

// foreigner starts a pod there; it goes with the namespace.
func foreigner(t *testing.T, spec podSpec) pod {
	t.Helper()
	must(t, suite.Apply(t.Context(), strings.Replace(spec.yaml(), "metadata: {", "metadata: {namespace: "+foreign+", ", 1)))
	_, err := suite.Kubectl(t.Context(), "-n", foreign, "wait", "--for=condition=Ready", "--timeout=60s", "pod/"+spec.name)
	must(t, err)
	return podNamed(t, foreign, spec)
}

func podCIDRs(t *testing.T, node string) []string {
	t.Helper()
	for _, n := range nodeObjects(t) {
		if n.Metadata.Name == node {
			return n.Spec.PodCIDRs
		}
	}
	t.Fatalf("no node is called %s", node)
	return nil
}
