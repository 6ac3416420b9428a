package e2e

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/e2e/cluster"
	"github.com/weft-cni/weft/tests/reliability/table"
)

// fault is one thing that goes wrong on a real cluster: one line of docs/reliability.md.
type fault struct {
	name  string
	note  string // for the page: how it is done, or what is lost and why
	short bool   // every run of the suite plays it, once
	times int    // how often the long form plays it; 0 means once, since it takes 10 s or more

	between []int         // the numbers of the nodes whose pods talk meanwhile; nil means the first three
	heal    time.Duration // bounds the time to heal in the long form; 0: it is measured and not judged
	do      func(t *testing.T) (heals time.Duration)
}

// The forms of a run, as WEFT_RELIABILITY asks for them: the short one is part of every run.
const (
	long = "long" // every fault, and the page is written
	soak = "soak" // every fault ten times or more
)

// plays is how often this run plays the fault.
func (f fault) plays() int {
	switch form := os.Getenv("WEFT_RELIABILITY"); {
	case os.Getenv(envForm) == shortForm && f.name != shortFault:
		return 0
	case form == soak:
		return max(10, f.times)
	case form == long:
		return max(1, f.times)
	case f.short:
		return 1
	}
	return 0
}

// groups are all faults, in the order of the page. A fault must leave the cluster as it found it.
func groups() []fault {
	return slices.Concat(agentFaults(), apiFaults(), hostFaults(), nodeFaults(), migrationFaults(), backendFaults())
}

// TestFaultsLoseNoPacketOnARealCluster plays every fault while packets are counted. No packet and no connection may be lost
// and none may leave with another source address than its node's, over all the pods that a fault does not take the power from.
//
//	WEFT_RELIABILITY=long go test -run 'TestFaults/SIGKILL' -timeout 30m -v .
func TestFaultsLoseNoPacketOnARealCluster(t *testing.T) {
	pods := podOnEachNode(t)
	services := map[string]cluster.Addrs{}
	for _, p := range pods {
		services[p.Name] = service(t, "bench-"+p.Node, p.Name, "")
	}
	serveOn(t, suite.Outside)
	page := table.Group{Name: "e2e", Command: "make test-reliability"}
	for _, f := range groups() {
		page.Names = append(page.Names, f.name)
		if f.plays() == 0 {
			continue
		}
		t.Run(f.name, func(t *testing.T) { page.Rows = append(page.Rows, f.play(t, services)) })
	}
	for _, row := range page.Rows {
		t.Log(row)
	}
	if os.Getenv("WEFT_RELIABILITY") != "" {
		must(t, table.Update("../../docs/reliability.md", page))
	}
}

// play makes the fault as often as it has to be, and judges.
func (f fault) play(t *testing.T, services map[string]cluster.Addrs) table.Row {
	pods := podOnEachNode(t)
	restored(t)
	if f.between != nil {
		pods = slices.DeleteFunc(pods, func(p pod) bool {
			return !slices.ContainsFunc(f.between, func(n int) bool { return suite.Node(n).Name == p.Node })
		})
	}
	row := table.Row{Fault: f.name, Runs: f.plays(), Note: f.note}
	tr := startTraffic(t, pods, services)
	for range row.Runs {
		if heals := f.do(t); heals > 0 {
			row.Heals = append(row.Heals, heals)
		}
	}
	sum := tr.end(t)
	row.Sent, row.Lost, row.Duplicated, row.Wrong = sum.sent, sum.lost, sum.duplicated, sum.wrong
	t.Logf("%d sent, %d lost, %d duplicated, %d wrong; longest stall of the connection %.2f s; heals %v", sum.sent, sum.lost,
		sum.duplicated, sum.wrong, sum.stall, row.Heals)
	if sum.sent == 0 || sum.lost+sum.duplicated+sum.wrong > 0 {
		t.Errorf("of %d packets %d were lost, %d came twice, %d left with a wrong address\n%s", sum.sent, sum.lost, sum.duplicated,
			sum.wrong, strings.Join(sum.notes, "\n"))
	}
	bound := f.heal
	if os.Getenv("WEFT_RELIABILITY") == "" {
		bound *= 10 // others use the machine too
	}
	if bound > 0 && row.P99() > bound {
		t.Errorf("it heals in %s, which must take no more than %s: %v", row.P99(), bound, row.Heals)
	}
	restored(t)
	return row
}

// restored waits until every agent is ready and up to date and every kernel holds what the Nodes say.
func restored(t *testing.T) {
	t.Helper()
	eventually(t, time.Minute, "every agent is ready", agentsReady)
	agree(t, 30*time.Second, members(t))
}

// agentsReady asks the agents themselves; one that works from what it knew before the API server went away is not ready here.
func agentsReady() error {
	return onEachNode(func(ctx context.Context, n *cluster.Node) error {
		out, err := n.Exec(ctx, curl("http://127.0.0.1:8081/readyz")...)
		if err == nil && strings.Contains(out, "stale") {
			err = fmt.Errorf("%s: %s", n.Name, out)
		}
		return err
	})
}
