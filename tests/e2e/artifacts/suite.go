package artifacts

import (
	"context"
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
