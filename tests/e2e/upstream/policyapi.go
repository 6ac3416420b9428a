package upstream

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weft-cni/weft/tests/e2e/artifacts"
	"github.com/weft-cni/weft/tests/e2e/cluster"
	"github.com/weft-cni/weft/tests/e2e/images"
)

// RunPolicyAPI brings a cluster of its own up with the product and with ClusterNetworkPolicy defined, runs that API's
// conformance suite and has it write its report to file. The returned error says that tests failed, or why none could run.
func RunPolicyAPI(ctx context.Context, cfg cluster.Config, file string) (err error) {
	product, err := cluster.FindProduct(ctx)
	if err != nil {
		return err
	}
	cache, err := artifacts.OpenCache()
	if err != nil {
		return err
	}
	source, err := artifacts.Source(ctx)
	if err != nil {
		return err
	}
	progress := artifacts.Progress{Out: cfg.Log}
	programs, err := artifacts.BuildPolicyAPI(ctx, cache, source, progress)
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
	if err := c.LoadSCTPImage(ctx); err != nil {
		return err
	}
	definition := filepath.Join(filepath.Dir(product.Manifest), "clusternetworkpolicy.yml")
	if _, err := c.Kubectl(ctx, "apply", "--server-side", "-f", definition); err != nil {
		return err
	}
	return progress.Step("run the suite", func() error { return runPolicyAPI(ctx, c, programs, file) })
}

// runPolicyAPI runs the suite where the API server and the nodes can be reached, and writes the page of what became of each test
// beside the report. What the suite says stays in the cache, since the cluster's folder goes with the cluster.
func runPolicyAPI(ctx context.Context, c *cluster.Cluster, programs, file string) error {
	file, err := filepath.Abs(file)
	if err != nil {
		return fmt.Errorf("find the report's folder: %w", err)
	}
	cache, err := artifacts.OpenCache()
	if err != nil {
		return err
	}
	log, err := os.Create(filepath.Join(cache.Dir, "policyapi.log"))
	if err != nil {
		return fmt.Errorf("make a log for the suite: %w", err)
	}
	defer log.Close()
	cmd := c.Fabric.Command(ctx, filepath.Join(programs, artifacts.PolicyAPITest), "-test.v", "-test.timeout=90m", "-cluster="+c.Kubeconfig(),
		"-image="+images.SCTPTools, "-report="+file, "-version=v0.1.0")
	cmd.Stdout, cmd.Stderr = log, log
	if runErr := cmd.Run(); runErr != nil {
		err = fmt.Errorf("run the suite of ClusterNetworkPolicy, which says why in %s: %w", log.Name(), runErr)
	}
	return errors.Join(err, writePolicyPage(log.Name(), file))
}

// writePolicyPage turns what the suite said into a page beside the report.
func writePolicyPage(log, report string) error {
	text, err := os.ReadFile(log)
	if err != nil {
		return fmt.Errorf("read what the suite said: %w", err)
	}
	tests, err := readPolicyTests(string(text))
	if err != nil {
		return err
	}
	page := policyPage(tests, artifacts.PolicyAPIVersion, filepath.Base(report))
	if err := os.WriteFile(filepath.Join(filepath.Dir(report), "e2e-policyapi.md"), []byte(page), 0o644); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}
