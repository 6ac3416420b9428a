package upstream

import (
	"cmp"
	"fmt"
	"maps"
	"regexp"
	"slices"
	"strings"
	"time"
)

// policyTest is one test of ClusterNetworkPolicy's suite.
type policyTest struct {
	name, state string // PASS, FAIL, SKIP, or empty for one that never ended
	features    []string
	asked, held int // its parts
	took        time.Duration
}

// The lines of `go test -v` that tell what became of a test, and those in which the suite names features.
var (
	resultLine  = regexp.MustCompile(`^\s*--- (PASS|FAIL|SKIP): TestClusterNetworkPolicyConformance/(\S+) \((\S+)\)`)
	featureLine = regexp.MustCompile(`^feature of (\S+): (\S+)$`)
)

// readPolicyTests reads what the suite said, in the order of the tests' names.
func readPolicyTests(log string) ([]policyTest, error) {
	found := map[string]*policyTest{}
	of := func(name string) *policyTest {
		if found[name] == nil {
			found[name] = &policyTest{name: name}
		}
		return found[name]
	}
	for line := range strings.Lines(log) {
		line = strings.TrimRight(line, "\n")
		if m := featureLine.FindStringSubmatch(line); m != nil {
			test := of(m[1])
			test.features = append(test.features, m[2])
			continue
		}
		m := resultLine.FindStringSubmatch(line)
		if m == nil {
			continue
		}
		name, part, isPart := strings.Cut(m[2], "/")
		test := of(name)
		switch {
		case !isPart:
			took, err := time.ParseDuration(m[3])
			if err != nil {
				return nil, fmt.Errorf("read how long %s took: %w", name, err)
			}
			test.state, test.took = m[1], took
		case !strings.Contains(part, "/"):
			test.asked++
			if m[1] == "PASS" {
				test.held++
			}
		}
	}
	return slices.SortedFunc(func(yield func(policyTest) bool) {
		for test := range maps.Values(found) {
			if !yield(*test) {
				return
			}
		}
	}, func(a, b policyTest) int { return strings.Compare(a.name, b.name) }), nil
}

// policyPage renders the tests as a Markdown page: the features, then each test. version is the API's, report the name of the
// file beside the page that the API's project collects.
func policyPage(all []policyTest, version, report string) string {
	var out strings.Builder
	fmt.Fprintf(&out, `# ClusterNetworkPolicy's conformance suite

Written by `+"`make e2e-policyapi`"+`: network-policy-api %s's suite on a kubeadm cluster of three nodes with IPv4. The report in the form that the
API's project collects is [%s](%s). Where the kernel has no SCTP sockets, pods speak SCTP over raw ones (tests/e2e/cmd/sctp).

| feature | tests | passed | failed | not run |
|---|---|---|---|---|
`, version, report, report)
	for _, f := range byFeature(all) {
		fmt.Fprintf(&out, "| %s | %d | %d | %d | %d |\n", f.name, f.passed+f.failed+f.skipped, f.passed, f.failed, f.skipped)
	}
	fmt.Fprint(&out, "\n## Tests\n\n| test | | parts that hold | time |\n|---|---|---|---|\n")
	for _, test := range all {
		fmt.Fprintf(&out, "| %s | %s | %d of %d | %s |\n", test.name, test.became(), test.held, test.asked, test.took.Round(time.Second))
	}
	return out.String()
}

func (t policyTest) became() string {
	return cmp.Or(map[string]string{"PASS": "passed", "FAIL": "failed"}[t.state], "not run")
}

// feature is what became of the tests that need it.
type feature struct {
	name string
	counts
}

func byFeature(all []policyTest) []feature {
	found := map[string]counts{}
	for _, test := range all {
		for _, name := range test.features {
			c := found[name]
			switch test.became() {
			case "passed":
				c.passed++
			case "failed":
				c.failed++
			default:
				c.skipped++
			}
			found[name] = c
		}
	}
	var features []feature
	for _, name := range slices.Sorted(maps.Keys(found)) {
		features = append(features, feature{name, found[name]})
	}
	return features
}
