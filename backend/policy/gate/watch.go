package gate

import (
	"context"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/subnet/attach"
)

// Watch has a value soon after the table or its rules were changed, by whomever; Shut then looks at them. What the plugin
// does to the sets is not meant. The channel is closed when ctx ends.
func (g *Gate) Watch(ctx context.Context) <-chan struct{} {
	poked := make(chan struct{}, 1)
	go func() {
		defer close(poked)
		defer g.table.heard.Store(false)
		g.table.host.Listen(ctx, func(c netfilter.Change) {
			if c.Lost {
				g.table.heard.Store(true) // from here on
			}
			if !doubtful(c) {
				return
			}
			g.table.doubt.Store(true)
			select {
			case poked <- struct{}{}:
			default: // one is waiting already, and one is enough
			}
		})
	}()
	return poked
}

// doubtful tells whether the rules may be others after a change.
func doubtful(c netfilter.Change) bool {
	elements := c.Kind == unix.NFT_MSG_NEWSETELEM || c.Kind == unix.NFT_MSG_DELSETELEM
	return c.Lost || c.Table == "inet "+attach.TableName && !elements
}
