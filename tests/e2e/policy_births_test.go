package e2e

import (
	"fmt"
	"net"
	"os"
	"path/filepath"
	"strconv"
	"strings"
	"testing"
	"time"
)

// newborns is how many pods are born under policies, and what each sends.
const (
	datagramsEach  = 20
	newbornsShort  = 12
	newbornsOfLong = 500
	litter         = 30 // how many are on their way at once: a node holds 110 pods
)

// playsLong reports whether this run is the long one.
func playsLong() bool { return os.Getenv("WEFT_RELIABILITY") != "" }

// bound is what a run accepts where the contract names a time: that and half a second for the look itself in the long form, which
// has the machine to itself, and ten times as long otherwise.
func bound(contract time.Duration) time.Duration {
	if playsLong() {
		return contract + 500*time.Millisecond
	}
	return 10 * contract
}

// A newborn asks for a name and sends, from its first instruction, to a target it may reach, to one that its own policy forbids
// and to one whose policy forbids it.
func TestANewbornPodSendsNothingThatIsForbiddenAndLosesNothingThatIsAllowed(t *testing.T) {
	g := withGuarded(t)
	n := newbornsShort
	if playsLong() {
		n = newbornsOfLong
	}
	g.newbornPolicies(t)
	heldBefore := startedHeld(t)
	caught := g.captureDatagrams(t)
	answeredNames := 0
	for first := 0; first < n; first += litter {
		answeredNames += g.bear(t, first, min(first+litter, n))
	}
	got := caught(t)
	for _, p := range []pod{g.near, g.far} {
		if packets := got[p.Name]; len(packets) > 0 {
			t.Errorf("%d forbidden datagrams of newborns arrived at %s:\n%s", len(packets), p.Name, strings.Join(packets[:min(5, len(packets))], "\n"))
		}
	}
	held := startedHeld(t) - heldBefore
	if lost := n*datagramsEach - len(got[g.target.Name]); lost < 0 || lost > held*datagramsEach {
		t.Errorf("%d datagrams of newborns arrived at %s, want %d; %d of the pods started held", len(got[g.target.Name]), g.target.Name, n*datagramsEach, held)
	}
	if answeredNames+held < n {
		t.Errorf("the first DNS query of %d of %d newborns was answered; %d of the pods started held", answeredNames, n, held)
	}
	t.Logf("%d pods born: %d datagrams allowed, %d and %d forbidden ones passed, %d first DNS queries answered, %d started held",
		n, len(got[g.target.Name]), len(got[g.near.Name]), len(got[g.far.Name]), answeredNames, held)
}

// startedHeld is how many pods the plugin has let start before the agent had judged them, since it waited two seconds in vain: on
// a machine that is overloaded, what they may send is lost until then.
func startedHeld(t *testing.T) int {
	t.Helper()
	count := 0
	for _, n := range suite.Nodes() {
		log, err := os.ReadFile(filepath.Join(suite.Dir(), "nodes", n.Name, "log", "containerd.log"))
		must(t, err)
		count += strings.Count(string(log), "starts without network")
	}
	return count
}

// While no agent is there nobody judges the newborns, and they are held: what is allowed may be lost, what is forbidden must be.
func TestPodsBornWhileAgentsAreKilledSendNothingThatIsForbidden(t *testing.T) {
	g := withGuarded(t)
	g.newbornPolicies(t)
	caught := g.captureDatagrams(t)
	killed := make(chan error, 1)
	go func() { killed <- onEachNode(signalAgent("KILL")) }()
	g.bear(t, 0, newbornsShort)
	must(t, <-killed)
	for name, packets := range caught(t) {
		if name != g.target.Name && len(packets) > 0 {
			t.Errorf("%d forbidden datagrams arrived at %s:\n%s", len(packets), name, strings.Join(packets[:min(5, len(packets))], "\n"))
		}
	}
	eventually(t, 90*time.Second, "every agent is ready", agentsReady)
}

func (g guarded) newbornPolicies(t *testing.T) {
	t.Helper()
	policy(t, "pol-newborn", `
  podSelector: {matchLabels: {born: here}}
  policyTypes: [Ingress, Egress]
  egress:
  - to: [{podSelector: {matchExpressions: [{key: app, operator: In, values: [pol-target, pol-far]}]}}]
  - to: [{namespaceSelector: {matchLabels: {kubernetes.io/metadata.name: kube-system}}}]
    ports: [{port: 53, protocol: UDP}, {port: 53, protocol: TCP}]`)
	policy(t, "pol-far-deny", "{podSelector: {matchLabels: {app: pol-far}}, policyTypes: [Ingress]}")
	g.hold(t, "the policy is there", map[try]bool{{g.near.Name, g.far.IP, "8080/tcp"}: false})
}

// captureDatagrams records what arrives at the three pods; the function it returns ends that.
func (g guarded) captureDatagrams(t *testing.T) func(*testing.T) map[string][]string {
	t.Helper()
	stops := map[string]func() ([]string, error){}
	for _, p := range []pod{g.target, g.near, g.far} {
		capture, err := g.nets[p.Name].Capture(contextOfCleanup(), "eth0", "udp and dst port 9000 and dst host "+p.IP)
		must(t, err)
		stops[p.Name] = func() ([]string, error) { return capture.Stop(contextOfCleanup()) }
	}
	return func(t *testing.T) map[string][]string {
		t.Helper()
		got := map[string][]string{}
		for name, stop := range stops {
			packets, err := stop()
			must(t, err)
			got[name] = packets
		}
		return got
	}
}

// bear starts pods on all nodes, waits until each has said all it had to say, and returns how many were given an answer to
// their first DNS query.
func (g guarded) bear(t *testing.T, first, end int) int {
	t.Helper()
	send := func(p pod) string {
		return fmt.Sprintf("probe udp -every 10ms -count %d %s & ", datagramsEach, net.JoinHostPort(p.IP, "9000"))
	}
	script := send(g.near) + send(g.far) + send(g.target) +
		"dig +tries=1 +time=10 +short " + recordType() + " kubernetes.default.svc.cluster.local | grep -q . && echo has-a-name; wait"
	var manifests strings.Builder
	nodes := suite.Nodes()
	for i := first; i < end; i++ {
		text := podSpec{name: "newborn-" + strconv.Itoa(i), node: nodes[i%len(nodes)].Name}.yaml()
		text = strings.Replace(text, "suite: e2e", "suite: e2e, born: here", 1)
		text = strings.Replace(text, "spec:\n", "spec:\n  restartPolicy: Never\n", 1)
		manifests.WriteString(strings.Replace(text, "[probe, serve]", `[sh, -c, "`+script+`"]`, 1))
	}
	remove := func() {
		if _, err := suite.Kubectl(contextOfCleanup(), "delete", "pod", "-l", "born=here", "--timeout=120s"); err != nil {
			t.Error(err)
		}
	}
	defer remove()
	must(t, suite.Apply(t.Context(), manifests.String()))
	if _, err := suite.Kubectl(t.Context(), "wait", "--for=jsonpath={.status.phase}=Succeeded", "pod", "-l", "born=here", "--timeout=180s"); err != nil {
		events, _ := suite.Kubectl(t.Context(), "get", "events", "--sort-by=.lastTimestamp")
		t.Fatalf("%v\n%s", err, events)
	}
	said, err := suite.Kubectl(t.Context(), "logs", "-l", "born=here", "--max-log-requests=50")
	must(t, err)
	return strings.Count(said, "has-a-name")
}
