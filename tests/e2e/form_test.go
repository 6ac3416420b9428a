package e2e

import (
	"flag"
	"fmt"
	"go/ast"
	"go/parser"
	"go/token"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// The form of a run, as WEFT_E2E_FORM asks for it. The short one is what a lane beside the main one plays in every run.
const (
	envForm   = "WEFT_E2E_FORM"
	shortForm = "short"
)

// shortNames are the tests of the short form: the manifest applied to bare nodes, what the contract promises, pods that talk over
// every node in every family, by Service, name and host port, to the outside and back, a policy, and agents that are killed under
// traffic.
func shortNames() []string {
	return []string{
		"TestC02NodesTurnReadyOnlyAfterTheManifestIsApplied",
		"TestTheShortFormNamesTestsThatAreThere",
		"TestTheAnnotationsAreFlannels",
		"TestSubnetEnvIsFlannelsByteForByte",
		"TestTheDeviceIsAsTheContractSays",
		"TestTheKernelsHoldExactlyTheirPeers",
		"TestEveryPairGoesTheWayThatTheConfigurationSays",
		"TestEveryPairOfNodesCarriesPingsUpToTheMTU",
		"TestN13ThePodsAddressIsKeptBetweenPods",
		"TestAPodReachesTheOutsideUnderItsNodesAddress",
		"TestAServiceAndItsNameLeadToThePodFromEveryNode",
		"TestDNSAnswersEveryPodOverUDPAndTCP",
		"TestAHostPortLeadsToThePodFromInsideAndOutside",
		"TestADefaultDenyAndAnAllowanceHoldOnBothNodes",
		"TestFaultsLoseNoPacketOnARealCluster",
	}
}

// partedNames are those where some nodes have no way to others.
func partedNames() []string {
	return []string{
		"TestC02NodesTurnReadyOnlyAfterTheManifestIsApplied",
		"TestTheAnnotationsAreFlannels",
		"TestSubnetEnvIsFlannelsByteForByte",
		"TestTheKernelsHoldExactlyTheirPeers",
		"TestEveryPairGoesTheWayThatTheConfigurationSays",
		"TestAPeerThatNoBackendReachesIsNamedWithTheReason",
	}
}

// shortFault is the one fault of the short form.
const shortFault = "agents: SIGKILL"

// chooseShortForm has the tests of the short form on such a cluster run, unless the command line names some itself.
func chooseShortForm(cfg cluster.Config) error {
	if !flag.Parsed() {
		flag.Parse()
	}
	run := flag.Lookup("test.run").Value
	if run.String() != "" {
		return nil
	}
	list := shortNames()
	if unreachable(cfg) {
		list = partedNames()
	}
	var names []string
	for _, name := range list {
		names = append(names, regexp.QuoteMeta(name))
	}
	if err := run.Set("^(" + strings.Join(names, "|") + ")$"); err != nil {
		return fmt.Errorf("choose the tests of the short form: %w", err)
	}
	return nil
}

func TestTheShortFormNamesTestsThatAreThere(t *testing.T) {
	files, err := filepath.Glob("*_test.go")
	must(t, err)
	var there []string
	for _, name := range files {
		file, err := parser.ParseFile(token.NewFileSet(), name, nil, parser.SkipObjectResolution)
		must(t, err)
		for _, decl := range file.Decls {
			if fn, is := decl.(*ast.FuncDecl); is {
				there = append(there, fn.Name.Name)
			}
		}
	}
	for _, name := range slices.Concat(shortNames(), partedNames()) {
		if !slices.Contains(there, name) {
			t.Errorf("no test is called %s", name)
		}
	}
	if !slices.ContainsFunc(groups(), func(f fault) bool { return f.name == shortFault }) {
		t.Errorf("no fault is called %s", shortFault)
	}
}
