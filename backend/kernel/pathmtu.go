package kernel

import (
	"context"
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"
)

// PathMTU asks the kernel how large a packet to each of the addresses may be, as far as it says less than the link: the mtu
// of a route (ip route add ... mtu 1400), or what a router on the way has answered to a packet that was too large, which
// the kernel remembers for ten minutes (ip route show cache). Addresses without either, or without a route, are not in the
// answer.
func (c *Conn) PathMTU(ctx context.Context, to []netip.Addr) (map[netip.Addr]int, error) {
	out := map[netip.Addr]int{}
	for _, addr := range to {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		routes, err := c.handle.RouteGet(addr.AsSlice())
		if errors.Is(err, unix.ENETUNREACH) || errors.Is(err, unix.EHOSTUNREACH) || errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EACCES) {
			continue // no route, or one that leads nowhere
		}
		if err != nil {
			return nil, fmt.Errorf("ask for the path to %s: %w", addr, err)
		}
		if len(routes) > 0 && routes[0].MTU > 0 {
			out[addr] = routes[0].MTU
		}
	}
	return out, nil
}
