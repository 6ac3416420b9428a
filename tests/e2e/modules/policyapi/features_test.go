package policyapi

import (
	"fmt"
	"testing"

	"sigs.k8s.io/network-policy-api/conformance/tests"
)

// Needs no cluster: tests/e2e/upstream reads the lines for the page of results.
func TestEachTestNamesItsFeatures(t *testing.T) {
	for _, test := range tests.ConformanceTests {
		if len(test.Features) == 0 {
			t.Errorf("%s belongs to no feature", test.ShortName)
		}
		for _, feature := range test.Features {
			fmt.Printf("feature of %s: %s\n", test.ShortName, feature)
		}
	}
}
