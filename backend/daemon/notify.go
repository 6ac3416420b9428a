package daemon

import (
	"context"
	"fmt"
	"net"
)

// notifyReady tells systemd that a Type=notify unit is up. An empty socket means that nobody asked.
func notifyReady(ctx context.Context, socket string) error {
	if socket == "" {
		return nil
	}
	var d net.Dialer
	c, err := d.DialContext(ctx, "unixgram", socket)
	if err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	defer func() { _ = c.Close() }()
	if _, err := c.Write([]byte("READY=1")); err != nil {
		return fmt.Errorf("notify systemd: %w", err)
	}
	return nil
}
