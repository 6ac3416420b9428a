package cluster

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"

	"github.com/weft-cni/weft/tests/e2e/artifacts"
	"github.com/weft-cni/weft/tests/e2e/images"
	"github.com/weft-cni/weft/tests/lane"
)

// Cluster is a running cluster. All it knows is also in its folder, so that another process can Open it.
type Cluster struct {
	Config  Config
	Outside Machine // a host that is no node and has no route to pods
	Fabric  Machine // the network between them

	dir      string
	cache    artifacts.Cache
	binaries artifacts.Binaries
	images   images.Set
	fabric   fabric
	progress artifacts.Progress
	loaded   []string // archives that a new node gets too
	places   places
}

// prepare names everything; it starts nothing.
func prepare(cfg Config) (*Cluster, error) {
	if err := cfg.validate(); err != nil {
		return nil, err
	}
	cache, err := artifacts.OpenCache()
	if err != nil {
		return nil, err
	}
	f := newFabric(cfg.Name)
	dir := filepath.Join(cache.Dir, "clusters", cfg.Name)
	programs := filepath.Join(dir, "programs")
	return &Cluster{
		Config:   cfg,
		Outside:  namespaceMachine("outside", f.netns("outside"), programs),
		Fabric:   namespaceMachine("fabric", f.netns("fabric"), programs),
		dir:      dir,
		cache:    cache,
		binaries: artifacts.Binaries{Own: cache.OwnPrograms()},
		fabric:   f,
		progress: artifacts.Progress{Out: cfg.Log},
	}, nil
}

// build makes or finds the binaries and images.
func (c *Cluster) build(ctx context.Context) error {
	if err := artifacts.InstallPackages(ctx, c.progress); err != nil {
		return err
	}
	source, err := artifacts.Source(ctx)
	if err != nil {
		return err
	}
	if c.binaries, err = artifacts.BuildBinaries(ctx, c.cache, source, c.progress); err != nil {
		return err
	}
	c.images, err = images.Build(ctx, c.cache, c.binaries, c.progress)
	return err
}

// save writes the configuration for Open.
func (c *Cluster) save() error {
	text, err := json.Marshal(struct {
		Nodes              int
		ProxyMode, Backend string
		Lane               lane.Lane
		Underlay           Underlay
		Places             places
	}{c.Config.Nodes, c.Config.ProxyMode, c.Config.Backend, c.Config.Lane, c.Config.Underlay, c.places})
	if err != nil {
		return fmt.Errorf("write the cluster's configuration: %w", err)
	}
	return os.WriteFile(filepath.Join(c.dir, "config.json"), text, 0o644)
}

// Open finds the cluster that another process brought up.
func Open(cfg Config) (*Cluster, error) {
	c, err := prepare(cfg)
	if err != nil {
		return nil, err
	}
	text, err := os.ReadFile(filepath.Join(c.dir, "config.json"))
	if err != nil {
		return nil, fmt.Errorf("find a running cluster called %s: %w", cfg.Name, err)
	}
	var more struct{ Places places }
	if err := errors.Join(json.Unmarshal(text, &c.Config), json.Unmarshal(text, &more)); err != nil {
		return nil, fmt.Errorf("read the configuration of cluster %s: %w", cfg.Name, err)
	}
	c.places = more.Places
	return c, nil
}

// Dir is the cluster's folder: each node's disk with its logs, and admin.conf.
func (c *Cluster) Dir() string { return c.dir }

// Kubeconfig is the administrator's, for programs on this machine that enter the fabric.
func (c *Cluster) Kubeconfig() string { return filepath.Join(c.dir, "admin.conf") }
