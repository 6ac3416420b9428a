package e2e

import (
	"errors"
	"os/exec"
	"strings"
	"testing"
	"time"

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
	for _, pair := range pairs(podOnEachNode(t)) {
		from, to := pair[0], pair[1]
		// 1422 bytes of payload make a packet of 1450 bytes: what VXLAN leaves of an underlay's 1500.
		for _, size := range []string{"56", "1400", "1422"} {
			if _, err := from.exec(t, "ping", "-c", "2", "-i", "0.02", "-W", "2", "-M", "do", "-s", size, to.IP); err != nil {
				t.Errorf("%s to %s, %s bytes: %v", from.Node, to.Node, size, err)
			}
		}
		if out, err := from.exec(t, "ping", "-c", "1", "-W", "1", "-M", "do", "-s", "1423", to.IP); err == nil {
			t.Errorf("%s to %s: a packet of 1451 bytes that must not be split got through:\n%s", from.Node, to.Node, out)
		}
	}
}

func TestAHundredMegabytesArriveIntactBothWays(t *testing.T) {
	for _, pair := range pairs(podOnEachNode(t)) {
		from, to := pair[0], pair[1]
		for _, verb := range []string{"send", "receive"} {
			var r transferResult
			from.measure(t, &r, verb, "-bytes", "104857600", to.IP+":9002")
			if !r.Intact {
				t.Errorf("%s %s %s: the content differs", from.Node, verb, to.Node)
			}
			t.Logf("%s %s %s: %.0f Mbit/s", from.Node, verb, to.Node, r.MbitPerSecond)
		}
	}
}

func TestN13ThePodsAddressIsKeptBetweenPods(t *testing.T) {
	pods := podOnEachNode(t)
	neighbour := withPod(t, podSpec{name: "neighbour", node: pods[0].Node})
	for _, pair := range pairs(append(pods, neighbour)) {
		from, to := pair[0], pair[1]
		got, err := from.get(t, "http://"+to.IP+":8080/clientip")
		if err != nil || got != from.IP {
			t.Errorf("%s on %s to %s on %s: seen as %q (%v), want %s", from.Name, from.Node, to.Name, to.Node, got, err, from.IP)
		}
	}
}

func TestAPodReachesEveryHostAndKeepsItsAddressOnItsOwn(t *testing.T) {
	pods := podOnEachNode(t)
	for _, n := range suite.Nodes()[:3] {
		serveOn(t, n.Machine)
		for _, p := range pods {
			var got string
			var err error
			eventually(t, 10*time.Second, "the server on "+n.Name+" answers", func() error {
				got, err = p.get(t, "http://"+n.IP+":8080/clientip")
				return err
			})
			// Flannel's rules masquerade what leaves the pod network, other nodes included.
			want := map[bool]string{true: p.IP, false: nodeIP(t, p.Node)}[p.Node == n.Name]
			if got != want {
				t.Errorf("pod on %s to host %s: seen as %s, want %s", p.Node, n.Name, got, want)
			}
		}
	}
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

func nodeIP(t *testing.T, name string) string {
	t.Helper()
	for _, n := range suite.Nodes() {
		if n.Name == name {
			return n.IP
		}
	}
	t.Fatalf("no node is called %s", name)
	return ""
}

func TestM12EveryHostReachesEveryPod(t *testing.T) {
	for _, p := range podOnEachNode(t) {
		for _, n := range suite.Nodes()[:3] {
			if _, err := n.Exec(t.Context(), curl("http://"+p.IP+":8080/hostname")...); err != nil {
				t.Errorf("host %s to the pod on %s: %v", n.Name, p.Node, err)
			}
			// A socket bound to the node's own address is the case that needs an answer by another way.
			bound := append(curl("http://"+p.IP+":8080/hostname"), "--interface", n.IP)
			if _, err := n.Exec(t.Context(), bound...); err != nil {
				t.Errorf("host %s from %s to the pod on %s: %v", n.Name, n.IP, p.Node, err)
			}
		}
	}
}

func TestAPodReachesTheOutsideUnderItsNodesAddress(t *testing.T) {
	pods := podOnEachNode(t)
	serveOn(t, suite.Outside)
	capture, err := suite.Outside.Capture(t.Context(), "eth0", "src net "+suite.Config.PodCIDR)
	must(t, err)
	for _, p := range pods {
		var got string
		eventually(t, 10*time.Second, "the outside server answers", func() error {
			got, err = p.get(t, "http://"+outside+":8080/clientip")
			return err
		})
		if want := nodeIP(t, p.Node); got != want {
			t.Errorf("pod on %s: the outside sees %s, want %s", p.Node, got, want)
		}
		if _, err := p.exec(t, "ping", "-c", "2", "-i", "0.1", "-W", "2", outside); err != nil {
			t.Errorf("pod on %s pings the outside: %v", p.Node, err)
		}
		var r lossResult
		p.measure(t, &r, "udp", "-count", "20", outside+":9000")
		if len(r.Lost) > 0 || r.Duplicates > 0 {
			t.Errorf("pod on %s, UDP to the outside: %+v", p.Node, r)
		}
	}
	packets, err := capture.Stop(contextOfCleanup())
	must(t, err)
	if len(packets) > 0 {
		t.Errorf("the outside saw pods' own addresses:\n%s", strings.Join(packets, "\n"))
	}
}
