package e2e

import (
	"encoding/json"
	"fmt"
	"net"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// service creates a Service for the pod called app, in all families there are, and returns its cluster IPs.
func service(t *testing.T, name, app, extra string) cluster.Addrs {
	t.Helper()
	deleteAtEnd(t, "service", name)
	must(t, suite.Apply(t.Context(), fmt.Sprintf(`
apiVersion: v1
kind: Service
metadata: {name: %s}
spec:
  selector: {app: %s}
  ipFamilyPolicy: PreferDualStack
  %s
  ports:
  - {name: http, port: 80, targetPort: 8080}
  - {name: echo, port: 9000}
  - {name: echo-udp, port: 9000, protocol: UDP}
`, name, app, extra)))
	list, err := suite.Kubectl(t.Context(), "get", "service", name, "-o", "jsonpath={.spec.clusterIPs[*]}")
	must(t, err)
	addrs, err := cluster.ParseAddrs(list)
	must(t, err)
	return addrs
}

// apiService is the address of the API server's Service, the first of its range.
func apiService() string { return cluster.ServiceNetwork(first()).Addr().Next().String() }

func TestAServiceAndItsNameLeadToThePodFromEveryNode(t *testing.T) {
	pods := podOnEachNode(t)
	addrs := service(t, "on-node-2", pods[1].Name, "")
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		ip, pods := addrs.In(f), allIn(f, pods)
		for _, p := range pods {
			for _, host := range []string{ip, "on-node-2", "on-node-2.default.svc.cluster.local"} {
				var got string
				var err error
				eventually(t, 30*time.Second, p.Name+" reaches "+host, func() error {
					got, err = p.exec(t, append(curl(web(host, "80", "hostname")), word(f, "-4", "-6"))...)
					return err
				})
				if got != pods[1].Name {
					t.Errorf("%s to %s: answered by %s", p.Name, host, got)
				}
			}
		}
		// Not through itself: that is TestC19's case, where kube-proxy must hide the address.
		for _, p := range []pod{pods[0], pods[2]} {
			if got, err := p.get(t, web(ip, "80", "clientip")); err != nil || got != p.IP {
				t.Errorf("%s through the Service: seen as %q (%v), want %s", p.Name, got, err, p.IP)
			}
		}
		for _, n := range suite.Nodes()[:3] {
			if _, err := n.Exec(t.Context(), curl(web(ip, "80", "hostname"))...); err != nil {
				t.Errorf("host %s through the Service: %v", n.Name, err)
			}
		}
	})
}

func TestDNSAnswersEveryPodOverUDPAndTCP(t *testing.T) {
	for _, p := range podOnEachNode(t) {
		for _, transport := range []string{"+notcp", "+tcp"} {
			out, err := p.exec(t, "dig", transport, "+short", "+time=2", recordType(), "kubernetes.default.svc.cluster.local")
			if err != nil || out != apiService() {
				t.Errorf("%s, %s: %q (%v)", p.Name, transport, out, err)
			}
		}
	}
}

// recordType is that of the addresses of Services that have one only.
func recordType() string { return word(first(), "A", "AAAA") }

func TestC19APodReachesItselfThroughItsService(t *testing.T) {
	pods := podOnEachNode(t)
	addrs := service(t, "myself", pods[0].Name, "")
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		eventually(t, 30*time.Second, "the pod reaches itself over TCP", func() error {
			_, err := pods[0].get(t, web(addrs.In(f), "80", "hostname"))
			return err
		})
		var r lossResult
		pods[0].measure(t, &r, "udp", "-count", "50", net.JoinHostPort(addrs.In(f), "9000"))
		if len(r.Lost) > 0 || r.Duplicates > 0 {
			t.Errorf("UDP to itself: %+v", r)
		}
	})
	bridge := onHost(t, suite.Node(1).Machine, "ip", "-d", "link", "show", "cni0")
	if strings.Contains(bridge, "PROMISC") {
		t.Errorf("the bridge is promiscuous:\n%s", bridge)
	}
}

