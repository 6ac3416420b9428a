package reliability

import (
	"fmt"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/reliability/table"
)

// Page is where the results go.
const Page = "docs/reliability.md"

// Run plays the faults of a group, each in a test of its own, and writes what came of it if the form does.
func (g Group) Run(t *testing.T, site *Site, form Form) {
	r := &run{group: g, site: site, form: form, parent: t}
	for _, f := range g.Faults {
		if form.Times(f) == 0 {
			continue
		}
		r.prepare(f)
		t.Run(f.Name, func(t *testing.T) { r.play(t, f) })
	}
	if !form.Writes() || len(r.rows) == 0 {
		return
	}
	var names []string
	for _, f := range g.Faults {
		names = append(names, f.Name)
	}
	err := table.Update(filepath.Join(root, Page), table.Group{Name: g.Name, Command: form.Command(), Names: names, Rows: r.rows})
	if err != nil {
		t.Error(err)
	}
}

// run is a group that is being played. Its faults share a bench until one of them spoils it.
type run struct {
	group  Group
	site   *Site
	form   Form
	parent *testing.T
	bench  *Bench
	rows   []table.Row
}

// prepare makes the bench that faults share. That is done outside their own tests, for it outlives them.
func (r *run) prepare(f Fault) {
	switch {
	case f.Alone:
		r.spoil()
	case r.bench == nil:
		r.bench = NewBench(r.parent, r.site, r.nodes())
	}
}

func (r *run) nodes() int {
	if r.group.Nodes == 0 {
		return 3
	}
	return r.group.Nodes
}

// use gives the bench for a fault.
func (r *run) use(t *testing.T, f Fault) *Bench {
	if f.Alone {
		return NewBench(t, r.site, r.nodes())
	}
	return r.bench
}

// spoil ends the bench: its agents would go on about its Nodes while another one makes its own.
func (r *run) spoil() {
	if r.bench != nil {
		for _, n := range r.bench.Nodes {
			n.Agent.Kill()
		}
	}
	r.bench = nil
}

// play makes one row.
func (r *run) play(t *testing.T, f Fault) {
	b := r.use(t, f)
	defer func() {
		if t.Failed() {
			t.Log(b.logs())
			r.spoil()
		}
	}()
	row := table.Row{Fault: f.Name, Runs: r.form.Times(f), Note: note(f)}
	if f.Before != nil {
		if err := f.Before(b); err != nil {
			t.Fatal(err)
		}
	}
	watch := b.watch()
	traffic, err := b.Start()
	if err != nil {
		t.Fatal(err)
	}
	for i := range row.Runs {
		heal, err := b.once(f)
		if err != nil {
			t.Errorf("run %d: %v", i+1, err)
			break
		}
		row.Heals = append(row.Heals, heal)
	}
	count := traffic.Stop()
	row.Sent, row.Lost, row.Duplicated, row.Wrong = count.Sent, count.Lost, count.Duplicated, count.Wrong
	t.Log(row.String())
	f.judge(t, row, count, r.form)
	for _, err := range watch.judge(f, row.Runs) {
		t.Error(err)
	}
	if len(row.Heals) == row.Runs { // also of a row that fails: what was measured is the truth
		r.rows = append(r.rows, row)
	}
}

func note(f Fault) string {
	text := f.Note
	for _, why := range []string{f.Loses, f.Leaks} {
		if strings.Contains(text, why) {
			continue
		}
		if text != "" {
			text += "; "
		}
		text += why
	}
	return text
}

// once makes the damage once, waits until it has healed and takes back what no agent can. Traffic flows for a moment before
// and after, so that each run has its share.
func (b *Bench) once(f Fault) (time.Duration, error) {
	time.Sleep(around)
	b.hurt = time.Time{}
	if err := f.Do(b); err != nil {
		return 0, err
	}
	if b.hurt.IsZero() {
		b.hurt = time.Now()
	}
	heal, err := b.heals(f)
	if err != nil {
		return 0, fmt.Errorf("it does not heal: %w", err)
	}
	time.Sleep(around)
	if f.After == nil {
		return heal, nil
	}
	if err := f.After(b); err != nil {
		return heal, err
	}
	if _, err := await(b.Restored, patience); err != nil {
		return heal, fmt.Errorf("afterwards: %w", err)
	}
	return heal, nil
}

// around is how long traffic flows before and after each damage.
const around = 300 * time.Millisecond

func (f Fault) bound() time.Duration {
	if f.Heal == 0 {
		return time.Second
	}
	return f.Heal
}

// judge compares a row with what the fault allows.
func (f Fault) judge(t testing.TB, row table.Row, count Count, form Form) {
	t.Helper()
	if row.Lost > 0 && f.Loses == "" {
		t.Errorf("%d lost: %s", row.Lost, count)
	}
	if f.Most > 0 && row.Lost > f.Most*row.Runs {
		t.Errorf("%d lost in %d runs; at most %d in each: %s", row.Lost, row.Runs, f.Most, count)
	}
	if row.Duplicated > 0 {
		t.Errorf("%d came more than once: %s", row.Duplicated, count)
	}
	if row.Wrong > 0 && f.Leaks == "" {
		t.Errorf("%d with a wrong source: %s", row.Wrong, count)
	}
	bound := f.bound()
	if !form.Writes() {
		bound *= 10
	}
	if row.P99() > bound {
		t.Errorf("p99 of the heal times is %v; want at most %v; all: %v", row.P99(), bound, row.Heals)
	}
}
