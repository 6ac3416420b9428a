package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"time"

	"github.com/weft-cni/weft/tests/e2e/artifacts"
	"github.com/weft-cni/weft/tests/e2e/images"
)

// ErrNotBuilt says that the product's image is missing.
var ErrNotBuilt = errors.New("dist/image.tar is missing: run make image")

// Product is what the repository builds and a cluster gets.
type Product struct {
	Image    string // the archive that `make image` wrote
	Manifest string // the file that users apply
}

// FindProduct finds both in the repository that this module is part of.
func FindProduct(ctx context.Context) (Product, error) {
	source, err := artifacts.Source(ctx)
	if err != nil {
		return Product{}, err
	}
	root := filepath.Join(source, "..", "..")
	p := Product{Image: filepath.Join(root, "dist", "image.tar"), Manifest: filepath.Join(root, "manifests", "kube-flannel.yml")}
	if _, err := os.Stat(p.Image); err != nil {
		return Product{}, ErrNotBuilt
	}
	return p, nil
}

// LoadImage imports an archive on every node, and on each node that joins later.
func (c *Cluster) LoadImage(ctx context.Context, archive string) error {
	c.loaded = append(c.loaded, archive)
	return inParallel(c.Config.Nodes, func(n int) error { return c.Node(n).LoadImage(ctx, archive) })
}

// LoadUpstreamImages gives every node the images that Kubernetes' own network specs ask for. programs is the folder that
// artifacts.BuildSuite filled.
func (c *Cluster) LoadUpstreamImages(ctx context.Context, programs string) error {
	own, err := artifacts.Source(ctx)
	if err != nil {
		return err
	}
	source, err := artifacts.KubernetesModule().Dir(ctx, own, "k8s.io/kubernetes")
	if err != nil {
		return err
	}
	archives, err := images.Upstream(ctx, c.cache, c.binaries, images.Extra{Source: source, Programs: programs}, c.progress)
	if err != nil {
		return err
	}
	for _, archive := range archives {
		if err := c.LoadImage(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}

// LoadSCTPImage gives every node the image images.SCTPTools.
func (c *Cluster) LoadSCTPImage(ctx context.Context) error {
	archive, err := images.SCTP(ctx, c.cache, c.binaries, c.progress)
	if err != nil {
		return err
	}
	return c.LoadImage(ctx, archive)
}

// Install loads the product's image and applies its manifest with plain kubectl, and waits for nothing.
func (c *Cluster) Install(ctx context.Context, p Product) error {
	if err := c.LoadImage(ctx, p.Image); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, "apply", "-f", p.Manifest)
	return err
}

// WaitReady waits until all nodes and the cluster's own pods are Ready.
func (c *Cluster) WaitReady(ctx context.Context, limit time.Duration) error {
	timeout := fmt.Sprintf("--timeout=%ds", int(limit.Seconds()))
	if _, err := c.Kubectl(ctx, "wait", "--for=condition=Ready", "node", "--all", timeout); err != nil {
		return err
	}
	_, err := c.Kubectl(ctx, "-n", "kube-system", "rollout", "status", "deployment/coredns", timeout)
	return err
}
