package artifacts

import (
	"context"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
)

// Module is one folder of tests/e2e/modules: a go.mod that pins a program's version and everything it is built from.
// Each has its own, so that none moves another's dependencies and none moves the product's.
type Module struct {
	Name     string
	Packages []string // what to build; the last path element is the binary's name
	LDFlags  string
	Tags     string
	Cgo      bool
}

// Source is the folder of this Go module, tests/e2e.
func Source(ctx context.Context) (string, error) {
	out, err := Command{Args: []string{"go", "list", "-m", "-f", "{{.Dir}}", "github.com/weft-cni/weft/tests/e2e"}}.Run(ctx)
	if err != nil {
		return "", fmt.Errorf("find tests/e2e (run this inside it): %w", err)
	}
	return strings.TrimSpace(out), nil
}

// Build compiles the module's packages into one folder of the cache and returns that folder.
func (m Module) Build(ctx context.Context, cache Cache, source string, progress Progress) (string, error) {
	dir := filepath.Join(source, "modules", m.Name)
	key, err := m.key(dir)
	if err != nil {
		return "", err
	}
	return cache.Make("bin", m.Name, key, func(tmp string) error {
		if err := os.MkdirAll(tmp, 0o755); err != nil {
			return fmt.Errorf("make the output folder: %w", err)
		}
		for i, pkg := range m.Packages {
			what := fmt.Sprintf("build %s (%s %d/%d)", filepath.Base(pkg), m.Name, i+1, len(m.Packages))
			if err := progress.Step(what, func() error { return m.compile(ctx, dir, tmp, pkg) }); err != nil {
				return err
			}
		}
		return nil
	})
}

// Dir is where the module cache keeps the source of the Go module path that m pins.
func (m Module) Dir(ctx context.Context, source, path string) (string, error) {
	out, err := Command{
		Dir:  filepath.Join(source, "modules", m.Name),
		Args: []string{"go", "list", "-m", "-f", "{{.Dir}}", path},
	}.Run(ctx)
	if err != nil {
		return "", fmt.Errorf("find the source of %s: %w", path, err)
	}
	return strings.TrimSpace(out), nil
}

func (m Module) compile(ctx context.Context, dir, out, pkg string) error {
	return m.goCommand(ctx, dir, append(append([]string{"build"}, m.flags(out+"/")...), pkg)...)
}

// goCommand runs the go tool with a low priority, since others may work on the machine.
func (m Module) goCommand(ctx context.Context, dir string, args ...string) error {
	_, err := Command{Dir: dir, Env: m.env(), Args: append([]string{"nice", "-n", "10", "go"}, args...)}.Run(ctx)
	return err
}

// flags: two packages at a time, since these machines have few cores.
func (m Module) flags(out string) []string {
	flags := []string{"-p", "2", "-trimpath", "-buildvcs=false", "-ldflags", "-s -w " + m.LDFlags, "-o", out}
	if m.Tags != "" {
		flags = append(flags, "-tags", m.Tags)
	}
	return flags
}

func (m Module) env() []string {
	if m.Cgo {
		return []string{"CGO_ENABLED=1"}
	}
	return []string{"CGO_ENABLED=0"}
}

func (m Module) key(dir string) (string, error) {
	inputs := []string{runtime.Version(), runtime.GOARCH, strings.Join(m.Packages, " "), m.LDFlags, m.Tags, strings.Join(m.env(), " ")}
	for _, file := range []string{"go.mod", "go.sum"} {
		text, err := os.ReadFile(filepath.Join(dir, file))
		if err != nil {
			return "", fmt.Errorf("read %s of module %s: %w", file, m.Name, err)
		}
		inputs = append(inputs, string(text))
	}
	return Key(inputs...), nil
}
