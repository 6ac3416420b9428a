package main

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"path/filepath"
	"strings"
	"time"
)

// step is one level of tests.
type step struct {
	name, what string
	run        func(context.Context, io.Writer) tally
}

func steps(fuzzTime time.Duration) []step {
	return []step{
		{"house", "the conventions", func(ctx context.Context, out io.Writer) tally {
			return goTest(ctx, out, ".", "-count=1", "./tests/house")
		}},
		{"lint", "golangci-lint", lint},
		{"unit", "unit tests and fuzz seeds, race detector on", unit},
		{"netns", "network namespaces and scenarios", netns},
		{"modules", "tests with a module of their own", modules},
		{"e2e", "the real cluster", func(ctx context.Context, out io.Writer) tally {
			return goTest(ctx, out, "tests/e2e", "-count=1", "-p", "1", "-timeout", "60m", "./...")
		}},
		{"fuzz", "each fuzz target for " + fuzzTime.String(), func(ctx context.Context, out io.Writer) tally {
			return fuzz(ctx, out, fuzzTime)
		}},
	}
}

// lint counts as one test a module.
func lint(ctx context.Context, out io.Writer) tally {
	mods, err := filepath.Glob("tests/*/go.mod")
	if err != nil {
		return broken(out, err)
	}
	var t tally
	for _, mod := range append([]string{"go.mod"}, mods...) {
		dir := filepath.Dir(mod)
		tools, err := filepath.Rel(dir, ".ci/tools.mod")
		if err != nil {
			return broken(out, err)
		}
		cmd := exec.CommandContext(ctx, "go", "tool", "-modfile="+tools, "golangci-lint", "run", "./...")
		cmd.Dir, cmd.Stdout, cmd.Stderr = dir, out, out
		if err := cmd.Run(); err != nil {
			_, _ = fmt.Fprintf(out, "FAIL lint in %s: %v\n", dir, err)
			t.failed++
			continue
		}
		t.passed++
	}
	return t
}

// unit runs everything but what needs namespaces. tests/house has a step of its own.
func unit(ctx context.Context, out io.Writer) tally {
	names, err := find(".", "Test", inNamespaces)
	if err != nil {
		return broken(out, err)
	}
	pkgs, err := packages(ctx)
	if err != nil {
		return broken(out, err)
	}
	return goTest(ctx, out, ".", append([]string{"-count=1", "-race", "-timeout", "10m", "-skip", names.pattern()}, pkgs...)...)
}

// netns runs the packages one after the other: what is timed there must not meet another package's load.
func netns(ctx context.Context, out io.Writer) tally {
	names, err := find(".", "Test", inNamespaces)
	if err != nil {
		return broken(out, err)
	}
	if len(names) == 0 {
		return tally{}
	}
	return goTest(ctx, out, ".", append([]string{"-count=1", "-p", "1", "-timeout", "20m", "-run", names.pattern()}, names.packages()...)...)
}

// fuzz runs the targets one by one, which is all that the go command can do.
func fuzz(ctx context.Context, out io.Writer, each time.Duration) tally {
	names, err := find(".", "Fuzz", func(string) bool { return true })
	if err != nil {
		return broken(out, err)
	}
	var t tally
	for _, n := range names {
		t.add(goTest(ctx, out, ".", "-run", "^$", "-fuzz", "^"+n.name+"$", "-fuzztime", each.String(), n.pkg))
	}
	return t
}

// modules runs the nested modules under tests, but for the cluster's.
func modules(ctx context.Context, out io.Writer) tally {
	var t tally
	mods, err := filepath.Glob("tests/*/go.mod")
	if err != nil {
		return broken(out, err)
	}
	for _, mod := range mods {
		if dir := filepath.Dir(mod); dir != filepath.Join("tests", "e2e") {
			t.add(goTest(ctx, out, dir, "-count=1", "-timeout", "10m", "./..."))
		}
	}
	return t
}

// packages lists the packages of the module but for tests/house.
func packages(ctx context.Context) ([]string, error) {
	out, err := exec.CommandContext(ctx, "go", "list", "./...").Output()
	if err != nil {
		return nil, fmt.Errorf("go list ./...: %w", err)
	}
	var pkgs []string
	for p := range strings.FieldsSeq(string(out)) {
		if !strings.HasSuffix(p, "/tests/house") {
			pkgs = append(pkgs, p)
		}
	}
	return pkgs, nil
}

// broken counts a step that could not even start as a failed test.
func broken(out io.Writer, err error) tally {
	_, _ = fmt.Fprintln(out, "FAIL", err)
	return tally{failed: 1}
}
