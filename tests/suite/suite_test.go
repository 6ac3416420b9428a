package main

import (
	"bytes"
	"fmt"
	"io"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/google/go-cmp/cmp"
)

// TestTheTallyCountsWhatGoTestSays feeds one stream with each kind of end: pass, fail, skip, a build that fails, a panic.
func TestTheTallyCountsWhatGoTestSays(t *testing.T) {
	const stream = `{"Action":"start","Package":"p/a"}
{"Action":"output","Package":"p/a","Test":"TestGood","Output":"noise\n"}
{"Action":"pass","Package":"p/a","Test":"TestGood","Elapsed":0.1}
{"Action":"output","Package":"p/a","Test":"TestBad","Output":"    a_test.go:3: wrong\n"}
{"Action":"fail","Package":"p/a","Test":"TestBad","Elapsed":0.5}
{"Action":"output","Package":"p/a","Test":"TestSkip","Output":"=== RUN   TestSkip\n"}
{"Action":"output","Package":"p/a","Test":"TestSkip","Output":"    a_test.go:9: needs root\n"}
{"Action":"skip","Package":"p/a","Test":"TestSkip"}
{"Action":"fail","Package":"p/a","Elapsed":0.7}
{"ImportPath":"p/b","Action":"build-output","Output":"b.go:1: syntax\n"}
{"Action":"fail","Package":"p/b","Elapsed":0}
{"Action":"output","Package":"p/c","Test":"TestHangs","Output":"panic: test timed out\n"}
{"Action":"fail","Package":"p/c","Elapsed":9}
{"Action":"skip","Package":"p/d","Elapsed":0}
not json
`
	const want = `FAIL p/a TestBad (0.50 s)
    a_test.go:3: wrong
SKIP p/a TestSkip: a_test.go:9: needs root
FAIL p/a (0.7 s)
b.go:1: syntax
FAIL p/b (0.0 s)
panic: test timed out
FAIL p/c (9.0 s)
not json
`
	var out bytes.Buffer
	r := reader{out: &out, said: map[string]string{}, failed: map[string]int{}}
	r.read(strings.NewReader(stream))
	if d := cmp.Diff(want, out.String()); d != "" {
		t.Errorf("output (-want +got):\n%s", d)
	}
	if d := cmp.Diff("1 passed, 3 failed, 1 skipped", r.sum.String()); d != "" {
		t.Errorf("tally (-want +got):\n%s", d)
	}
}

// TestSharesMergeTheReportsOfSeveralBinaries checks that a block counts once, and as run if any binary ran it.
func TestSharesMergeTheReportsOfSeveralBinaries(t *testing.T) {
	const profile = `mode: set
github.com/weft-cni/weft/subnet/a.go:1.1,2.2 3 0
github.com/weft-cni/weft/subnet/a.go:1.1,2.2 3 1
github.com/weft-cni/weft/subnet/a.go:3.1,4.2 1 0
github.com/weft-cni/weft/backend/kernel/b.go:1.1,2.2 2 0
`
	got, err := shares(profile)
	if err != nil {
		t.Fatal(err)
	}
	want := map[string]share{"subnet": {all: 4, ran: 3}, "backend/kernel": {all: 2}}
	if d := cmp.Diff(want, got, cmp.AllowUnexported(share{})); d != "" {
		t.Errorf("shares (-want +got):\n%s", d)
	}
	var out bytes.Buffer
	if errs := printShares(&out, got, 60); len(errs) != 1 || !strings.Contains(errs[0].Error(), "backend: 0.0 %") {
		t.Errorf("want one complaint, about backend, got %v", errs)
	}
}

// TestThePatternMatchesWholeNamesOnly keeps TestA from dragging TestAB along.
func TestThePatternMatchesWholeNamesOnly(t *testing.T) {
	f := founds{{"./b", "TestB"}, {"./a", "TestA"}, {"./b", "TestA"}}
	if d := cmp.Diff("^(TestA|TestB|no test has this name)$", f.pattern()); d != "" {
		t.Error(d)
	}
	if d := cmp.Diff([]string{"./a", "./b"}, f.packages()); d != "" {
		t.Error(d)
	}
}

func TestJobsRunBesideEachOtherAndAllCount(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var now, most atomic.Int32
		var jobs []func(io.Writer) tally
		for i := range 5 {
			jobs = append(jobs, func(out io.Writer) tally {
				most.Store(max(most.Load(), now.Add(1)))
				time.Sleep(time.Second)
				now.Add(-1)
				_, _ = fmt.Fprintln(out, "job")
				return tally{passed: 1, failed: i % 2}
			})
		}
		var out bytes.Buffer
		start := time.Now()
		sum := beside(&out, 2, jobs)
		if took := time.Since(start); took != 3*time.Second || most.Load() != 2 {
			t.Errorf("five jobs of a second took %v, at most %d at a time", took, most.Load())
		}
		if d := cmp.Diff("5 passed, 2 failed, 0 skipped", sum.String()); d != "" {
			t.Error(d)
		}
		if d := cmp.Diff(strings.Repeat("job\n", 5), out.String()); d != "" {
			t.Error(d)
		}
	})
}

func TestTheLongestPackagesComeFirstAndTheRestKeepsItsOrder(t *testing.T) {
	got := longestFirst([]string{"./backend/collect", "./backend/daemon", "./subnet/attach", "./tests/reliability"})
	if d := cmp.Diff([]string{"./tests/reliability", "./backend/daemon", "./backend/collect", "./subnet/attach"}, got); d != "" {
		t.Error(d)
	}
}

// TestAProgramIsBuiltOnceAndItsTestsCount builds and runs the tests of a small package, and tells of one that does not build.
func TestAProgramIsBuiltOnceAndItsTestsCount(t *testing.T) {
	t.Chdir("../..")
	var out bytes.Buffer
	built, sum := buildTests(t.Context(), &out, place{dir: "."}, []string{"./tests/lane", "./tests/nowhere"})
	defer built.remove()
	if sum.failed != 1 || !strings.Contains(out.String(), "tests/nowhere") {
		t.Errorf("%s for a package that is not there: %s", sum, out.String())
	}
	built, sum = buildTests(t.Context(), &out, place{dir: "."}, []string{"./tests/lane"})
	defer built.remove()
	sum.add(built.run(t.Context(), &out, call{pkg: "./tests/lane"}))
	if sum.passed == 0 || sum.failed > 0 || !strings.Contains(out.String(), "ok   tests/lane") {
		t.Errorf("%s: %s", sum, out.String())
	}
}
