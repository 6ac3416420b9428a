package e2e

import (
	"context"
	"errors"
	"fmt"
	"os"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// shared is the cluster of all tests. TestMain brings it up without the product; TestC02 installs that, or else the first
// test that needs it.
type shared struct {
	*cluster.Cluster
	product   cluster.Product
	installed bool
	found     bool // the cluster is one that an earlier run kept

	secondLoaded bool // the nodes have the image of the second version
}

var suite shared

func TestMain(m *testing.M) {
	if os.Getuid() != 0 {
		fmt.Println("skipped: a cluster needs root")
		return
	}
	code, err := runOnCluster(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, "e2e:", err)
		code = 1
	}
	os.Exit(code)
}

// runOnCluster brings the cluster up, runs the tests and takes it down. With WEFT_E2E_KEEP=1 the cluster stays, for a look
// at what a failed test left, WEFT_E2E_NAME=e2e go run ./cmd/cluster kubectl get pods -A, and for the next such run to use.
func runOnCluster(m *testing.M) (code int, err error) {
	ctx := context.Background()
	if suite.product, err = cluster.FindProduct(ctx); err != nil {
		return 1, err
	}
	cfg, err := cluster.FromEnvironment("e2e")
	if err != nil {
		return 1, err
	}
	cfg.Log, cfg.Keep = os.Stdout, os.Getenv("WEFT_E2E_KEEP") != ""
	cfg.Early = []string{suite.product.Image} // it runs nowhere before a test applies the manifest
	if os.Getenv(envForm) == shortForm {
		if err := chooseShortForm(cfg); err != nil {
			return 1, err
		}
	}
	if cfg.Keep {
		if suite.Cluster, err = cluster.Find(ctx, cfg); err != nil {
			return 1, err
		}
		suite.found = suite.Cluster != nil
	} else {
		defer func() { err = errors.Join(err, downIfUp(ctx, cfg)) }()
	}
	if !suite.found {
		if suite.Cluster, err = cluster.Up(ctx, cfg); err != nil {
			return 1, err
		}
	}
	return m.Run(), nil
}

// downIfUp leaves a cluster alone that was refused to this run, and so is another's.
func downIfUp(ctx context.Context, cfg cluster.Config) error {
	if suite.Cluster == nil {
		return nil
	}
	return cluster.Down(ctx, cfg)
}

// withProduct returns the cluster with the product installed and everything Ready.
func withProduct(t *testing.T) *cluster.Cluster {
	t.Helper()
	if !suite.installed {
		must(t, suite.Install(t.Context(), suite.product))
		if suite.found {
			restartAgents(t) // the image may be another than the earlier run's, under the same name
		}
		must(t, suite.WaitReady(t.Context(), 2*time.Minute))
		suite.installed = true
	}
	return suite.Cluster
}

// restartAgents rolls the DaemonSet over.
func restartAgents(t *testing.T) {
	t.Helper()
	for _, args := range [][]string{{"rollout", "restart", "daemonset/kube-flannel-ds"}, {"rollout", "status", "daemonset/kube-flannel-ds", "--timeout=180s"}} {
		_, err := suite.Kubectl(t.Context(), append([]string{"-n", "kube-flannel"}, args...)...)
		must(t, err)
	}
}

func must(t *testing.T, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// eventually fails the test if check does not return nil within limit, and returns how long that took.
func eventually(t *testing.T, limit time.Duration, what string, check func() error) time.Duration {
	t.Helper()
	start := time.Now()
	must(t, cluster.Eventually(t.Context(), limit, what, check))
	return time.Since(start)
}

// contextOfCleanup: a test's own context is over when its cleanup runs.
func contextOfCleanup() context.Context { return context.Background() }
