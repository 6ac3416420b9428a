package e2e

import (
	"encoding/json"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// pod is a running pod that serves what cmd/probe measures with.
type pod struct {
	Name, Node string
	IP         string // of the family that is tested, at first the cluster's first
	Addrs      cluster.Addrs
}

// podSpec is what a test can choose about a pod.
type podSpec struct {
	name        string
	node        string
	annotations string // YAML flow mapping without braces
	ports       string // of the container, YAML flow sequence without brackets
}

func (p podSpec) yaml() string {
	return fmt.Sprintf(`---
apiVersion: v1
kind: Pod
metadata: {name: %[1]s, labels: {app: %[1]s, suite: e2e}, annotations: {%[3]s}}
spec:
  nodeName: %[2]s
  terminationGracePeriodSeconds: 0
  tolerations: [{operator: Exists}]
  containers:
  - {name: probe, image: "localhost/agnhost:dev", imagePullPolicy: Never, command: [probe, serve], ports: [%[4]s]}
`, p.name, p.node, p.annotations, p.ports)
}

// startPods creates pods and waits until they are Ready; they are removed with the test if that is wanted.
func startPods(t *testing.T, specs ...podSpec) []pod {
	t.Helper()
	var manifests strings.Builder
	wait := []string{"wait", "--for=condition=Ready", "--timeout=60s"}
	for _, spec := range specs {
		manifests.WriteString(spec.yaml())
		wait = append(wait, "pod/"+spec.name)
	}
	must(t, suite.Apply(t.Context(), manifests.String()))
	if _, err := suite.Kubectl(t.Context(), wait...); err != nil {
		events, _ := suite.Kubectl(t.Context(), "get", "events", "--sort-by=.lastTimestamp")
		t.Fatalf("%v\n%s", err, events)
	}
	var pods []pod
	for _, spec := range specs {
		pods = append(pods, podNamed(t, "default", spec))
	}
	return pods
}

// withPod is startPods for one pod that ends with the test.
func withPod(t *testing.T, spec podSpec) pod {
	t.Helper()
	deleteAtEnd(t, "pod", spec.name)
	return startPods(t, spec)[0]
}

func deleteAtEnd(t *testing.T, kind, name string) {
	t.Cleanup(func() {
		if _, err := suite.Kubectl(contextOfCleanup(), "delete", kind, name, "--ignore-not-found", "--timeout=60s"); err != nil {
			t.Error(err)
		}
	})
}

// podNamed reads the addresses of a running pod. It must have one of each family.
func podNamed(t *testing.T, namespace string, spec podSpec) pod {
	t.Helper()
	list, err := suite.Kubectl(t.Context(), "-n", namespace, "get", "pod", spec.name, "-o", "jsonpath={.status.podIPs[*].ip}")
	must(t, err)
	addrs, err := cluster.ParseAddrs(list)
	must(t, err)
	for _, f := range families() {
		if !addrs[f].IsValid() {
			t.Fatalf("%s has %q, which holds no address of %v", spec.name, list, f)
		}
	}
	return pod{Name: spec.name, Node: spec.node, Addrs: addrs}.in(first())
}

// podOnEachNode returns the suite's own pods, one on each of the first three nodes. They live as long as the cluster.
func podOnEachNode(t *testing.T) []pod {
	t.Helper()
	withProduct(t)
	var specs []podSpec
	for _, n := range suite.Nodes()[:3] {
		specs = append(specs, podSpec{name: "pod-on-" + n.Name, node: n.Name})
	}
	return startPods(t, specs...)
}

// exec runs a command in the pod.
func (p pod) exec(t *testing.T, args ...string) (string, error) {
	t.Helper()
	return suite.Kubectl(t.Context(), append([]string{"exec", p.Name, "--"}, args...)...)
}

// get fetches a page of another pod or host; an empty answer is an error too.
func (p pod) get(t *testing.T, url string) (string, error) {
	t.Helper()
	return p.exec(t, curl(url)...)
}

// curl is the command that fetches url or fails within five seconds.
func curl(url string) []string { return []string{"curl", "-gsS", "-f", "-m", "5", url} }

// measure runs a verb of cmd/probe in the pod and reads its result into into.
func (p pod) measure(t *testing.T, into any, args ...string) {
	t.Helper()
	out, err := p.exec(t, append([]string{"probe"}, args...)...)
	must(t, err)
	if err := json.Unmarshal([]byte(out), into); err != nil {
		t.Fatalf("read the result of probe %v: %v: %s", args, err, out)
	}
}

// The results of cmd/probe.
type (
	lossResult struct {
		Sent, Received, Duplicates int
		Lost                       []int
	}
	streamResult struct {
		Sent, Received  int
		MaxStallSeconds float64
		Error           string
	}
	transferResult struct {
		Bytes         int64
		Seconds       float64
		MbitPerSecond float64
		Intact        bool
	}
	connectResult struct {
		Tried, OK, Wrong int
		Errors           []string
	}
)

// background is a measurement that goes on until it is told to stop.
type background struct {
	pod  pod
	stop string
	out  chan string
	errs chan error
}

// start begins a measurement in the pod; stop ends it.
func (p pod) start(t *testing.T, stopFile string, args ...string) background {
	t.Helper()
	if _, err := p.exec(t, "rm", "-f", stopFile); err != nil {
		t.Fatal(err)
	}
	b := background{pod: p, stop: stopFile, out: make(chan string, 1), errs: make(chan error, 1)}
	line := append([]string{"exec", p.Name, "--", "probe", args[0], "-until", stopFile, "-limit", "5m"}, args[1:]...)
	go func() {
		out, err := suite.Kubectl(t.Context(), line...)
		b.out <- out
		b.errs <- err
	}()
	return b
}

// end stops the measurement and reads its result.
func (b background) end(t *testing.T, into any) {
	t.Helper()
	if _, err := b.pod.exec(t, "touch", b.stop); err != nil {
		t.Fatal(err)
	}
	select {
	case out := <-b.out:
		must(t, <-b.errs)
		if err := json.Unmarshal([]byte(out), into); err != nil {
			t.Fatalf("read the result of a measurement: %v: %s", err, out)
		}
	case <-time.After(time.Minute):
		t.Fatal("the measurement did not stop")
	}
}

// onHost runs a command on a machine and fails the test if it fails.
func onHost(t *testing.T, m cluster.Machine, args ...string) string {
	t.Helper()
	out, err := m.Exec(t.Context(), args...)
	must(t, err)
	return strings.TrimSpace(out)
}
