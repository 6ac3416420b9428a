package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/weft-cni/weft/tests/lane"
)

// amount is how much of policies is measured.
type amount struct {
	small, large crowd
	changes      int // of each kind, in each crowd
	starts       int // of the agent without policies
	pods         int // on a full node
	births       int
	rounds       int // of traffic
}

func policyFigures(t *testing.T, a amount) []Figure {
	w := newTown(t)
	var out []Figure
	note := func(some ...Figure) {
		out = append(out, some...)
		t.Logf("load %s\n%s", load(), Figures(some))
	}
	w.fill(a.small)
	note(w.latency(a.small, a.changes)...)
	w.unwrite()
	note(w.births(a.small, 1, a.births))
	w.API.Unstore("networkpolicies")
	w.fill(a.large, "namespaces", "pods")
	note(w.idleMemory(a.large, a.starts))
	w.fill(a.large, "networkpolicies")
	note(w.fullMemory(a.large)...)
	note(w.latency(a.large, a.changes)...)
	w.unwrite()
	note(w.memoryNow(a.large, "after these changes"))
	note(w.births(a.large, 1, a.births))
	note(w.births(a.large, a.pods, a.births))
	note(w.wire(a.large, a.rounds)...)
	return out
}

// In the short form only the parts are proven to work. WEFT_BENCH=full is what `make bench` does.
func TestTheTableOfCostsOfPoliciesIsMade(t *testing.T) {
	l := lane.Of(t)
	a := amount{
		small: crowd{pods: 200, policies: 20, namespaces: 10, local: 5, selecting: 5, lane: l}, changes: 2, starts: 1, pods: 3, births: 2, rounds: 2,
	}
	a.large = a.small
	a.large.pods, a.large.policies = 400, 40
	full := os.Getenv("WEFT_BENCH") == "full"
	if full {
		a = amount{
			small:   crowd{pods: 1000, policies: 100, namespaces: 50, local: 10, selecting: 10, lane: l},
			large:   crowd{pods: 100_000, policies: 10_000, namespaces: 5000, local: 110, selecting: 100, lane: l},
			changes: 100, starts: 5, pods: 110, births: 30, rounds: 150,
		}
	}
	before := load()
	figures := policyFigures(t, a)
	text := Figures(figures) + fmt.Sprintf("\nLoad of the last minute when this table was begun: %s, when it was done: %s (its own included), on %d processors; lane %s.\n",
		before, load(), runtime.NumCPU(), l)
	t.Logf("\n%s", text)
	if full {
		if err := Write(filepath.Join(root, "docs/performance.md"), "policies", text); err != nil {
			t.Fatal(err)
		}
	}
}
