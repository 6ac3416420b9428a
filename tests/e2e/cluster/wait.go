package cluster

import (
	"context"
	"errors"
	"fmt"
	"time"
)

// pollEvery is the time between two looks at a condition.
const pollEvery = 100 * time.Millisecond

// Eventually calls check until it returns nil, and gives up with check's last error when the time is over.
func Eventually(ctx context.Context, limit time.Duration, what string, check func() error) error {
	ctx, cancel := context.WithTimeout(ctx, limit)
	defer cancel()
	tick := time.NewTicker(pollEvery)
	defer tick.Stop()
	for {
		err := check()
		if err == nil {
			return nil
		}
		select {
		case <-ctx.Done():
			if errors.Is(context.Cause(ctx), context.DeadlineExceeded) {
				return fmt.Errorf("wait %s until %s: %w", limit, what, err)
			}
			return fmt.Errorf("wait until %s: %w", what, context.Cause(ctx))
		case <-tick.C:
		}
	}
}
