package cluster

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weft-cni/weft/tests/e2e/artifacts"
	"github.com/weft-cni/weft/tests/e2e/images"
	"github.com/weft-cni/weft/tests/lane"
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

// LoadImage imports an archive on every node, and on each node that joins later. One that this process has loaded already is
// there.
func (c *Cluster) LoadImage(ctx context.Context, archive string) error {
	if slices.Contains(c.loaded, archive) {
		return nil
	}
	if err := inParallel(c.Config.Nodes, func(n int) error { return c.Node(n).LoadImage(ctx, archive) }); err != nil {
		return err
	}
	c.loaded = append(c.loaded, archive)
	return nil
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
	manifest, err := c.Manifest(p)
	if err != nil {
		return err
	}
	return c.Apply(ctx, manifest)
}

// Manifest is the product's manifest as an administrator of this cluster applies it: the file as it is, unless the cluster
// needs another net-conf.json, which is a change to that one value.
func (c *Cluster) Manifest(p Product) (string, error) {
	text, err := os.ReadFile(p.Manifest)
	if err != nil {
		return "", fmt.Errorf("read the product's manifest: %w", err)
	}
	if c.Config.Lane == lane.IPv4 && c.Config.Backend == "" {
		return string(text), nil
	}
	return WithNetConf(string(text), c.Config.Lane.NetConf(cmp.Or(c.Config.Backend, `{"Type": "vxlan"}`)))
}

// WithNetConf replaces the text block under the key net-conf.json of a manifest.
func WithNetConf(manifest, conf string) (string, error) {
	const key = "  net-conf.json: |\n"
	before, after, found := strings.Cut(manifest, key)
	if !found {
		return "", errors.New("the product's manifest has no net-conf.json to change")
	}
	for strings.HasPrefix(after, "    ") {
		_, after, _ = strings.Cut(after, "\n")
	}
	return before + key + "    " + conf + "\n" + after, nil
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
