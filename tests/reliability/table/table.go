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
	Families   []Family        // of what was sent and lost, in a lane of two families, IPv4 first; the sums count otherwise
	Note       string          // why something was lost, or how it is kept from being; one line
}

// Family is a row's share of one family.
type Family struct{ Sent, Lost int }

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
		r.Fault, strconv.Itoa(r.Runs), r.each(r.Sent, func(f Family) int { return f.Sent }), r.each(r.Lost, func(f Family) int { return f.Lost }), strconv.Itoa(r.Duplicated), strconv.Itoa(r.Wrong), heal, r.Note,
	}
	for i, c := range cells {
		cells[i] = clean(c)
	}
	return "| " + strings.Join(cells, " | ") + " |"
}

// each writes the figures of two families as a sum.
func (r Row) each(all int, of func(Family) int) string {
	if len(r.Families) == 0 {
		return strconv.Itoa(all)
	}
	var parts []string
	for _, f := range r.Families {
		parts = append(parts, strconv.Itoa(of(f)))
	}
	return strings.Join(parts, " + ")
}

// clean keeps a cell in its cell.
func clean(s string) string {
	return strings.TrimSpace(strings.NewReplacer("|", "/", "\n", " ").Replace(s))
}

// Group is the part of the page that one kind of fault has.
type Group struct {
	Name    string   // "agent", "kernel", ...: the heading
	Lane    string   // in which it was played: "ipv4" or empty, "dual", "ipv6"
	Command string   // that makes these rows again
	Names   []string // every fault that the group has, in the order of the page
	Rows    []Row    // those of this run
}

// heading starts a group, and head its table.
const (
	heading = "## "
	head    = "| fault | runs | sent | lost | duplicated | wrong source | heals in (p99) | note |\n|---|---:|---:|---:|---:|---:|---:|---|"
)

// title is the heading: a lane beside IPv4 has a part of its own.
func (g Group) title() string {
	switch g.Lane {
	case "", "ipv4":
		return g.Name
	case "dual":
		return g.Name + laneMark + "dual-stack"
	}
	return g.Name + laneMark + "IPv6-only"
}

// laneMark stands between the group's name and its lane.
const laneMark = ", "

// by says how the rows are made again.
func (g Group) by(stamp string) string {
	text := fmt.Sprintf("By `%s`; last run: %s.", g.Command, stamp)
	if g.title() != g.Name {
		text = fmt.Sprintf("By `WEFT_LANE=%s %s`; last run: %s.", g.Lane, g.Command, stamp)
	}
	if g.Lane == "dual" {
		text += " Sent and lost: IPv4 + IPv6."
	}
	return text
}

// render makes the group's part of the page, with the rows of old runs where this one made none.
func (g Group) render(old map[string]string, stamp string) string {
	made := map[string]string{}
	for _, r := range g.Rows {
		made[clean(r.Fault)] = r.String()
	}
	lines := []string{heading + g.title(), "", g.by(stamp), "", head}
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
