// Package e2e makes the module remember what Kubernetes' own test suite needs: it is built with
// `go test -c k8s.io/kubernetes/test/e2e`.
package e2e

import _ "k8s.io/kubernetes/test/e2e"
