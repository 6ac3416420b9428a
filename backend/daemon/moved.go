package daemon

import (
	"context"
	"time"

	"github.com/weft-cni/weft/subnet"
)

const (
	movedPeriod = 2 * time.Second
	movedLong   = 5 * time.Minute // a pod that is deleted has gone by then, whatever its grace period
)

// moved tells whether the node was given another range since the subnet.env of before was written, as one is whose Node was deleted
// and made anew. The pods' bridge keeps the address of the old range for as long as one of its pods lives, and no new pod
// starts meanwhile.
func moved(before, now subnet.Env) bool {
	for _, f := range subnet.Families() {
		if was, is := before.Subnets[f], now.Subnets[f]; was.IsValid() && is.IsValid() && was != is {
			return true
		}
	}
	return false
}

// chase pokes again and again for a while. After a move the collection looks so for the end of the last pod of before, far more often
// than every minute.
func chase(ctx context.Context, poke func()) {
	ctx, cancel := context.WithTimeout(ctx, movedLong)
	defer cancel()
	tick := time.NewTicker(movedPeriod)
	defer tick.Stop()
	for {
		poke()
		select {
		case <-ctx.Done():
			return
		case <-tick.C:
		}
	}
}
