package daemon

import (
	"context"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// Seams are the three places through which the agent changes a node, and all of them: netlink, nftables and files. The
// zero value is the real thing. A test puts something in between, to end the agent at any step or to let a step fail.
type Seams struct {
	Kernel func(Kernel) Kernel
	NFT    func(knftables.Interface) knftables.Interface
	Disk   subnet.Disk
}

// Kernel is the kernel as the data plane needs it: what is ours, and what is around it.
type Kernel interface {
	kernel.Kernel
	Host(ctx context.Context) (kernel.Host, error)
}

func (s Seams) kernel(real Kernel) Kernel {
	if s.Kernel == nil {
		return real
	}
	return s.Kernel(real)
}