func TestAHostPortLeadsToThePodFromInsideAndOutside(t *testing.T) {
	pods := podOnEachNode(t)
	p := withPod(t, podSpec{name: "host-port", node: "node-2", ports: "{containerPort: 8080, hostPort: 18080}, {containerPort: 9000, hostPort: 19000, protocol: UDP}"})
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		page := web(nodeIP(t, "node-2", f), "18080", "hostname")
		for _, from := range []cluster.Machine{suite.Outside, suite.Node(1).Machine, suite.Node(2).Machine} {
			got, err := from.Exec(t.Context(), curl(page)...)
			if err != nil || got != p.Name {
				t.Errorf("from %s: %q (%v)", from.Name, got, err)
			}
		}
		for _, from := range pods {
			if got, err := from.get(t, page); err != nil || got != p.Name {
				t.Errorf("from %s: %q (%v)", from.Name, got, err)
			}
		}
		page = web(nodeIP(t, "node-2", f), "18080", "clientip")
		if got, err := suite.Outside.Exec(t.Context(), curl(page)...); err != nil || got != outside(f) {
			t.Errorf("the pod sees the outside host as %q (%v), want %s", got, err, outside(f))
		}
	})
}

func TestC20AUDPHostPortFollowsThePodThatReplacesAnother(t *testing.T) {
	withProduct(t)
	spec := podSpec{name: "udp-port", node: "node-2", ports: "{containerPort: 9000, hostPort: 19001, protocol: UDP}"}
	withPod(t, spec)
	// One client, one source port, all the time: its conntrack entry never gets the chance to expire by itself.
	for _, f := range families() {
		client := suite.Outside.Command(t.Context(), "probe", "udp", "-every", "50ms", "-count", "2000", net.JoinHostPort(nodeIP(t, "node-2", f), "19001"))
		must(t, client.Start())
		killAtEnd(t, client)
	}
	// With a grace period the pod is gone from the API server when it is gone from the node; without, its rules count for as
	// long as its DEL takes.
	_, err := suite.Kubectl(t.Context(), "delete", "pod", spec.name, "--grace-period=1", "--timeout=60s")
	must(t, err)
	second := startPods(t, spec)[0]
	captures := map[subnet.Family]*cluster.Capture{}
	for _, f := range families() {
		captures[f], err = suite.Node(2).Capture(t.Context(), "cni0", "udp and dst host "+second.Addrs.In(f))
		must(t, err)
	}
	time.Sleep(time.Second) // the time within which the case says the flow must have moved
	for f, capture := range captures {
		packets, err := capture.Stop(t.Context())
		must(t, err)
		if len(packets) == 0 {
			t.Errorf("one second after the new pod was Ready nothing of the old flow of %v reaches it", f)
		}
	}
}

func TestM10ANodePortWithLocalPolicyShowsTheClientsAddress(t *testing.T) {
	pods := podOnEachNode(t)
	service(t, "local-port", pods[1].Name, "type: NodePort\n  externalTrafficPolicy: Local")
	service(t, "cluster-port", pods[1].Name, "type: NodePort")
	ports := map[string]string{}
	for _, name := range []string{"local-port", "cluster-port"} {
		port, err := suite.Kubectl(t.Context(), "get", "service", name, "-o", "jsonpath={.spec.ports[0].nodePort}")
		must(t, err)
		ports[name] = port
	}
	eachFamily(t, func(t *testing.T, f subnet.Family) {
		for _, try := range []struct {
			service, via, want string
		}{
			{"local-port", "node-2", outside(f)},
			{"cluster-port", "node-2", ""},
			{"cluster-port", "node-1", ""}, // masqueraded by kube-proxy: which address is its own affair
		} {
			var got string
			var err error
			eventually(t, 30*time.Second, try.service+" answers through "+try.via, func() error {
				got, err = suite.Outside.Exec(t.Context(), curl(web(nodeIP(t, try.via, f), ports[try.service], "clientip"))...)
				return err
			})
			if try.want != "" && got != try.want {
				t.Errorf("%s through %s: the pod sees %s, want %s", try.service, try.via, got, try.want)
			}
		}
	})
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
		server := net.JoinHostPort(limited.IP, "9002")
		pods[0].measure(t, &drain, verb, "-bytes", "525000000", server)
		// The slower that was, the more is in the bucket again. What fills it until the next command runs passes before the one
		// that counts.
		for range 10 {
			out, err := pods[0].exec(t, "sh", "-c", fmt.Sprintf("probe %[1]s -bytes 6000000 %[2]s >&2 && probe %[1]s -bytes 9000000 %[2]s", verb, server))
			must(t, err)
			must(t, json.Unmarshal([]byte(out), &r))
			if r.MbitPerSecond <= limit*1.15 {
				break
			}
		}
		t.Logf("%s: %.1f Mbit/s after a burst at %.0f Mbit/s", verb, r.MbitPerSecond, drain.MbitPerSecond)
		if r.MbitPerSecond < limit*0.85 || r.MbitPerSecond > limit*1.15 {
			t.Errorf("%s: %.1f Mbit/s, want %.0f within 15 %%", verb, r.MbitPerSecond, limit)
		}
	}
}
