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

// runPolicyAPI runs the suite where the API server and the nodes can be reached; what it says is in policyapi.log.
func runPolicyAPI(ctx context.Context, c *cluster.Cluster, programs, file string) error {
	file, err := filepath.Abs(file)
	if err != nil {
		return fmt.Errorf("find the report's folder: %w", err)
	}
	log, err := os.Create(filepath.Join(c.Dir(), "policyapi.log"))
	if err != nil {
		return fmt.Errorf("make a log for the suite: %w", err)
	}
	defer log.Close()
	cmd := c.Fabric.Command(ctx, filepath.Join(programs, artifacts.PolicyAPITest), "-test.v", "-test.timeout=90m", "-cluster="+c.Kubeconfig(),
		"-image="+images.SCTPTools, "-report="+file, "-version=v0.1.0")
	cmd.Stdout, cmd.Stderr = log, log
	if err := cmd.Run(); err != nil {
		return fmt.Errorf("run the suite of ClusterNetworkPolicy, whose report is in %s: %w", file, err)
	}
	return nil
}
