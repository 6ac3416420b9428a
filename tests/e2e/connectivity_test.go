package e2e

import (
	"errors"
	"net"
	"os/exec"
	"strconv"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// pairs lists all ordered pairs of pods, a pod with itself left out.
func pairs(pods []pod) [][2]pod {
	var out [][2]pod
	for _, from := range pods {
		for _, to := range pods {
			if from != to {
				out = append(out, [2]pod{from, to})
			}
		}
	}
	return out
}

func TestEveryPairOfNodesCarriesPingsUpToTheMTU(t *testing.T) {
	pods := podOnEachNode(t)
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		// 1422 bytes of IPv4 make a packet of 1450 bytes: what VXLAN leaves of an underlay's 1500.
		largest := podMTU() - [2]int{20 + 8, 40 + 8}[f]
		var all sync.WaitGroup // each pair waits a second for the packet that must not come
		for _, pair := range pairs(allIn(f, pods)) {
			all.Go(func() { fits(t, pair[0], pair[1], largest) })
		}
		all.Wait()
	})
}

// fits checks that packets go from one pod to another up to a size and not beyond.
func fits(t *testing.T, from, to pod, largest int) {
	t.Helper()
	for _, size := range []int{56, 1300, largest} {
		if _, err := from.exec(t, "ping", "-c", "2", "-i", "0.02", "-W", "2", "-M", "do", "-s", strconv.Itoa(size), to.IP); err != nil {
			t.Errorf("%s to %s, %d bytes: %v", from.Node, to.Node, size, err)
		}
	}
	if out, err := from.exec(t, "ping", "-c", "1", "-W", "1", "-M", "do", "-s", strconv.Itoa(largest+1), to.IP); err == nil {
		t.Errorf("%s to %s: a packet of %d bytes that must not be split got through:\n%s", from.Node, to.Node, podMTU()+1, out)
	}
}

func TestAHundredMegabytesArriveIntactBothWays(t *testing.T) {
	pods := podOnEachNode(t)
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		for _, pair := range pairs(allIn(f, pods)) {
			from, to := pair[0], pair[1]
			for _, verb := range []string{"send", "receive"} {
				var r transferResult
				from.measure(t, &r, verb, "-bytes", "104857600", net.JoinHostPort(to.IP, "9002"))
				if !r.Intact {
					t.Errorf("%s %s %s: the content differs", from.Node, verb, to.Node)
				}
				t.Logf("%s %s %s: %.0f Mbit/s", from.Node, verb, to.Node, r.MbitPerSecond)
			}
		}
	})
}

func TestN13ThePodsAddressIsKeptBetweenPods(t *testing.T) {
	pods := podOnEachNode(t)
	pods = append(pods, withPod(t, podSpec{name: "neighbour", node: pods[0].Node}))
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		for _, pair := range pairs(allIn(f, pods)) {
			from, to := pair[0], pair[1]
			got, err := from.get(t, web(to.IP, "8080", "clientip"))
			if err != nil || got != from.IP {
				t.Errorf("%s on %s to %s on %s: seen as %q (%v), want %s", from.Name, from.Node, to.Name, to.Node, got, err, from.IP)
			}
		}
	})
}

func TestAPodReachesEveryHostAndKeepsItsAddressOnItsOwn(t *testing.T) {
	pods := podOnEachNode(t)
	for _, n := range suite.Nodes()[:3] {
		serveOn(t, n.Machine)
	}
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		for _, n := range suite.Nodes()[:3] {
			for _, p := range allIn(f, pods) {
				var got string
				var err error
				eventually(t, 10*time.Second, "the server on "+n.Name+" answers", func() error {
					got, err = p.get(t, web(n.Addrs.In(f), "8080", "clientip"))
					return err
				})
				// Flannel's rules masquerade what leaves the pod network, other nodes included.
				want := map[bool]string{true: p.IP, false: nodeIP(t, p.Node, f)}[p.Node == n.Name]
				if got != want {
					t.Errorf("pod on %s to host %s: seen as %s, want %s", p.Node, n.Name, got, want)
				}
			}
		}
	})
}

// serveOn runs the measuring server on a host until the test ends.
func serveOn(t *testing.T, m cluster.Machine) {
	t.Helper()
	server := m.Network().Command(t.Context(), "probe", "serve")
	must(t, server.Start())
	killAtEnd(t, server)
	eventually(t, 10*time.Second, "the server on "+m.Name+" listens", func() error {
		_, err := m.Exec(t.Context(), curl("http://127.0.0.1:8080/hostname")...)
		return err
	})
}

func killAtEnd(t *testing.T, cmd *exec.Cmd) {
	t.Cleanup(func() { _ = errors.Join(cmd.Process.Kill(), cmd.Wait()) }) // it ends by the signal
}

func nodeIP(t *testing.T, name string, f subnet.Family) string {
	t.Helper()
	return nodeNamed(t, name).Addrs.In(f)
}

func TestM12EveryHostReachesEveryPod(t *testing.T) {
	pods := podOnEachNode(t)
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		for _, p := range allIn(f, pods) {
			page := curl(web(p.IP, "8080", "hostname"))
			for _, n := range suite.Nodes()[:3] {
				if _, err := n.Exec(t.Context(), page...); err != nil {
					t.Errorf("host %s to the pod on %s: %v", n.Name, p.Node, err)
				}
				// A socket bound to the node's own address is the case that needs an answer by another way.
				if _, err := n.Exec(t.Context(), append(page, "--interface", n.Addrs.In(f))...); err != nil {
					t.Errorf("host %s from %s to the pod on %s: %v", n.Name, n.Addrs.In(f), p.Node, err)
				}
			}
		}
	})
}

func TestAPodReachesTheOutsideUnderItsNodesAddress(t *testing.T) {
	pods := podOnEachNode(t)
	serveOn(t, suite.Outside)
	capture, err := suite.Outside.Capture(t.Context(), "eth0", fromPods())
	must(t, err)
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		for _, p := range pods {
			var got string
			eventually(t, 10*time.Second, "the outside server answers", func() error {
				got, err = p.get(t, web(outside(f), "8080", "clientip"))
				return err
			})
			if want := nodeIP(t, p.Node, f); got != want {
				t.Errorf("pod on %s: the outside sees %s, want %s", p.Node, got, want)
			}
			if _, err := p.exec(t, "ping", "-c", "2", "-i", "0.1", "-W", "2", outside(f)); err != nil {
				t.Errorf("pod on %s pings the outside: %v", p.Node, err)
			}
			var r lossResult
			p.measure(t, &r, "udp", "-count", "20", net.JoinHostPort(outside(f), "9000"))
			if len(r.Lost) > 0 || r.Duplicates > 0 {
				t.Errorf("pod on %s, UDP to the outside: %+v", p.Node, r)
			}
		}
	})
	packets, err := capture.Stop(contextOfCleanup())
	must(t, err)
	if len(packets) > 0 {
		t.Errorf("the outside saw pods' own addresses:\n%s", strings.Join(packets, "\n"))
	}
}
