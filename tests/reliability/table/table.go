// Package table keeps docs/reliability.md: one line a fault, with what was lost and how long it took to heal, written
// by the runs themselves. It knows nothing of how a fault is made, so that the bench of namespaces and the real
// cluster, which is a module of its own, share it:
//
//	group := table.Group{Name: "e2e", Command: "make test-reliability", Names: allNames, Rows: rows}
//	err := table.Update("../../docs/reliability.md", group)
//
// A run replaces its own group and leaves all others as they are. Rows of the group that this run did not make stay as
// well, as long as their names are still among Names: a run of one fault does not empty the page.
package table

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"
)

// Row is what one fault did.
type Row struct {
	Fault      string          // what was done: "flanneld: SIGKILL"
	Runs       int             // how often
	Sent       int             // packets and connections while it was done
	Lost       int             // those of them without an answer one second after the last was sent
	Duplicated int             // those of them that came more than once
	Wrong      int             // those of them that came with a source address that is not theirs
	Heals      []time.Duration // of each run: from the damage until all is as it was; none where nothing was damaged
	Note       string          // why something was lost, or how it is kept from being; one line
}

// P99 is the time within which 99 of 100 runs healed: of fewer runs, the slowest. It is zero without runs.
func (r Row) P99() time.Duration {
	if len(r.Heals) == 0 {
		return 0
	}
	sorted := slices.Sorted(slices.Values(r.Heals))
	return sorted[(99*len(sorted)+99)/100-1]
}

// String is the row as the page has it.
func (r Row) String() string {
	heal := "-"
	if len(r.Heals) > 0 {
		heal = strconv.FormatFloat(r.P99().Seconds(), 'f', 3, 64) + " s"
	}
	cells := []string{
		r.Fault, strconv.Itoa(r.Runs), strconv.Itoa(r.Sent), strconv.Itoa(r.Lost), strconv.Itoa(r.Duplicated), strconv.Itoa(r.Wrong), heal, r.Note,
	}
	for i, c := range cells {
		cells[i] = clean(c)
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// clean keeps a cell in its cell.
func clean(s string) string {
	return strings.TrimSpace(strings.NewReplacer("|", "/", "\n", " ").Replace(s))
}

// Group is the part of the page that one kind of fault has.
type Group struct {
	Name    string   // "agent", "kernel", ...: the heading
	Command string   // that makes these rows again
	Names   []string // every fault that the group has, in the order of the page
	Rows    []Row    // those of this run
}

// heading starts a group, and head its table.
const (
	heading = "## "
	head    = "| fault | runs | sent | lost | duplicated | wrong source | heals in (p99) | note |\n|---|---:|---:|---:|---:|---:|---:|---|"
)

// render makes the group's part of the page, with the rows of old runs where this one made none.
func (g Group) render(old map[string]string, stamp string) string {
	made := map[string]string{}
	for _, r := range g.Rows {
		made[clean(r.Fault)] = r.String()
	}
	lines := []string{heading + g.Name, "", fmt.Sprintf("By `%s`; last run: %s.", g.Command, stamp), "", head}
	for _, name := range g.Names {
		line, ok := made[clean(name)]
		if !ok {
			line, ok = old[clean(name)]
		}
		if ok {
			lines = append(lines, line)
		}
	}
	return strings.Join(lines, "\n") + "\n"
}

// rowsOf reads the rows of a part back, by the name of the fault.
func rowsOf(part string) map[string]string {
	rows := map[string]string{}
	for line := range strings.Lines(part) {
		line = strings.TrimSpace(line)
		if cells := strings.Split(line, " | "); len(cells) == 8 && !strings.HasPrefix(line, "| fault ") {
			rows[strings.TrimSpace(strings.TrimPrefix(cells[0], "| "))] = line
		}
	}
	return rows
}
