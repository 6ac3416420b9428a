package upstream

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
	"github.com/weft-cni/weft/tests/e2e/artifacts"
	"github.com/weft-cni/weft/tests/lane"
)

func TestAReportBecomesOneLineForEachNetworkSpec(t *testing.T) {
	file := filepath.Join(t.TempDir(), "report.json")
	report := `[{"SpecReports":[
{"LeafNodeType":"BeforeSuite","State":"passed"},
{"ContainerHierarchyTexts":["[sig-network] Services"],"LeafNodeText":"should work [Conformance]","LeafNodeType":"It","State":"passed","RunTime":3000000000},
{"ContainerHierarchyTexts":["[sig-network] DNS"],"LeafNodeText":"should answer","LeafNodeType":"It","State":"timedout","Failure":{"Message":"no a|nswer\nat all"}},
{"ContainerHierarchyTexts":["[sig-network] LB"],"LeafNodeText":"should balance [Feature:LoadBalancer]","LeafNodeType":"It","State":"skipped"},
{"ContainerHierarchyTexts":["[sig-network] X"],"LeafNodeText":"should x","LeafNodeType":"It","State":"skipped","Failure":{"Message":"only for windows"}},
{"ContainerHierarchyTexts":["[sig-node] Y"],"LeafNodeText":"should y","LeafNodeType":"It","State":"failed"}]}]`
	if err := os.WriteFile(file, []byte(report), 0o644); err != nil {
		t.Fatal(err)
	}
	specs, err := readReport(file, Network(lane.IPv4))
	if err != nil {
		t.Fatal(err)
	}
	var got []string
	for _, s := range specs {
		got = append(got, s.state+": "+cell(s.name)+": "+cell(s.remark()))
	}
	want := []string{
		`failed: DNS should answer: no a\|nswer`,
		"skipped: LB should balance [Feature:LoadBalancer]: needs a cloud's load balancer",
		"passed: Services should work [Conformance]: 3s",
		"skipped: X should x: only for windows",
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}

func TestAPageSaysHowItWasMade(t *testing.T) {
	const netpol = "# Kubernetes' own specs of NetworkPolicy\n\nWritten by `make e2e-netpol`: Kubernetes " + artifacts.KubernetesVersion +
		"'s e2e.test with `--provider=local` on a kubeadm cluster of three nodes with IPv4.\n" +
		"The kernel has no SCTP sockets, so pods speak SCTP over raw ones (tests/e2e/cmd/sctp): the first two packets of an association.\n\n| |"
	if got := table(Netpol(lane.IPv4), nil); !strings.HasPrefix(got, netpol) {
		t.Errorf("the page begins\n%s", got)
	}
	const network = "Written by `WEFT_LANE=ipv6 make e2e-upstream`: Kubernetes " + artifacts.KubernetesVersion +
		"'s e2e.test with `--provider=local` on a kubeadm cluster of three nodes with IPv6 alone.\n\n| |"
	if got := table(Network(lane.IPv6), nil); !strings.Contains(got, network) {
		t.Errorf("the page begins\n%s", got)
	}
}

func TestEachLaneLeavesOutWhatItsClusterLacksAndNothingElse(t *testing.T) {
	const dual, nodePorts = "[sig-network] [Feature:IPv6DualStack] should create a service", "[sig-network] X [Feature:LocalhostNodePorts]"
	for _, test := range []struct {
		lane       lane.Lane
		spec, want string
	}{
		{lane.IPv4, dual, "needs a dual-stack cluster"},
		{lane.Dual, dual, ""},
		{lane.Dual, dual + " [Feature:SCTPConnectivity]", "needs SCTP in the kernel"},
		{lane.IPv6, dual, "needs a dual-stack cluster"},
		{lane.Dual, nodePorts, "needs a feature that this cluster does not turn on"},
		{lane.IPv6, nodePorts, "needs a feature that this cluster does not turn on"},
		{lane.IPv6, "[sig-network] Internet [Feature:Networking-IPv6]", "needs the Internet"},
		{lane.IPv6, "[sig-network] Services should work", ""},
	} {
		if got, _ := matching(leftOut(test.lane), test.spec); got != test.want {
			t.Errorf("%s, %s: left out since it %q, want %q", test.lane, test.spec, got, test.want)
		}
	}
}
