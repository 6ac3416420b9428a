package main

import (
	"context"
	"fmt"
	"io"
	"math/rand/v2"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"github.com/weft-cni/weft/tests/lane"
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
			return goTest(ctx, out, clusterDir(), "-count=1", "-p", "1", "-timeout", "60m", "./...")
		}},
		{"e2e-dual", "the real cluster with both families, in short", shortOnCluster(lane.Dual)},
		{"e2e-ipv6", "the real cluster with IPv6 alone, in short", shortOnCluster(lane.IPv6)},
		{"lanes", "everything in both families and in IPv6 alone, backends without a tunnel, Kubernetes' own specs", lanes},
		{"reliability", "the fault bench, every row", func(ctx context.Context, out io.Writer) tally {
			return faults(ctx, out, "long", "75m")
		}},
		{"vm", "a second kernel, in a virtual machine", machine(false)},
		{"vm-short", "a second kernel, in a virtual machine, in short", machine(true)},
		{"soak", "every fault ten times, and a long random story", soak},
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
	names, err := find("Test", func(file string) bool { return inNamespaces(file) || inMachine(file) })
	if err != nil {
		return broken(out, err)
	}
	pkgs, err := packages(ctx)
	if err != nil {
		return broken(out, err)
	}
	args := []string{"-count=1", "-race", "-vet=off", "-timeout", "10m", "-skip", names.pattern()}
	// By itself the race detector keeps each program for a second after its end; the cores have other things to do.
	p := place{dir: ".", env: []string{"GORACE=atexit_sleep_ms=50"}}
	return goTestIn(ctx, out, p, append(args, longestFirst(pkgs)...)...)
}

func netns(ctx context.Context, out io.Writer) tally { return netnsIn(ctx, out) }

// netnsIn runs the tests in namespaces with an environment.
func netnsIn(ctx context.Context, out io.Writer, env ...string) tally {
	names, err := find("Test", inNamespaces)
	if err != nil {
		return broken(out, err)
	}
	if len(names) == 0 {
		return tally{}
	}
	built, t := buildTests(ctx, out, place{dir: "."}, names.packages())
	defer built.remove()
	var jobs []func(io.Writer) tally
	for _, pkg := range longestFirst(names.packages()) {
		jobs = append(jobs, func(out io.Writer) tally {
			return built.run(ctx, out, call{pkg: pkg, env: env, args: []string{"timeout=20m", "run=" + names.pattern()}})
		})
	}
	t.add(beside(out, 2, jobs))
	return t
}

// faults plays the rows of both benches, that of namespaces beside that of the cluster, for most of both is waiting. Besides, it
// kills the CNI plugin at every step there is and holds policies to the contract's second. It prints the page that comes of it.
func faults(ctx context.Context, out io.Writer, form, limit string) tally {
	played := func(dir, run, pkg string) func(io.Writer) tally {
		return func(out io.Writer) tally {
			return goTestIn(ctx, out, place{dir: dir, env: []string{"WEFT_RELIABILITY=" + form}}, "-count=1", "-timeout", limit, "-run", run, pkg)
		}
	}
	const rows = "^TestFaults|^TestNetworkPolicyInTheWholeAgent"
	t := beside(out, 2, []func(io.Writer) tally{
		played(filepath.Join("tests", "reliability"), rows, "."), played(clusterDir(), rows, "."), played(".", "AtAnyStep|ManyCycles", "./cniplugin"),
	})
	page, err := os.ReadFile(filepath.Join("docs", "reliability.md"))
	if err != nil {
		t.add(broken(out, err))
	}
	_, _ = fmt.Fprintf(out, "\n%s", page)
	return t
}

const (
	soakSteps = 1000 // length of the random story of a soak
	soakWalks = 500  // changes of the backend of a simulated cluster, of each kind, in a soak
)

// soak plays every fault ten times, and tells real daemons a random story; its seed is printed, so that one command tells it
// again.
func soak(ctx context.Context, out io.Writer) tally {
	seed := os.Getenv("WEFT_MODEL_SEED")
	if seed == "" {
		seed = strconv.FormatUint(rand.Uint64()>>1, 10)
	}
	env := []string{"WEFT_MODEL_SEED=" + seed, "WEFT_MODEL_STEPS=" + strconv.Itoa(soakSteps)}
	_, _ = fmt.Fprintf(out, "the story again: %s go test -run 'RealDaemons/random' -timeout 0 ./tests/scenario\n", strings.Join(env, " "))
	t := goTestIn(ctx, out, place{dir: ".", env: env}, "-count=1", "-timeout", "3h", "-run", "RealDaemons/random", "./tests/scenario")
	t.add(goTestIn(ctx, out, place{dir: ".", env: []string{"WEFT_WALKS=" + strconv.Itoa(soakWalks)}}, "-count=1", "-timeout", "3h", "-run", "^TestNoPacketIsLost", "./backend/mesh"))
	t.add(faults(ctx, out, "soak", "24h"))
	t.add(goTestIn(ctx, out, place{dir: filepath.Join("tests", "e2e"), env: []string{"WEFT_RELIABILITY=soak"}}, "-count=1", "-timeout", "12h",
		"-run", "^(TestForbidden|TestNothingForbidden|TestANewborn|TestPodsBorn)", "."))
	return t
}

// fuzz runs the targets one by one, which is all that the go command can do.
func fuzz(ctx context.Context, out io.Writer, each time.Duration) tally {
	names, err := find("Fuzz", func(string) bool { return true })
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
