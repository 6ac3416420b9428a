package cluster

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"sync"
)

// Up waits for other processes' clusters, builds what is missing, removes what an earlier run left, and brings the cluster up
// to the point where every node has registered. Nodes are not Ready then: they have no network plugin.
func Up(ctx context.Context, cfg Config) (*Cluster, error) {
	c, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	if err := c.acquire(ctx); err != nil {
		return nil, err
	}
	if err := c.build(ctx); err != nil {
		return nil, err
	}
	if err := c.makeRoom(ctx); err != nil {
		return nil, err
	}
	if err := c.start(ctx); err != nil {
		return c, err
	}
	return c, nil
}

func (c *Cluster) start(ctx context.Context) error {
	if err := os.MkdirAll(c.dir, 0o755); err != nil {
		return fmt.Errorf("make the cluster's folder: %w", err)
	}
	if err := writeHolder(c.ownerFile(), newHolder(c.Config)); err != nil {
		return err
	}
	if err := c.linkPrograms(); err != nil {
		return err
	}
	if err := c.save(); err != nil {
		return err
	}
	if err := raiseInotifyLimit(c.dir); err != nil {
		return err
	}
	err := c.progress.Step(fmt.Sprintf("boot %d nodes and load images", c.Config.Nodes), func() error {
		if err := c.fabric.build(ctx, c.Config.Underlay); err != nil {
			return err
		}
		return inParallel(c.Config.Nodes, func(n int) error { return c.bootNode(ctx, n) })
	})
	if err != nil {
		return err
	}
	err = c.progress.Step("kubeadm init", func() error {
		return inParallel(c.Config.Nodes, func(n int) error {
			if n > 1 {
				return c.loadEarly(ctx, n)
			}
			return c.initControlPlane(ctx)
		})
	})
	if err != nil {
		return err
	}
	err = c.progress.Step(fmt.Sprintf("kubeadm join, %d nodes", c.Config.Nodes-1), func() error {
		return inParallel(c.Config.Nodes, func(n int) error {
			if n > 1 {
				return c.join(ctx, n)
			}
			return c.loadEarly(ctx, n)
		})
	})
	c.loaded = append(c.loaded, c.Config.Early...)
	return err
}

// loadEarly loads what the n-th node does not need yet: kubeadm is mostly waiting, and the processors have time.
func (c *Cluster) loadEarly(ctx context.Context, n int) error {
	for _, archive := range c.Config.Early {
		if err := c.Node(n).LoadImage(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}

// bootNode makes the n-th node, starts it and loads the images it needs.
func (c *Cluster) bootNode(ctx context.Context, n int) error {
	if err := c.installNode(n); err != nil {
		return err
	}
	node := c.Node(n)
	if err := node.PowerOn(ctx); err != nil {
		return err
	}
	archives := append([]string{}, c.images.Everywhere...)
	if n == 1 {
		archives = append(archives, c.images.ControlPlane...)
	}
	for _, archive := range append(archives, c.loaded...) {
		if err := node.LoadImage(ctx, archive); err != nil {
			return err
		}
	}
	return nil
}

// linkPrograms gathers the programs that nodes run into one folder.
func (c *Cluster) linkPrograms() error {
	if err := os.MkdirAll(c.programs(), 0o755); err != nil {
		return fmt.Errorf("make the folder of programs: %w", err)
	}
	all := []string{filepath.Join(c.binaries.Own, "probe")}
	for _, dir := range []string{c.binaries.Kubernetes, c.binaries.Etcd, c.binaries.Containerd, c.binaries.Runc, c.binaries.CRITools} {
		files, err := filepath.Glob(filepath.Join(dir, "*"))
		if err != nil {
			return fmt.Errorf("list the programs: %w", err)
		}
		all = append(all, files...)
	}
	for _, file := range all {
		if err := os.Link(file, filepath.Join(c.programs(), filepath.Base(file))); err != nil {
			return fmt.Errorf("gather the programs: %w", err)
		}
	}
	return nil
}

func (c *Cluster) programs() string { return filepath.Join(c.dir, "programs") }

// inParallel calls do for 1 to n at once and returns all errors.
func inParallel(n int, do func(n int) error) error {
	errs := make([]error, n)
	var group sync.WaitGroup
	for i := range n {
		group.Go(func() { errs[i] = do(i + 1) })
	}
	group.Wait()
	return errors.Join(errs...)
}
