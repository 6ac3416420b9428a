package bench

import (
	"fmt"
	"os"
	"path/filepath"
	"testing"

	"github.com/weft-cni/weft/tests/lane"
)

// size is how much is measured.
type size struct {
	pods     int   // of each kind
	clusters []int // the first is the baseline
	rounds   int
}

// measure makes the table.
func measure(t *testing.T, s size) []Row {
	t.Helper()
	return append(pods(t, s), clusters(t, s)...)
}

func pods(t *testing.T, s size) (rows []Row) {
	t.Helper()
	for _, l := range lane.Lanes() {
		n := newNode(t, l)
		for _, verb := range []string{"ADD", "DEL"} {
			took, err := turns(s.pods, n.cycle("bridge", verb), n.cycle("flannel", verb))
			if err != nil {
				t.Fatal(err)
			}
			rows = append(rows, Row{fmt.Sprintf("%s of a pod through the shim, %s", verb, title(l)), "bridge alone", took[0], took[1]})
		}
	}
	return rows
}

// title is a lane in a reader's words.
func title(l lane.Lane) string {
	return map[lane.Lane]string{lane.IPv4: "IPv4", lane.Dual: "both families", lane.IPv6: "IPv6"}[l]
}

func clusters(t *testing.T, s size) (rows []Row) {
	t.Helper()
	var kinds [3][]thing
	for _, n := range s.clusters {
		p, all := newPlane(t, n), nodes(n+1)
		kinds[0] = append(kinds[0], timed(func() error { _, err := peers(all); return err }))
		kinds[1] = append(kinds[1], p.first)
		kinds[2] = append(kinds[2], timed(p.round))
	}
	for i, what := range []string{"Nodes into peers", "a first round", "a round with nothing to do"} {
		if i == 2 { // what there is to do is done before
			if _, err := turns(1, kinds[i]...); err != nil {
				t.Fatal(err)
			}
		}
		took, err := turns(s.rounds, kinds[i]...)
		if err != nil {
			t.Fatal(err)
		}
		for j, n := range s.clusters[1:] {
			rows = append(rows, Row{fmt.Sprintf("%s, %d peers", what, n), fmt.Sprintf("%d peers", s.clusters[0]), took[0], took[j+1]})
		}
	}
	return rows
}

// In the short form only the parts are proven to work: what a busy machine measures says nothing. WEFT_BENCH=full is what
// `make bench` does.
func TestTheTableOfCostsIsMade(t *testing.T) {
	s := size{pods: 2, clusters: []int{20, 60}, rounds: 2}
	if os.Getenv("WEFT_BENCH") == "full" {
		s = size{pods: 100, clusters: []int{100, 1000, 5000}, rounds: 9}
	}
	rows := measure(t, s)
	for _, r := range rows {
		if r.Base <= 0 || r.Took <= 0 {
			t.Errorf("%+v: nothing was measured", r)
		}
	}
	table := Table(rows)
	t.Logf("\n%s", table)
	if os.Getenv("WEFT_BENCH") == "full" {
		if err := Write(filepath.Join(root, "docs/performance.md"), "costs", table); err != nil {
			t.Fatal(err)
		}
	}
}
