package kernel

import "github.com/weft-cni/weft/subnet"

// LastMetric is the largest there is: every other route to the same destination wins.
const LastMetric = 1<<32 - 1

// RouteMetric is what the kernel gives a route of a family that names none.
func RouteMetric(f subnet.Family) int { return [2]int{subnet.IPv4: 0, subnet.IPv6: 1024}[f] }
