// Package bench measures what the product costs, each thing beside a baseline in the same run: the CNI plugin beside the
// delegate alone, a cluster of thousands of nodes beside one of a hundred. A figure by itself says as much about the
// machine as about the code; the ratio of two figures of one run says something about the code.
//
// `make bench` prints the table and writes it into docs/performance.md; a short form of it is part of the tests.
package bench

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"
)

// Row is one line of the table.
type Row struct {
	What     string
	Baseline string // what it is measured beside
	Base     time.Duration
	Took     time.Duration
}

// Ratio is how many times the baseline it took.
func (r Row) Ratio() float64 { return float64(r.Took) / float64(r.Base) }

// Table renders rows as the page has them.
func Table(rows []Row) string {
	var b strings.Builder
	b.WriteString("| what | took | beside | which took | ratio | difference |\n|---|---|---|---|---|---|\n")
	for _, r := range rows {
		fmt.Fprintf(&b, "| %s | %s | %s | %s | %.2f | %s |\n", r.What, short(r.Took), r.Baseline, short(r.Base), r.Ratio(), short(r.Took-r.Base))
	}
	return b.String()
}

// short is a duration with three digits.
func short(d time.Duration) string {
	switch abs := d.Abs(); {
	case abs >= time.Second:
		return fmt.Sprintf("%.2f s", d.Seconds())
	case abs >= time.Millisecond:
		return fmt.Sprintf("%.3g ms", float64(d.Microseconds())/1000)
	}
	return fmt.Sprintf("%.3g µs", float64(d.Nanoseconds())/1000)
}

const end = "<!-- to here -->\n"

// begin is where a table of a name begins.
func begin(name string) string {
	return "<!-- " + name + ", made by make bench: do not edit from here -->\n"
}

// Write puts a table in the place of the one of that name in a page.
func Write(path, name, table string) error {
	page, err := os.ReadFile(path)
	if err != nil {
		return fmt.Errorf("read the page: %w", err)
	}
	before, rest, ok := bytes.Cut(page, []byte(begin(name)))
	_, after, ok2 := bytes.Cut(rest, []byte(end))
	if !ok || !ok2 {
		return errors.New("write the table: the page has no place for it")
	}
	out := slices.Concat(before, []byte(begin(name)), []byte(table), []byte(end), after)
	if err := os.WriteFile(path, out, 0o644); err != nil {
		return fmt.Errorf("write the page: %w", err)
	}
	return nil
}

// thing is done once and says how long it took, or what of that counts.
type thing func() (time.Duration, error)

// timed is a thing of which all counts.
func timed(f func() error) thing {
	return func() (time.Duration, error) {
		start := time.Now()
		err := f()
		return time.Since(start), err
	}
}

// turns measures several things in turns, so that all meet the same load, and gives the median of each.
func turns(n int, things ...thing) ([]time.Duration, error) {
	took := make([][]time.Duration, len(things))
	for range n {
		for i, f := range things {
			d, err := f()
			if err != nil {
				return nil, err
			}
			took[i] = append(took[i], d)
		}
	}
	var out []time.Duration
	for _, t := range took {
		out = append(out, slices.Sorted(slices.Values(t))[len(t)/2])
	}
	return out, nil
}
