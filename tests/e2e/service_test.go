package e2e

import (
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// outside is the host that is no node.
const outside = cluster.OutsideAddr

// service creates a Service for the pod called app and returns its cluster IP.
func service(t *testing.T, name, app, extra string) string {
	t.Helper()
	deleteAtEnd(t, "service", name)
	must(t, suite.Apply(t.Context(), fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  selector: {app: %s}
  %s
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: echo, port: 9000}
  - {name: echo-udp, port: 9000, protocol: UDP}
`, name, app, extra)))
	ip, err := suite.Kubectl(t.Context(), "get", "service", name, "-o", "jsonpath={.spec.clusterIP}")
	must(t, err)
	return ip
}

func TestAServiceAndItsNameLeadToThePodFromEveryNode(t *testing.T) {
	pods := podOnEachNode(t)
	ip := service(t, "on-node-2", pods[1].Name, "")
	for _, p := range pods {
		for _, host := range []string{ip, "on-node-2", "on-node-2.default.svc.cluster.local"} {
			var got string
			var err error
			eventually(t, 30*time.Second, p.Name+" reaches "+host, func() error {
				got, err = p.get(t, "http://"+host+"/hostname")
				return err
			})
			if got != pods[1].Name {
				t.Errorf("%s to %s: answered by %s", p.Name, host, got)
			}
		}
	}
	// Not through itself: that is TestC19's case, where kube-proxy must hide the address.
	for _, p := range []pod{pods[0], pods[2]} {
		if got, err := p.get(t, "http://"+ip+"/clientip"); err != nil || got != p.IP {
			t.Errorf("%s through the Service: seen as %q (%v), want %s", p.Name, got, err, p.IP)
		}
	}
	for _, n := range suite.Nodes()[:3] {
		if _, err := n.Exec(t.Context(), curl("http://"+ip+"/hostname")...); err != nil {
			t.Errorf("host %s through the Service: %v", n.Name, err)
		}
	}
}

func TestDNSAnswersEveryPodOverUDPAndTCP(t *testing.T) {
	for _, p := range podOnEachNode(t) {
		for _, transport := range []string{"+notcp", "+tcp"} {
			out, err := p.exec(t, "dig", transport, "+short", "+time=2", "kubernetes.default.svc.cluster.local")
			if err != nil || out != "10.96.0.1" {
				t.Errorf("%s, %s: %q (%v)", p.Name, transport, out, err)
			}
		}
	}
}

func TestC19APodReachesItselfThroughItsService(t *testing.T) {
	pods := podOnEachNode(t)
	ip := service(t, "myself", pods[0].Name, "")
	eventually(t, 30*time.Second, "the pod reaches itself over TCP", func() error {
		_, err := pods[0].get(t, "http://"+ip+"/hostname")
		return err
	})
	var r lossResult
	pods[0].measure(t, &r, "udp", "-count", "50", ip+":9000")
	if len(r.Lost) > 0 || r.Duplicates > 0 {
		t.Errorf("UDP to itself: %+v", r)
	}
	bridge := onHost(t, suite.Node(1).Machine, "ip", "-d", "link", "show", "cni0")
	if strings.Contains(bridge, "PROMISC") {
		t.Errorf("the bridge is promiscuous:\n%s", bridge)
	}
}

func TestAHostPortLeadsToThePodFromInsideAndOutside(t *testing.T) {
	pods := podOnEachNode(t)
	p := withPod(t, podSpec{name: "host-port", node: "node-2", ports: "{containerPort: 8080, hostPort: 18080}, {containerPort: 9000, hostPort: 19000, protocol: UDP}"})
	target := "http://" + suite.Node(2).IP + ":18080/"
	for _, from := range []cluster.Machine{suite.Outside, suite.Node(1).Machine, suite.Node(2).Machine} {
		got, err := from.Exec(t.Context(), curl(target+"hostname")...)
		if err != nil || got != p.Name {
			t.Errorf("from %s: %q (%v)", from.Name, got, err)
		}
	}
	for _, from := range pods {
		if got, err := from.get(t, target+"hostname"); err != nil || got != p.Name {
			t.Errorf("from %s: %q (%v)", from.Name, got, err)
		}
	}
	if got, err := suite.Outside.Exec(t.Context(), curl(target+"clientip")...); err != nil || got != outside {
		t.Errorf("the pod sees the outside host as %q (%v), want %s", got, err, outside)
	}
}

func TestC20AUDPHostPortFollowsThePodThatReplacesAnother(t *testing.T) {
	withProduct(t)
	spec := podSpec{name: "udp-port", node: "node-2", ports: "{containerPort: 9000, hostPort: 19001, protocol: UDP}"}
	withPod(t, spec)
	// One client, one source port, all the time: its conntrack entry never gets the chance to expire by itself.
	client := suite.Outside.Command(t.Context(), "probe", "udp", "-every", "50ms", "-count", "2000", suite.Node(2).IP+":19001")
	must(t, client.Start())
	killAtEnd(t, client)
	_, err := suite.Kubectl(t.Context(), "delete", "pod", spec.name, "--timeout=60s")
	must(t, err)
	second := startPods(t, spec)[0]
	capture, err := suite.Node(2).Capture(t.Context(), "cni0", "udp and dst host "+second.IP)
	must(t, err)
	time.Sleep(time.Second) // the time within which the case says the flow must have moved
	packets, err := capture.Stop(t.Context())
	must(t, err)
	if len(packets) == 0 {
		t.Error("one second after the new pod was Ready nothing of the old flow reaches it")
	}
}

func TestM10ANodePortWithLocalPolicyShowsTheClientsAddress(t *testing.T) {
	pods := podOnEachNode(t)
	service(t, "local-port", pods[1].Name, "type: NodePort\n  externalTrafficPolicy: Local")
	service(t, "cluster-port", pods[1].Name, "type: NodePort")
	for _, try := range []struct {
		service, via, want string
	}{
		{"local-port", suite.Node(2).IP, outside},
		{"cluster-port", suite.Node(2).IP, ""},
		{"cluster-port", suite.Node(1).IP, ""}, // masqueraded by kube-proxy: which address is its own affair
	} {
		port, err := suite.Kubectl(t.Context(), "get", "service", try.service, "-o", "jsonpath={.spec.ports[0].nodePort}")
		must(t, err)
		var got string
		eventually(t, 30*time.Second, try.service+" answers through "+try.via, func() error {
			got, err = suite.Outside.Exec(t.Context(), curl("http://"+try.via+":"+port+"/clientip")...)
			return err
		})
		if try.want != "" && got != try.want {
			t.Errorf("%s through %s: the pod sees %s, want %s", try.service, try.via, got, try.want)
		}
	}
}

// A bucket of the size that containerd asks for lets 512 MiB pass at full speed first; only then does the limit show.
func TestBandwidthLimitsAreInForceBothWays(t *testing.T) {
	pods := podOnEachNode(t)
	const limit = 24.0 // Mbit/s
	limited := withPod(t, podSpec{
		name: "limited", node: "node-2",
		annotations: `kubernetes.io/ingress-bandwidth: "24M", kubernetes.io/egress-bandwidth: "24M"`,
	})
	for _, verb := range []string{"send", "receive"} { // seen from the other pod: the limited one's ingress, its egress
		var drain, r transferResult
		pods[0].measure(t, &drain, verb, "-bytes", "545000000", limited.IP+":9002")
		pods[0].measure(t, &r, verb, "-bytes", "15000000", limited.IP+":9002")
		t.Logf("%s: %.1f Mbit/s after a burst at %.0f Mbit/s", verb, r.MbitPerSecond, drain.MbitPerSecond)
		if r.MbitPerSecond < limit*0.85 || r.MbitPerSecond > limit*1.15 {
			t.Errorf("%s: %.1f Mbit/s, want %.0f within 15 %%", verb, r.MbitPerSecond, limit)
		}
	}
}
