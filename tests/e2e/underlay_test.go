package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// way is how packets go from one node's pods to another's.
type way struct {
	direct, tunnelled bool // neither: there is none
}

// wayBetween is what the configuration and the underlay say.
func wayBetween(from, to *cluster.Node) way {
	onLink := suite.Config.Underlay.OnLink(suite.Place(from), suite.Place(to))
	return way{direct: onLink && direct(), tunnelled: tunnels() && !(onLink && direct())}
}

// unreachable reports whether the backend of a cluster has no way between some of the nodes.
func unreachable(cfg cluster.Config) bool {
	return cfg.BackendType() != "vxlan" && cfg.Underlay == cluster.Routed
}

// The wire between the nodes tells which way packets took: as they are, or in packets of the tunnel.
func TestEveryPairGoesTheWayThatTheConfigurationSays(t *testing.T) {
	pods := podOnEachNode(t)
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		for _, pair := range pairs(allIn(f, pods)) {
			from, to := nodeNamed(t, pair[0].Node), nodeNamed(t, pair[1].Node)
			want, limit := wayBetween(from, to), "2"
			if want == (way{}) {
				limit = "1"
			}
			plain, err := to.Capture(t.Context(), "eth0", "dst host "+pair[1].IP+word(f, " and icmp", " and icmp6"))
			must(t, err)
			tunnel, err := to.Capture(t.Context(), "eth0", "udp dst port 4789 and src host "+from.Addrs.In(f))
			must(t, err)
			_, pinged := pair[0].exec(t, "ping", "-c", "5", "-i", "0.02", "-W", limit, pair[1].IP)
			got := way{direct: arrived(t, plain) >= 5, tunnelled: arrived(t, tunnel) >= 5}
			if got != want || (pinged == nil) != (want != way{}) {
				t.Errorf("%s to %s: %+v, want %+v; the ping says %v", from.Name, to.Name, got, want, pinged)
			}
		}
	})
}

// arrived ends a capture and counts its packets.
func arrived(t *testing.T, c *cluster.Capture) int {
	t.Helper()
	packets, err := c.Stop(contextOfCleanup())
	must(t, err)
	return len(packets)
}

// What a peer can not be reached by must be said in words that name it, where somebody looks who wonders.
func TestAPeerThatNoBackendReachesIsNamedWithTheReason(t *testing.T) {
	if !unreachable(suite.Config) {
		t.Skip(`every peer can be reached: WEFT_UNDERLAY=routed WEFT_BACKEND='{"Type": "host-gw"}' runs this`)
	}
	withProduct(t)
	for _, n := range suite.Nodes()[:2] {
		agent, _, _ := strings.Cut(agentPods(t)[n.Name], " ")
		eventually(t, 30*time.Second, "the agent of "+n.Name+" says that it can not reach node-3", func() error {
			out, err := suite.Kubectl(t.Context(), "-n", "kube-flannel", "logs", agent, "-c", "kube-flannel")
			if err != nil {
				return err
			}
			for line := range strings.Lines(out) {
				if strings.Contains(line, "node node-3: NotOnLink") && strings.Contains(line, "host-gw needs all nodes on one link") {
					t.Logf("%s: %s", n.Name, strings.TrimSpace(line))
					return nil
				}
			}
			return fmt.Errorf("its log is\n%s", out)
		})
	}
}
