// Package policyapi runs the conformance suite of ClusterNetworkPolicy against a cluster that stands. The program is its test
// binary: `go test -c`, which tests/e2e/upstream builds and runs.
package policyapi
