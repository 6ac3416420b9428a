package upstream

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
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
