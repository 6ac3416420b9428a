package watch

import (
	"fmt"
	"strings"
	"testing"

	corev1 "k8s.io/api/core/v1"

	"github.com/weft-cni/weft/backend/policy"
)

// line renders a pod in one line.
func line(p *policy.Pod) string {
	if p == nil {
		return "none"
	}
	var b strings.Builder
	fmt.Fprintf(&b, "%s/%s", p.Namespace, p.Name)
	if p.Local {
		b.WriteString(" local")
	}
	if p.HostNetwork {
		b.WriteString(" hostNetwork")
	}
	if p.Terminating {
		b.WriteString(" terminating")
	}
	b.WriteString(" " + [...]string{"pending", "running", "finished"}[p.Phase])
	for _, a := range p.Addrs {
		if a.IsValid() {
			b.WriteString(" " + a.String())
		}
	}
	for _, l := range p.Labels {
		b.WriteString(" " + l.Key + "=" + l.Value)
	}
	for _, n := range p.Ports {
		fmt.Fprintf(&b, " %s:%d/%s", n.Name, n.Port, n.Proto)
	}
	return b.String()
}

func TestPodsAreReadAsFarAsPoliciesNeedThem(t *testing.T) {
	for name, c := range map[string]struct{ pod, want string }{
		"a local pod": {`
metadata: {name: a, namespace: x, labels: {b: "2", a: "1"}}
spec:
  nodeName: n1
  initContainers:
  - {name: i, ports: [{name: never, containerPort: 1}]}
  - {name: side, restartPolicy: Always, ports: [{name: side, containerPort: 9, protocol: UDP}]}
  containers:
  - {name: c, ports: [{name: http, containerPort: 80}, {containerPort: 81}, {name: odd, containerPort: 70000}, {name: new, containerPort: 1, protocol: QUIC}]}
status: {phase: Running, podIP: 10.244.1.2, podIPs: [{ip: 10.244.1.2}, {ip: "fd00::2"}]}`,
			"x/a local running 10.244.1.2 fd00::2 a=1 b=2 side:9/udp http:80/tcp"},
		"one that has no address yet":          {"metadata: {name: a, namespace: x}\nspec: {nodeName: n1}\nstatus: {phase: Pending}", "x/a local pending"},
		"one of another node with an address":  {"metadata: {name: a, namespace: x}\nspec: {nodeName: n2}\nstatus: {phase: Running, podIP: 10.244.2.2}", "x/a running 10.244.2.2"},
		"one of another node without":          {"metadata: {name: a, namespace: x}\nspec: {nodeName: n2}\nstatus: {phase: Pending}", "none"},
		"one that is not scheduled":            {"metadata: {name: a, namespace: x}\nstatus: {phase: Pending}", "none"},
		"N-01 one that has finished elsewhere": {"metadata: {name: a, namespace: x}\nspec: {nodeName: n2}\nstatus: {phase: Failed, podIP: 10.244.2.2}", "none"},
		"N-01 one that has finished here":      {"metadata: {name: a, namespace: x}\nspec: {nodeName: n1}\nstatus: {phase: Succeeded, podIP: 10.244.1.2}", "x/a local finished 10.244.1.2"},
		"N-02 one that is being deleted": {"metadata: {name: a, namespace: x, deletionTimestamp: \"2026-01-01T00:00:00Z\"}\nspec: {nodeName: n1}\nstatus: {phase: Running, podIP: 10.244.1.2}",
			"x/a local terminating running 10.244.1.2"},
		"N-21 one on the host's network here":  {"metadata: {name: a, namespace: x}\nspec: {nodeName: n1, hostNetwork: true}\nstatus: {phase: Running, podIP: 192.168.1.1}", "x/a local hostNetwork running"},
		"N-21 one on the host's network there": {"metadata: {name: a, namespace: x}\nspec: {nodeName: n2, hostNetwork: true}\nstatus: {phase: Running, podIP: 192.168.1.2}", "none"},
		"addresses that are none": {"metadata: {name: a, namespace: x}\nspec: {nodeName: n1}\nstatus: {phase: Running, podIP: x, podIPs: [{ip: \"fe80::1%eth0\"}, {ip: \"::ffff:10.244.1.2\"}]}",
			"x/a local running 10.244.1.2"},
	} {
		p := parsePod(readYAML[corev1.Pod](t, c.pod), "n1", newInterner())
		if got := line(p.value); got != c.want {
			t.Errorf("%s: %s\nwant %s", name, got, c.want)
		}
	}
}

func TestEqualLabelsAndPortsShareOnePlace(t *testing.T) {
	in := newInterner()
	pod := func(name string) *policy.Pod {
		return parsePod(readYAML[corev1.Pod](t, "metadata: {name: "+name+", namespace: x, labels: {b: \"2\", a: \"1\"}}\n"+
			"spec: {nodeName: n1, containers: [{name: c, ports: [{name: http, containerPort: 80}]}]}"), "n1", in).value
	}
	a, b := pod("a"), pod("b")
	if &a.Labels[0] != &b.Labels[0] || &a.Ports[0] != &b.Ports[0] {
		t.Error("two copies")
	}
	if samePod(a, b) || !samePod(a, pod("a")) {
		t.Error("samePod")
	}
	for i := range 3 * leastInterned {
		in.text(fmt.Sprint(i))
	}
	in.tidy(1)
	if n := len(in.texts); n > 0 {
		t.Errorf("%d texts are kept for one object", n)
	}
}
