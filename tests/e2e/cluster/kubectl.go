package cluster

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
)

// KubectlCommand prepares a kubectl command as the cluster's administrator. It runs in the fabric, so it reads the files of
// this machine and reaches the API server.
func (c *Cluster) KubectlCommand(ctx context.Context, args ...string) *exec.Cmd {
	line := append([]string{filepath.Join(c.programs(), "kubectl"), "--kubeconfig", c.Kubeconfig()}, args...)
	return c.Fabric.Command(ctx, line...)
}

// Kubectl runs kubectl and returns its standard output.
func (c *Cluster) Kubectl(ctx context.Context, args ...string) (string, error) {
	return c.kubectl(ctx, nil, args...)
}

func (c *Cluster) kubectl(ctx context.Context, input io.Reader, args ...string) (string, error) {
	cmd := c.KubectlCommand(ctx, args...)
	cmd.Stdin = input
	out, err := output(cmd)
	if err != nil {
		return out, fmt.Errorf("kubectl %s: %w", strings.Join(args, " "), err)
	}
	return strings.TrimSpace(out), nil
}

// Apply hands manifests to the API server.
func (c *Cluster) Apply(ctx context.Context, manifests string) error {
	_, err := c.kubectl(ctx, strings.NewReader(manifests), "apply", "-f", "-")
	return err
}

// Get reads objects as JSON into into.
func (c *Cluster) Get(ctx context.Context, into any, args ...string) error {
	out, err := c.Kubectl(ctx, append(append([]string{"get"}, args...), "-o", "json")...)
	if err != nil {
		return err
	}
	if err := json.Unmarshal([]byte(out), into); err != nil {
		return fmt.Errorf("read what kubectl get %s answered: %w", strings.Join(args, " "), err)
	}
	return nil
}
