package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"
)

// How often the long form does what could open a policy.
const (
	siegeRestarts = 100
	siegeWipes    = 20 // of each kind
)

// besieged is a target under a policy with clients that go on asking it: two that may not, with datagrams and new connections,
// and one that may, over a connection that stays.
type besieged struct {
	guarded
	flows   []*flow
	allowed *flow
	stop    string
}

// besiege starts that; what a client that may not gets to the target is what a capture there sees.
func besiege(t *testing.T) *besieged {
	t.Helper()
	if !playsLong() {
		t.Skip("a hundred restarts and sixty wipes: make soak, or WEFT_RELIABILITY=long")
	}
	b := &besieged{guarded: withGuarded(t), stop: filepath.Join(t.TempDir(), "stop")}
	policy(t, "pol-siege", "{"+selectTarget+", ingress: [{from: [{podSelector: {matchLabels: {app: pol-far}}}], ports: [{port: 9000}]}]}")
	b.hold(t, "the policy is there", map[try]bool{
		{b.near.Name, b.target.IP, "8080/tcp"}: false, {b.near.Name, b.target.IP, "9000/udp"}: false, {b.far.Name, b.target.IP, "8080/tcp"}: false,
	})
	start := func(from, verb, target string) *flow {
		f := &flow{name: from + " " + verb, verb: verb, begun: filepath.Join(t.TempDir(), "begun")}
		// Outside the node's own root, whose view of a file that comes later is not to be relied on.
		must(t, f.start(b.nets[from].Network().Command(contextOfCleanup(), "probe", verb, "-until", b.stop, "-begun", f.begun, "-limit", "2h", "-every", "10ms", target)))
		t.Cleanup(func() { _ = f.kill() }) // it may have ended
		return f
	}
	b.allowed = start(b.far.Name, "stream", net.JoinHostPort(b.target.IP, "9000"))
	eventually(t, 20*time.Second, "what is allowed has had an answer", (&traffic{flows: []*flow{b.allowed}}).begun)
	for _, from := range []string{b.near.Name, "node-2"} {
		b.flows = append(b.flows, start(from, "ping", b.target.IP))
	}
	return b
}

// lift ends the flows and says what became of the one that is allowed.
func (b *besieged) lift(t *testing.T) {
	t.Helper()
	must(t, os.WriteFile(b.stop, nil, 0o644))
	for _, f := range append(b.flows, b.allowed) {
		select {
		case err := <-f.ended:
			if err != nil {
				t.Fatalf("%s: %v: %s", f.name, err, f.errOut.String())
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s did not stop", f.name)
		}
	}
	var sum tally
	must(t, b.allowed.addTo(&sum))
	if sum.sent == 0 || sum.lost > 0 {
		t.Errorf("the connection that is allowed lost %d of %d messages: %v", sum.lost, sum.sent, sum.notes)
	}
	t.Logf("%d messages over the connection that is allowed, %d lost, longest stall %.2f s", sum.sent, sum.lost, sum.stall)
}

// forbiddenFilter matches what may not arrive at the target: pings, since its policy names a port.
func forbiddenFilter() string {
	return word(first(), "icmp[icmptype] == icmp-echo", "icmp6 and ip6[40] == 128")
}

// Every agent of the cluster is away at once each time, so that no second one hides what the first one lost.
func TestForbiddenPacketsStayForbiddenWhileAgentsRestart(t *testing.T) {
	b := besiege(t)
	replaceAgentsAtOnce(t)
	capture, err := b.nets[b.target.Name].Capture(contextOfCleanup(), "eth0", forbiddenFilter())
	must(t, err)
	for range siegeRestarts {
		restartAgents(t)
	}
	packets, err := capture.Stop(contextOfCleanup())
	must(t, err)
	t.Logf("%d forbidden packets passed in %d rollouts", len(packets), siegeRestarts)
	if len(packets) > 0 {
		t.Errorf("%d forbidden packets passed in %d rollouts:\n%s", len(packets), siegeRestarts, strings.Join(packets[:min(5, len(packets))], "\n"))
	}
	b.lift(t)
}

// replaceAgentsAtOnce has rollouts not wait for one node after the other, until the test ends.
func replaceAgentsAtOnce(t *testing.T) {
	t.Helper()
	set := func(atOnce string) error {
		_, err := suite.Kubectl(contextOfCleanup(), "-n", "kube-flannel", "patch", "daemonset", "kube-flannel-ds", "--type=merge", "-p",
			fmt.Sprintf(`{"spec":{"updateStrategy":{"rollingUpdate":{"maxUnavailable":%s}}}}`, atOnce))
		return err
	}
	must(t, set(`"100%"`))
	t.Cleanup(func() {
		if err := set("1"); err != nil {
			t.Error(err)
		}
	})
}

// The rules are back within a second, as the contract says, and the guard stands until then: nothing that is forbidden passes, and
// the connection that is allowed goes on.
func TestNothingForbiddenPassesWhileSomebodyWipesTheRules(t *testing.T) {
	b := besiege(t)
	node := nodeNamed(t, b.target.Node).Machine
	damages := [][]string{
		{"nft", "delete", "table", "inet", "weft-policy"}, {"nft", "flush", "table", "inet", "weft-policy"},
		{"nft", "flush", "ruleset"}, // takes kube-proxy's rules too
	}
	passed := 0
	for range siegeWipes {
		for _, damage := range damages {
			capture, err := b.nets[b.target.Name].Capture(contextOfCleanup(), "eth0", forbiddenFilter())
			must(t, err)
			wiped := time.Now()
			onHost(t, node, damage...)
			eventually(t, 10*time.Second, "the rules are back", func() error {
				out, err := node.Exec(t.Context(), "nft", "list", "table", "inet", "weft-policy") // a trace asks the API's Service, which kube-proxy has lost as well
				if !strings.Contains(out, "judged when it began") {
					return fmt.Errorf("the table is %q: %w", out, err)
				}
				return nil
			})
			back := time.Since(wiped)
			packets, err := capture.Stop(contextOfCleanup())
			must(t, err)
			if passed += len(packets); len(packets) > 0 {
				t.Errorf("%s: %d forbidden packets passed in %s:\n%s", strings.Join(damage, " "), len(packets), back, strings.Join(packets[:min(5, len(packets))], "\n"))
			}
		}
	}
	t.Logf("%d forbidden packets passed in %d wipes", passed, siegeWipes*len(damages))
	b.lift(t)
}
