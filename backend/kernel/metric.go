package kernel

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"time"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// LastMetric is the largest there is: every other route to the same destination wins.
const LastMetric = 1<<32 - 1

// RouteMetric is what the kernel gives a route of a family that names none.
func RouteMetric(f subnet.Family) int { return [2]int{subnet.IPv4: 0, subnet.IPv6: 1024}[f] }

// bestMetric is the smallest that a route of ours gets: those before it are helpers'.
const bestMetric = helperMetric + 1

// isStepped reports whether routes on a key are replaced by better ones. Linux cannot replace an IPv6 route without loss: who has
// just found the old one, and has not taken a reference to it when the last of the others goes, is told that there is no route
// (ip6_rt_pcpu_alloc). So the new route comes before the old one, by a metric that is better by one, and the old one goes
// when nobody can be looking at it any more. Such a metric is the kernel's business: a State has the key that was wanted.
func (k RouteKey) isStepped() bool {
	return k.Dst.Addr().Is6() && k.Metric == RouteMetric(subnet.IPv6)
}

// wantedMetric is the metric by which a route of ours is known.
func wantedMetric(r netlink.Route) int {
	usual := RouteMetric(subnet.IPv6)
	if r.Family == unix.AF_INET6 && r.Protocol == Protocol && r.Type == unix.RTN_UNICAST && r.Priority < usual {
		return usual
	}
	return r.Priority
}

// metrics are the steps that IPv6 routes have made.
type metrics struct {
	now  map[netip.Prefix]int  // of routes whose metric is not the wanted one
	left map[RouteKey]struct{} // what better routes have taken the place of
	made int                   // steps so far: a dump that began before the last one does not know it
}

// metric is what a route on a key has now, or would get.
func (c *Conn) metric(key RouteKey) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	if now, ok := c.metrics.now[key.Dst]; ok && key.isStepped() {
		return now
	}
	return key.Metric
}

// stepped notes that a route has a better metric now, and what is left behind it.
func (c *Conn) stepped(key RouteKey, now int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.metrics.left == nil {
		c.metrics.left = map[RouteKey]struct{}{}
	}
	c.metrics.made++
	c.metrics.now[key.Dst] = now
	c.metrics.left[RouteKey{Dst: key.Dst, Metric: now + 1}] = struct{}{}
}

// steps is how many steps there were.
func (c *Conn) steps() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.metrics.made
}

// learnMetrics takes over what a dump has found that began when there were so many steps.
func (c *Conn) learnMetrics(now map[netip.Prefix]int, since int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.metrics.made == since {
		c.metrics.now = now
	}
}

// settle removes the routes that better ones have taken the place of, ours or flannel's, all after one wait. What cannot be removed is found by
// the next dump, as one route too many.
func (c *Conn) settle() {
	c.mu.Lock()
	left := c.metrics.left
	c.metrics.left = nil
	c.mu.Unlock()
	if len(left) == 0 {
		return
	}
	waitForReaders()
	for key := range left {
		_ = c.handle.RouteDel(&netlink.Route{
			Family: unix.AF_INET6, Dst: ipNet(key.Dst), Priority: key.Metric, Table: unix.RT_TABLE_MAIN, Scope: netlink.SCOPE_NOWHERE,
		})
	}
}

// UsualMetrics gives all routes the metric by which they are known, for a successor that knows no other.
func (c *Conn) UsualMetrics(ctx context.Context) error {
	have, err := c.Dump(ctx)
	if err != nil {
		return err
	}
	c.mu.Lock()
	now := maps.Clone(c.metrics.now)
	c.mu.Unlock()
	var errs []error
	for dst, metric := range now {
		key := RouteKey{Dst: dst, Metric: RouteMetric(subnet.IPv6)}
		op := Op{Kind: RouteSet, Key: key, Route: have.Routes[key]}
		better, err := c.route(key, op.Route)
		if err == nil {
			usual := *better
			usual.Priority = key.Metric
			better.Priority = metric
			err = c.putRoute(op, &usual, c.handle.RouteReplace)
			if err == nil {
				err = gone(true, c.handle.RouteDel(better))
			}
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("give the route to %s its usual metric: %w", dst, err))
		}
	}
	c.learnMetrics(map[netip.Prefix]int{}, c.steps())
	return errors.Join(errs...)
}

// readersPause is long for a packet to look up its route, where the kernel cannot tell when all have.
const readersPause = 50 * time.Millisecond

// waitForReaders returns when every processor has left what it was doing in the kernel's tables (an RCU grace period), which is
// what this call waits for. Some kernels have it not, and those with a single processor return at once.
func waitForReaders() {
	const global = 1 // MEMBARRIER_CMD_GLOBAL
	if _, _, errno := unix.Syscall(unix.SYS_MEMBARRIER, global, 0, 0); errno != 0 {
		time.Sleep(readersPause)
	}
}
