package backends

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// badWeather is what every node's underlay does to what it sends: to questions to the API server, handshakes and pods' packets.
const badWeather = "delay 100ms loss 5%"

// TestConvergenceOnAnUnderlayThatLosesAndDelays has nodes join, devices go and agents start again while one packet in twenty
// is lost and each takes 100 ms, and prints how long it took until all pods reached each other.
func TestConvergenceOnAnUnderlayThatLosesAndDelays(t *testing.T) {
	nstest.NeedRoot(t)
	if _, err := nstest.New(t).Try("tc", "qdisc", "add", "dev", "lo", "root", "netem", "delay", "1ms"); err != nil {
		t.Skipf("this kernel has no netem; make test-vm runs it on one that has (%v)", err)
	}
	table := []string{fmt.Sprintf("%-10s %10s %16s %16s", "backend", "two join", "devices deleted", "agent restarted")}
	for _, kind := range []string{subnet.VXLAN, subnet.WireGuard, subnet.IPIP, subnet.HostGW} {
		t.Run(kind, func(t *testing.T) {
			needs(t, kind)
			w := build(t, 3, of(kind))
			w.newFar()
			for _, n := range w.nodes {
				n.Run(append([]string{"tc", "qdisc", "add", "dev", "eth0", "root", "netem"}, strings.Fields(badWeather)...)...)
				n.far = newCaller(n.NS)
			}
			took := func(what func()) time.Duration {
				begin := time.Now()
				what()
				w.settle()
				return time.Since(begin).Round(100 * time.Millisecond)
			}
			join := took(func() {
				for _, n := range w.nodes {
					n.start(of(kind))
				}
			})
			deleted := took(func() {
				for _, device := range w.nodes[0].devices() {
					w.nodes[0].IP("link del " + device)
				}
			})
			again := took(func() { w.nodes[0].restart(of(kind)) })
			table = append(table, fmt.Sprintf("%-10s %10s %16s %16s", kind, join, deleted, again))
		})
	}
	t.Logf("netem %s on every node\n%s", badWeather, strings.Join(table, "\n"))
}
