package cluster

import (
	"context"
	"fmt"
	"os"
)

// AddNode boots one more node and joins it to the cluster. It is registered when AddNode returns, not Ready.
func (c *Cluster) AddNode(ctx context.Context) (*Node, error) {
	if err := c.build(ctx); err != nil {
		return nil, err
	}
	n := c.Config.Nodes + 1
	if err := c.bootNode(ctx, n); err != nil {
		return nil, err
	}
	c.Config.Nodes = n
	if err := c.save(); err != nil {
		return nil, err
	}
	if err := c.join(ctx, n); err != nil {
		return nil, err
	}
	return c.Node(n), nil
}

// RemoveLastNode cuts the power of the node that was added last and throws its disk away. The Node object stays: whether
// and when it is deleted is what tests are about.
func (c *Cluster) RemoveLastNode(ctx context.Context) error {
	last := c.Node(c.Config.Nodes)
	if err := last.PowerOff(ctx); err != nil {
		return err
	}
	if err := os.RemoveAll(last.disk()); err != nil {
		return fmt.Errorf("throw the disk of %s away: %w", last.Name, err)
	}
	c.Config.Nodes--
	return c.save()
}
