package e2e

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/e2e/cluster"
)

// traffic is what is under way while a fault is made, in each family: 100 numbered packets a second between all pairs of pods, both ways, one
// TCP connection through a Service, and 20 new connections a second to the outside host, which says whom it sees. All of it
// runs in the pods' network namespaces as processes of this machine, so nothing of the cluster but its data plane is
// needed for it.
type traffic struct {
	stop  string // the file whose appearance ends it
	flows []*flow
	leaks *cluster.Capture // packets with a pod's own address, as the outside host sees them
}

// flow is one measurement under way.
type flow struct {
	name        string
	verb        string
	begun       string // the file that appears with the first answer
	out, errOut strings.Builder
	ended       chan error
	kill        func() error
}

// tally is what a traffic's flows add up to.
type tally struct {
	sent, lost, duplicated, wrong int
	stall                         float64 // the longest time without an answer on the long connection, in seconds
	notes                         []string
}

func (s *tally) note(format string, args ...any) {
	s.notes = append(s.notes, fmt.Sprintf(format, args...))
}

// startTraffic returns once every flow has had an answer. services holds the addresses of the Service of each pod, by its name.
func startTraffic(t *testing.T, pods []pod, services map[string]cluster.Addrs) *traffic {
	t.Helper()
	dir := t.TempDir()
	tr := &traffic{stop: filepath.Join(dir, "stop")}
	networks := map[string]cluster.Machine{}
	for _, p := range pods {
		var err error
		networks[p.Name], err = nodeNamed(t, p.Node).PodNetwork(t.Context(), p.Name)
		must(t, err)
	}
	var err error
	tr.leaks, err = suite.Outside.Capture(contextOfCleanup(), "eth0", fromPods())
	must(t, err)
	t.Cleanup(func() { tr.abandon() })
	start := func(from pod, name string, args ...string) {
		f := &flow{name: from.Node + " " + name, verb: args[0], begun: filepath.Join(dir, fmt.Sprintf("begun-%d", len(tr.flows)))}
		line := append([]string{"probe", args[0], "-until", tr.stop, "-begun", f.begun, "-limit", "12h"}, args[1:]...)
		must(t, f.start(networks[from.Name].Command(contextOfCleanup(), line...)))
		tr.flows = append(tr.flows, f)
	}
	for _, f := range families() {
		for _, pair := range pairs(allIn(f, pods)) {
			start(pair[0], fmt.Sprintf("to %s, %v", pair[1].Node, f), "ping", "-every", "10ms", pair[1].IP)
		}
		if len(pods) > 1 {
			service := services[pods[1].Name].In(f)
			eventually(t, 30*time.Second, "the Service leads to "+pods[1].Name, func() error {
				_, err := networks[pods[0].Name].Exec(t.Context(), curl(web(service, "80", "hostname"))...)
				return err
			})
			start(pods[0], fmt.Sprintf("through a Service, %v", f), "stream", "-every", "10ms", net.JoinHostPort(service, "9000"))
		}
		for _, p := range pods {
			every := 50 * time.Millisecond * time.Duration(len(pods))
			start(p, fmt.Sprintf("to the outside, %v", f), "connect", "-every", every.String(), "-source", nodeIP(t, p.Node, f),
				net.JoinHostPort(outside(f), "9001"))
		}
	}
	eventually(t, 30*time.Second, "every flow has had an answer", tr.begun)
	return tr
}

func (f *flow) start(cmd *exec.Cmd) error {
	cmd.Stdout, cmd.Stderr = &f.out, &f.errOut
	if err := cmd.Start(); err != nil {
		return fmt.Errorf("start %s: %w", f.name, err)
	}
	f.kill, f.ended = cmd.Process.Kill, make(chan error, 1)
	go func() { f.ended <- cmd.Wait() }()
	return nil
}

func (tr *traffic) begun() error {
	var errs []error
	for _, f := range tr.flows {
		if _, err := os.Stat(f.begun); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", f.name, err))
		}
	}
	return errors.Join(errs...)
}

// end stops the flows and adds up what they counted.
func (tr *traffic) end(t *testing.T) tally {
	t.Helper()
	var sum tally
	must(t, os.WriteFile(tr.stop, nil, 0o644))
	for _, f := range tr.flows {
		select {
		case err := <-f.ended:
			if err == nil {
				err = f.addTo(&sum)
			}
			if err != nil {
				t.Fatalf("%s: %v: %s", f.name, err, f.errOut.String())
			}
		case <-time.After(time.Minute):
			t.Fatalf("%s did not stop", f.name)
		}
	}
	tr.flows = nil
	packets, err := tr.leaks.Stop(contextOfCleanup())
	must(t, err)
	tr.leaks = nil
	if sum.wrong += len(packets); len(packets) > 0 {
		sum.note("%d packets left with a pod's own address:\n%s", len(packets), strings.Join(packets[:min(5, len(packets))], "\n"))
	}
	return sum
}

// abandon ends what a test that failed has left.
func (tr *traffic) abandon() {
	for _, f := range tr.flows {
		_ = f.kill() // it may have ended
	}
	if tr.leaks != nil {
		_, _ = tr.leaks.Stop(contextOfCleanup()) // nobody wants to know any more
	}
}

// addTo reads the result.
func (f *flow) addTo(sum *tally) error {
	text := []byte(f.out.String())
	switch f.verb {
	case "ping":
		var r lossResult
		if err := json.Unmarshal(text, &r); err != nil {
			return err
		}
		sum.sent, sum.lost, sum.duplicated = sum.sent+r.Sent, sum.lost+len(r.Lost), sum.duplicated+r.Duplicates
		if len(r.Lost) > 0 || r.Duplicates > 0 {
			sum.note("%s: %d sent, %d duplicated, lost %v", f.name, r.Sent, r.Duplicates, r.Lost[:min(50, len(r.Lost))])
		}
	case "stream":
		var r streamResult
		if err := json.Unmarshal(text, &r); err != nil {
			return err
		}
		sum.sent, sum.lost, sum.stall = sum.sent+r.Sent, sum.lost+r.Sent-r.Received, r.MaxStallSeconds
		if r.Error != "" || r.Sent != r.Received {
			sum.note("%s: %+v", f.name, r)
		}
	case "connect":
		var r connectResult
		if err := json.Unmarshal(text, &r); err != nil {
			return err
		}
		sum.sent, sum.lost, sum.wrong = sum.sent+r.Tried, sum.lost+r.Tried-r.OK-r.Wrong, sum.wrong+r.Wrong
		if len(r.Errors) > 0 {
			sum.note("%s: %+v", f.name, r)
		}
	}
	return nil
}

// nodeNamed finds a node.
func nodeNamed(t *testing.T, name string) *cluster.Node {
	t.Helper()
	nodes := suite.Nodes()
	i := slices.IndexFunc(nodes, func(n *cluster.Node) bool { return n.Name == name })
	if i < 0 {
		t.Fatalf("no node is called %s", name)
	}
	return nodes[i]
}

// onEachNode runs do for all nodes at once and returns all errors.
func onEachNode(do func(context.Context, *cluster.Node) error) error {
	nodes := suite.Nodes()
	errs := make(chan error, len(nodes))
	for _, n := range nodes {
		go func() { errs <- do(contextOfCleanup(), n) }()
	}
	var all []error
	for range nodes {
		all = append(all, <-errs)
	}
	return errors.Join(all...)
}
