package upstream

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestWhatTheSuiteOfClusterNetworkPolicySaidBecomesAPage(t *testing.T) {
	const log = `=== RUN   TestClusterNetworkPolicyConformance
feature of CNPPriority: ClusterNetworkPolicy
feature of CNPNamed: ClusterNetworkPolicy
feature of CNPNamed: ClusterNetworkPolicyNamedPorts
feature of CNPNever: ClusterNetworkPolicy
    --- FAIL: TestClusterNetworkPolicyConformance/CNPPriority (12.60s)
        --- PASS: TestClusterNetworkPolicyConformance/CNPPriority/Should_deny (2.00s)
        --- FAIL: TestClusterNetworkPolicyConformance/CNPPriority/Should_pass (10.00s)
    --- PASS: TestClusterNetworkPolicyConformance/CNPNamed (1m2.10s)
        --- PASS: TestClusterNetworkPolicyConformance/CNPNamed/Should_allow (62.00s)
--- FAIL: TestClusterNetworkPolicyConformance (74.70s)
`
	tests, err := readPolicyTests(log)
	if err != nil {
		t.Fatal(err)
	}
	const want = `# ClusterNetworkPolicy's conformance suite

Written by ` + "`make e2e-policyapi`" + `: network-policy-api v9.9.9's suite on a kubeadm cluster of three nodes with IPv4. The report in the form that the
API's project collects is [report.yaml](report.yaml). Where the kernel has no SCTP sockets, pods speak SCTP over raw ones (tests/e2e/cmd/sctp).

| feature | tests | passed | failed | not run |
|---|---|---|---|---|
| ClusterNetworkPolicy | 3 | 1 | 1 | 1 |
| ClusterNetworkPolicyNamedPorts | 1 | 1 | 0 | 0 |

## Tests

| test | | parts that hold | time |
|---|---|---|---|
| CNPNamed | passed | 1 of 1 | 1m2s |
| CNPNever | not run | 0 of 0 | 0s |
| CNPPriority | failed | 1 of 2 | 13s |
`
	if diff := cmp.Diff(want, policyPage(tests, "v9.9.9", "report.yaml")); diff != "" {
		t.Errorf("(-want +got):\n%s", diff)
	}
}
