package artifacts

import (
	"context"
	"os"
	"path/filepath"
)

// BuildSuite builds Kubernetes' own test suite, e2e.test, and ginkgo, which runs it, into one folder. It takes about ten
// minutes, so it is done only when it is asked for.
func BuildSuite(ctx context.Context, cache Cache, source string, progress Progress) (string, error) {
	m := KubernetesModule()
	m.Packages = []string{"github.com/onsi/ginkgo/v2/ginkgo"}
	dir := filepath.Join(source, "modules", m.Name)
	key, err := m.key(dir)
	if err != nil {
		return "", err
	}
	return cache.Make("bin", "suite", key, func(tmp string) error {
		if err := os.MkdirAll(tmp, 0o755); err != nil {
			return err
		}
		err := progress.Step("build ginkgo", func() error { return m.compile(ctx, dir, tmp, m.Packages[0]) })
		if err != nil {
			return err
		}
		return progress.Step("build e2e.test", func() error {
			args := append([]string{"test", "-c"}, m.flags(filepath.Join(tmp, "e2e.test"))...)
			return m.goCommand(ctx, dir, append(args, "k8s.io/kubernetes/test/e2e")...)
		})
	})
}
