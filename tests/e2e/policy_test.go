package e2e

import (
	"context"
	"fmt"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// guarded is what the tests of policies ask: a target on node-1, and clients on the same node and on another. What asks runs in
// the pods' network namespaces as processes of this machine, so that it needs nothing but the data plane.
type guarded struct {
	target, near, far pod
	nets              map[string]cluster.Machine // by the name of a pod or a node
}

// withGuarded starts the pods of the tests of policies, or finds them: they live as long as the cluster.
func withGuarded(t *testing.T) guarded {
	t.Helper()
	withProduct(t)
	pods := startPods(t, podSpec{name: "pol-target", node: "node-1", ports: webPort}, podSpec{name: "pol-near", node: "node-1", ports: webPort},
		podSpec{name: "pol-far", node: "node-2", ports: webPort})
	g := guarded{target: pods[0], near: pods[1], far: pods[2], nets: map[string]cluster.Machine{}}
	for _, p := range pods {
		g.nets[p.Name] = networkOf(t, p)
	}
	for _, n := range suite.Nodes()[:2] {
		g.nets[n.Name] = n.Machine
	}
	return g
}

func networkOf(t *testing.T, p pod) cluster.Machine {
	t.Helper()
	network, err := nodeNamed(t, p.Node).PodNetwork(t.Context(), p.Name)
	must(t, err)
	return network
}

// policy applies a NetworkPolicy of the default namespace until the test ends.
func policy(t *testing.T, name, spec string) {
	t.Helper()
	deleteAtEnd(t, "networkpolicy", name)
	must(t, suite.Apply(t.Context(), policyText(name, spec)))
}

func policyText(name, spec string) string {
	return fmt.Sprintf("---\napiVersion: networking.k8s.io/v1\nkind: NetworkPolicy\nmetadata: {name: %s}\nspec: %s\n", name, spec)
}

func unpolicy(t *testing.T, name string) {
	t.Helper()
	_, err := suite.Kubectl(t.Context(), "delete", "networkpolicy", name)
	must(t, err)
}

// try is one question: does an answer come back from a port.
type try struct {
	from, to, port string // from names a machine, to is an address; port is 8080/tcp or 9000/udp
}

func (q try) String() string { return q.from + " to " + q.to + " " + q.port }

// answered asks once: one connection, or three datagrams of which one answer will do.
func (g guarded) answered(ctx context.Context, q try) bool {
	number, proto, _ := strings.Cut(q.port, "/")
	if proto == "tcp" {
		line := append(curl(web(q.to, number, "hostname")), "--connect-timeout", "1")
		_, err := g.nets[q.from].Exec(ctx, line...)
		return err == nil
	}
	out, err := g.nets[q.from].Exec(ctx, "probe", "udp", "-count", "3", "-every", "5ms", net.JoinHostPort(q.to, number))
	return err == nil && !strings.Contains(out, `"received":0,`)
}

// hold waits until exactly the wanted questions are answered, all asked at once.
func (g guarded) hold(t *testing.T, why string, want map[try]bool) {
	t.Helper()
	eventually(t, 20*time.Second, why, func() error {
		type result struct {
			q   try
			got bool
		}
		results := make(chan result, len(want))
		for q := range want {
			go func() { results <- result{q, g.answered(t.Context(), q)} }()
		}
		var wrong []string
		for range want {
			if r := <-results; r.got != want[r.q] {
				wrong = append(wrong, fmt.Sprintf("%s: answered %v, want %v", r.q, r.got, want[r.q]))
			}
		}
		if wrong != nil {
			return fmt.Errorf("%d of %d differ:\n%s", len(wrong), len(want), strings.Join(wrong, "\n"))
		}
		return nil
	})
}

const selectTarget = "podSelector: {matchLabels: {app: pol-target}}"

func TestADefaultDenyAndAnAllowanceHoldOnBothNodes(t *testing.T) {
	g := withGuarded(t)
	ask := func(near, far, ownHost, otherHost bool) map[try]bool {
		want := map[try]bool{}
		for _, f := range families() {
			target := g.target.Addrs.In(f)
			for _, port := range []string{"8080/tcp", "9000/udp"} {
				want[try{g.near.Name, target, port}], want[try{g.far.Name, target, port}] = near, far
				want[try{"node-1", target, port}], want[try{"node-2", target, port}] = ownHost, otherHost
				want[try{g.target.Name, g.far.Addrs.In(f), port}] = true // what it asks itself is not its ingress
			}
		}
		return want
	}
	g.hold(t, "all talk without a policy", ask(true, true, true, true))
	policy(t, "pol-deny", "{"+selectTarget+", policyTypes: [Ingress]}")
	g.hold(t, "only the own node reaches the target", ask(false, false, true, false))
	policy(t, "pol-allow", "{"+selectTarget+", ingress: [{from: [{podSelector: {matchLabels: {app: pol-far}}}]}]}")
	g.hold(t, "the one that is allowed reaches it too", ask(false, true, true, false))

	for _, c := range []struct {
		from pod
		says string
	}{{g.near, "DENIED"}, {g.far, "allowed"}} {
		out, err := tracePolicy(t, c.from, g.target, "8080/tcp")
		if !strings.HasPrefix(out, c.says+":") || !strings.Contains(out, "as the policies want") || (err == nil) != (c.says == "allowed") {
			t.Errorf("the trace of %s to %s does not say %s, or that the kernel agrees:\n%s\n%v", c.from.Name, g.target.Name, c.says, out, err)
		}
	}
	if n := denied(t, "node-1", "default/pol-deny", "ingress"); n == 0 {
		t.Error("no denied packet is counted in /metrics")
	}
	unpolicy(t, "pol-allow")
	g.hold(t, "the allowance is taken away", ask(false, false, true, false))
	unpolicy(t, "pol-deny")
	g.hold(t, "all talk again", ask(true, true, true, true))
}

// tracePolicy asks the agent of the target's node.
func tracePolicy(t *testing.T, from, to pod, port string) (string, error) {
	t.Helper()
	agent, _, _ := strings.Cut(agentPods(t)[to.Node], " ")
	return suite.Kubectl(t.Context(), "-n", "kube-flannel", "exec", agent, "-c", "kube-flannel", "--", "flanneld", "policy", "trace",
		"--from=default/"+from.Name, "--to=default/"+to.Name, "--port="+port)
}

// denied reads how many packets a policy denied on a node.
func denied(t *testing.T, node, key, direction string) int {
	t.Helper()
	out := onHost(t, nodeNamed(t, node).Machine, curl("http://127.0.0.1:8081/metrics")...)
	line := regexp.MustCompile(`weft_policy_denied_packets_total\{direction="` + direction + `",policy="` + key + `"\} (\d+)`)
	found := line.FindStringSubmatch(out)
	if found == nil {
		return 0
	}
	n, err := strconv.Atoi(found[1])
	must(t, err)
	return n
}

// The contract is one second from the change to the cut. Both ends go on sending.
func TestALiveConnectionIsCutWhenAPolicyForbidsIt(t *testing.T) {
	all := withGuarded(t)
	eachFamily(t, func(t *testing.T, f subnet.Family) { all.in(f).cutLive(t) })
}

// in is the same pods under their addresses of a family.
func (g guarded) in(f subnet.Family) guarded {
	g.target, g.near, g.far = g.target.in(f), g.near.in(f), g.far.in(f)
	return g
}

func (g guarded) cutLive(t *testing.T) {
	t.Helper()
	limit := bound(time.Second)
	for _, from := range []pod{g.near, g.far} {
		arrives := func() *cluster.Capture {
			capture, err := g.nets[g.target.Name].Capture(contextOfCleanup(), "eth0", "src host "+from.IP+" and port 9000")
			must(t, err)
			return capture
		}
		capture := arrives()
		var flows []*flow
		stop := t.TempDir() + "/stop"
		begun := t.TempDir() + "/begun-"
		for _, verb := range []string{"stream", "ping"} {
			f := &flow{name: verb, verb: verb, begun: begun + verb}
			target := map[string]string{"stream": net.JoinHostPort(g.target.IP, "9000"), "ping": g.target.IP}[verb]
			must(t, f.start(g.nets[from.Name].Command(contextOfCleanup(), "probe", verb, "-until", stop, "-begun", f.begun, "-limit", "2m", "-every", "10ms", target)))
			t.Cleanup(func() { _ = f.kill() }) // it may have ended
			flows = append(flows, f)
		}
		tr := &traffic{flows: flows}
		eventually(t, 20*time.Second, "both flows have had an answer", tr.begun)
		policy(t, "pol-cut", "{"+selectTarget+", policyTypes: [Ingress]}")
		applied := time.Now()
		g.hold(t, "new connections are refused", map[try]bool{{from.Name, g.target.IP, "8080/tcp"}: false, {from.Name, g.target.IP, "9000/udp"}: false})
		eventually(t, limit, "the connection is cut", func() error {
			return silent(t, arrives(), 300*time.Millisecond)
		})
		must(t, silent(t, arrives(), 3*time.Second)) // the time in which it might revive
		for _, f := range flows {
			must(t, f.kill())
			if err := <-f.ended; err == nil {
				t.Errorf("%s ended before it was killed", f.name)
			}
		}
		packets, err := capture.Stop(contextOfCleanup())
		must(t, err)
		last := lastPacket(t, packets)
		if late := last.Sub(applied); late > limit {
			t.Errorf("%s on %s: the last packet of the forbidden connection arrived %s after the policy was there", from.Name, from.Node, late)
		} else {
			t.Logf("%s on %s: cut %s after kubectl had its answer; %d packets before", from.Name, from.Node, late, len(packets))
		}
		unpolicy(t, "pol-cut")
		g.hold(t, "it is allowed again", map[try]bool{{from.Name, g.target.IP, "8080/tcp"}: true, {from.Name, g.target.IP, "9000/udp"}: true})
	}
}

// silent is nil if a capture sees nothing for a time.
func silent(t *testing.T, c *cluster.Capture, d time.Duration) error {
	t.Helper()
	time.Sleep(d)
	if n := arrived(t, c); n > 0 {
		return fmt.Errorf("%d packets arrived in %s", n, d)
	}
	return nil
}

// lastPacket is when the last packet of a capture passed: its lines begin with the time of day.
func lastPacket(t *testing.T, packets []string) time.Time {
	t.Helper()
	if len(packets) == 0 {
		t.Fatal("not one packet of the connection was captured")
	}
	clock, _, _ := strings.Cut(packets[len(packets)-1], " ")
	now := time.Now()
	at, err := time.ParseInLocation(time.DateOnly+" 15:04:05.000000", now.Format(time.DateOnly)+" "+clock, time.Local)
	must(t, err)
	if at.After(now) {
		at = at.AddDate(0, 0, -1) // midnight has passed since
	}
	return at
}
