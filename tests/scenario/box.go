package scenario

import (
	"context"
	"sync"
	"sync/atomic"
	"syscall"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// Box is the computer of one node.
type Box interface {
	inside
	outside
}

// inside is the kernel as the daemon sees it.
type inside interface {
	kernel.Kernel
	// Host reads the machine's own network configuration.
	Host(ctx context.Context) (kernel.Host, error)
	// Watch tells when the kernel's network configuration may have changed.
	Watch(ctx context.Context) (kernel.Changes, error)
}

// outside is the kernel as everybody else on the machine sees it.
type outside interface {
	// Do runs a command of the ip or bridge tools. Beyond these, "unplug" takes the network card out of the machine, and
	// "plug" puts another one in.
	Do(command string) error
	// Tables reads what the kernel holds, without the daemon's help.
	Tables() (Tables, error)
	// Underlay is the device that a family's tunnels have to use; without a device, or an address on it, that is zero.
	Underlay(f subnet.Family) Underlay
}

// counted is a Box whose Apply calls are counted, and fail on demand.
type counted struct {
	Box
	writes atomic.Int64

	mu    sync.Mutex // guards in and errno
	in    int        // the how manieth Apply from now fails; 0 is none
	errno syscall.Errno
}

// failNext makes the n-th Apply from now fail.
func (c *counted) failNext(n int, errno syscall.Errno) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.in, c.errno = n, errno
}

// Apply implements kernel.Kernel.
func (c *counted) Apply(ctx context.Context, op kernel.Op) error {
	if err := c.failure(); err != nil {
		return err
	}
	c.writes.Add(1)
	return c.Box.Apply(ctx, op)
}

func (c *counted) failure() error {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.in == 0 {
		return nil
	}
	c.in--
	if c.in == 0 {
		return c.errno
	}
	return nil
}
