package reliability

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/reliability/table"
)

// Page is where the results go.
const Page = "docs/reliability.md"

// Run plays the faults of a group, each in a test of its own, and writes what came of it if the form does.
func (g Group) Run(t *testing.T, site *Site, form Form) {
	r := &run{group: g, site: site, form: form, parent: t}
	for _, f := range g.Faults {
		if form.Times(f) == 0 || len(f.struck(site.Lane)) == 0 {
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
		names = append(names, nameIn(f.struck(site.Lane), f.Name))
	}
	err := table.Update(filepath.Join(root, Page), table.Group{Name: g.Name, Lane: string(site.Lane), Command: form.Command(), Names: names, Rows: r.rows})
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
		r.bench = r.newBench(r.parent)
	}
}

func (r *run) newBench(t testing.TB) *Bench {
	return NewBenchOver(t, r.site, cmp.Or(r.group.Nodes, 3), cmp.Or(r.group.Backend, VXLAN))
}

// use gives the bench for a fault.
func (r *run) use(t *testing.T, f Fault) *Bench {
	if f.Alone {
		return r.newBench(t)
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
	if !b.Nodes[0].canMake(f.Kernel) {
		t.Skipf("this kernel has no %s devices; make test-vm has one that does", f.Kernel)
	}
	defer func() {
		if t.Failed() {
			t.Log(b.logs())
			r.spoil()
		}
	}()
	b.struck = f.struck(b.Lane)
	row := table.Row{Fault: nameIn(b.struck, f.Name), Runs: r.form.Times(f), Note: nameIn(b.struck, note(f))}
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
	row.Duplicated, row.Wrong = count.Duplicated[0]+count.Duplicated[1], count.Wrong[0]+count.Wrong[1]
	row.Sent, row.Lost = count.Sent[0]+count.Sent[1], count.Lost[0]+count.Lost[1]
	if b.Lane == lane.Dual {
		for _, x := range subnet.Families() {
			row.Families = append(row.Families, table.Family{Sent: count.Sent[x], Lost: count.Lost[x]})
		}
	}
	t.Log(row.String())
	f.judge(t, b.struck, count, row, r.form)
	for _, err := range watch.judge(f, row.Runs) {
		t.Error(err)
	}
	if len(row.Heals) == row.Runs { // also of a row that fails: what was measured is the truth
		r.rows = append(r.rows, row)
	}
}

// nameIn names the devices that a row is about, where a text speaks of IPv4's.
func nameIn(struck []subnet.Family, text string) string {
	var devices []string
	for _, f := range struck {
		devices = append(devices, device(f))
	}
	return strings.ReplaceAll(text, device(subnet.IPv4), strings.Join(devices, " and "))
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

// judge compares a row with what the fault allows, in the families that it strikes: in others it may cost nothing.
func (f Fault) judge(t testing.TB, struck []subnet.Family, count Count, row table.Row, form Form) {
	t.Helper()
	for _, x := range subnet.Families() {
		loses, leaks := f.Loses != "", f.Leaks != ""
		if !slices.Contains(struck, x) {
			loses, leaks = false, false
		}
		if count.Lost[x] > 0 && !loses {
			t.Errorf("%s: %d lost: %s", x, count.Lost[x], count)
		}
		if f.Most > 0 && count.Lost[x] > f.Most*row.Runs {
			t.Errorf("%s: %d lost in %d runs; at most %d in each: %s", x, count.Lost[x], row.Runs, f.Most, count)
		}
		if count.Duplicated[x] > 0 {
			t.Errorf("%s: %d came more than once: %s", x, count.Duplicated[x], count)
		}
		if count.Wrong[x] > 0 && !leaks {
			t.Errorf("%s: %d with a wrong source: %s", x, count.Wrong[x], count)
		}
	}
	bound := f.bound()
	if !form.Writes() {
		bound *= 10
	}
	if row.P99() > bound {
		t.Errorf("p99 of the heal times is %v; want at most %v; all: %v", row.P99(), bound, row.Heals)
	}
}
