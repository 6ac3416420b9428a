// Package upstream runs Kubernetes' own network specs against a cluster and writes what became of each.
package upstream

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"regexp"
	"strings"

	"github.com/weft-cni/weft/tests/e2e/artifacts"
	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// Run builds the suite, brings a cluster of its own up with the product, runs the specs and writes the table to file. The
// returned error says that specs failed, or why none could run.
func Run(ctx context.Context, cfg cluster.Config, of Selection, file string) (err error) {
	progress := artifacts.Progress{Out: cfg.Log}
	product, err := cluster.FindProduct(ctx)
	if err != nil {
		return err
	}
	programs, err := build(ctx, progress)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, cluster.Down(context.WithoutCancel(ctx), cfg)) }()
	c, err := cluster.Up(ctx, cfg)
	if err != nil {
		return err
	}
	if err := c.Show(ctx, product); err != nil {
		return err
	}
	if err := progress.Step("load the images of the specs", func() error { return c.LoadUpstreamImages(ctx, programs) }); err != nil {
		return err
	}
	report := filepath.Join(c.Dir(), "report.json")
	runErr := progress.Step("run the specs", func() error { return of.runSpecs(ctx, c, programs, report) })
	specs, err := readReport(report, of)
	if err != nil {
		return errors.Join(runErr, err)
	}
	if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
		return fmt.Errorf("make a folder for the table: %w", err)
	}
	if err := os.WriteFile(file, []byte(table(of, specs)), 0o644); err != nil {
		return fmt.Errorf("write the table: %w", err)
	}
	counts := count(specs)
	fmt.Fprintf(cfg.Log, "%d passed, %d failed, %d skipped; the table is in %s\n", counts.passed, counts.failed, counts.skipped, file)
	return unexpected(specs)
}

func build(ctx context.Context, progress artifacts.Progress) (string, error) {
	cache, err := artifacts.OpenCache()
	if err != nil {
		return "", err
	}
	source, err := artifacts.Source(ctx)
	if err != nil {
		return "", err
	}
	return artifacts.BuildSuite(ctx, cache, source, progress)
}

// runSpecs runs ginkgo where the API server and the nodes can be reached. That specs fail is told by the report, not by an
// error.
func (of Selection) runSpecs(ctx context.Context, c *cluster.Cluster, programs, report string) error {
	var reasons []string
	for _, r := range of.left {
		reasons = append(reasons, r.pattern)
	}
	cmd := c.Fabric.Command(ctx, filepath.Join(programs, "ginkgo"), "--procs="+of.procs, "--no-color", "--timeout=2h",
		"--focus="+regexp.QuoteMeta(of.focus), "--skip="+cmp.Or(strings.Join(reasons, "|"), neverMatches),
		"--output-dir="+filepath.Dir(report), "--json-report="+filepath.Base(report),
		filepath.Join(programs, "e2e.test"), "--", "--provider=local", "--kubeconfig="+c.Kubeconfig(), "--num-nodes=3", "--disable-log-dump")
	text, err := os.Create(filepath.Join(c.Dir(), "specs.log"))
	if err != nil {
		return fmt.Errorf("make a log for the specs: %w", err)
	}
	defer text.Close()
	cmd.Stdout, cmd.Stderr = io.MultiWriter(text, failures{c.Config.Log}), text
	var exit *exec.ExitError
	if err := cmd.Run(); err != nil && !errors.As(err, &exit) {
		return fmt.Errorf("run ginkgo: %w", err)
	}
	return nil
}

// neverMatches is a pattern, since an empty one would match each spec.
const neverMatches = "^$"

// failures passes on only the lines that name a spec which failed, since the suite prints thousands.
type failures struct{ to io.Writer }

func (f failures) Write(p []byte) (int, error) {
	for line := range strings.Lines(string(p)) {
		if strings.Contains(line, "[FAIL]") || strings.HasPrefix(line, "Ran ") {
			fmt.Fprint(f.to, line)
		}
	}
	return len(p), nil
}
