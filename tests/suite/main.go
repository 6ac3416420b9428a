// Command suite runs the tests of the repository level by level, shows what fails and how long each level took, and ends with
// the sum over all of them on one line. It must be started at the top of the repository.
package main

import (
	"context"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"
)

// limit ends a run that hangs in time for its sum to be printed.
const limit = 80 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	err := run(ctx, os.Args[1:], os.Stdout)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "suite:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, args []string, out io.Writer) error {
	fs := flag.NewFlagSet("suite", flag.ContinueOnError)
	atLeast := fs.Float64("cover", 0, "instead of running steps: measure coverage and want this many percent of each part")
	fuzzTime := fs.Duration("fuzztime", 30*time.Second, "time for each target of the step fuzz")
	if err := fs.Parse(args); err != nil {
		return err
	}
	if *atLeast > 0 {
		return cover(ctx, *atLeast, out)
	}
	if !slices.Contains(fs.Args(), "soak") && !slices.Contains(fs.Args(), "lanes") {
		var cancel context.CancelFunc
		ctx, cancel = context.WithTimeout(ctx, limit)
		defer cancel()
	}
	all := steps(*fuzzTime)
	for _, name := range fs.Args() {
		if !slices.ContainsFunc(all, func(s step) bool { return s.name == name }) {
			return fmt.Errorf("no step %q", name)
		}
	}
	var total tally
	var lines []string
	for _, name := range fs.Args() {
		s := all[slices.IndexFunc(all, func(s step) bool { return s.name == name })]
		_, _ = fmt.Fprintf(out, "== %s: %s\n", s.name, s.what)
		begin := time.Now()
		t := s.run(ctx, out)
		lines = append(lines, fmt.Sprintf("%-8s %6.0f s  %s", s.name, time.Since(begin).Seconds(), t))
		total.add(t)
	}
	_, _ = fmt.Fprintln(out)
	for _, l := range lines {
		_, _ = fmt.Fprintln(out, l)
	}
	_, _ = fmt.Fprintf(out, "\n%s\n", total)
	switch {
	case total.failed > 0:
		return fmt.Errorf("%d failed", total.failed)
	case total.passed == 0:
		return fmt.Errorf("no test ran")
	}
	return nil
}
