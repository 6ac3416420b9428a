package artifacts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
)

// ConntrackServer is a server that one spec wants as an image of its own.
const ConntrackServer = "regression-issue-74839"

// BuildSuite builds Kubernetes' own test suite, e2e.test, and ginkgo, which runs it, into one folder. It takes about ten
// minutes, so it is done only when it is asked for.
func BuildSuite(ctx context.Context, cache Cache, source string, progress Progress) (string, error) {
	m := KubernetesModule()
	m.Packages = []string{"github.com/onsi/ginkgo/v2/ginkgo", "k8s.io/kubernetes/test/images/" + ConntrackServer}
	dir := filepath.Join(source, "modules", m.Name)
	key, err := m.key(dir)
	if err != nil {
		return "", err
	}
	return cache.Make("bin", "suite", key, func(tmp string) error {
		if err := os.MkdirAll(tmp, 0o755); err != nil {
			return err
		}
		for _, pkg := range m.Packages {
			if err := progress.Step("build "+filepath.Base(pkg), func() error { return m.compile(ctx, dir, tmp, pkg) }); err != nil {
				return err
			}
		}
		return progress.Step("build e2e.test", func() error {
			args := append([]string{"test", "-c"}, m.flags(filepath.Join(tmp, "e2e.test"))...)
			return m.goCommand(ctx, dir, append(args, "k8s.io/kubernetes/test/e2e")...)
		})
	})
}

// BuildPolicyAPI builds the conformance suite of ClusterNetworkPolicy, one test binary, and returns the folder that it is in.
func BuildPolicyAPI(ctx context.Context, cache Cache, source string, progress Progress) (string, error) {
	m := Module{Name: "policyapi"}
	dir := filepath.Join(source, "modules", m.Name)
	key, err := m.key(dir)
	if err != nil {
		return "", err
	}
	for _, file := range []string{"conformance_test.go", "features_test.go", "setup_test.go"} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return "", fmt.Errorf("read the suite's source: %w", err)
		}
		key = Key(key, string(text))
	}
	return cache.Make("bin", m.Name, key, func(tmp string) error {
		if err := os.MkdirAll(tmp, 0o755); err != nil {
			return fmt.Errorf("make the output folder: %w", err)
		}
		return progress.Step("build "+m.Name, func() error {
			return m.goCommand(ctx, dir, append([]string{"test", "-c"}, m.flags(filepath.Join(tmp, PolicyAPITest))...)...)
		})
	})
}

// What that binary is called, and the version of the API in modules/policyapi/go.mod.
const (
	PolicyAPITest    = "policyapi.test"
	PolicyAPIVersion = "v0.3.0"
)
