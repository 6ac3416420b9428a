package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
)

// tally counts tests, subtests included.
type tally struct{ passed, failed, skipped int }

func (t *tally) add(o tally) {
	t.passed += o.passed
	t.failed += o.failed
	t.skipped += o.skipped
}

// String is the closing line.
func (t tally) String() string {
	return fmt.Sprintf("%d passed, %d failed, %d skipped", t.passed, t.failed, t.skipped)
}

// event is one line of `go test -json`.
type event struct {
	Action     string
	Package    string
	ImportPath string // of a build that fails
	Test       string
	Elapsed    float64
	Output     string
}

// goTest runs `go test -json` in a folder and returns what it counted. A package that fails outside its tests, because it does
// not build, panics or exits, counts as one failed test.
func goTest(ctx context.Context, out io.Writer, dir string, args ...string) tally {
	return goTestIn(ctx, out, place{dir: dir}, args...)
}

// place is where a command runs: a folder, and what is added to the environment.
type place struct {
	dir string
	env []string
}

// goTestIn is goTest with an environment.
func goTestIn(ctx context.Context, out io.Writer, p place, args ...string) tally {
	return events(ctx, out, p, append([]string{"test", "-json"}, args...)...)
}

// events runs a go command that tells what tests do, as `go test -json` does.
func events(ctx context.Context, out io.Writer, p place, args ...string) tally {
	cmd := exec.CommandContext(ctx, "go", args...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	pipe, err := cmd.StdoutPipe()
	if err != nil {
		return broken(out, err)
	}
	var stderr strings.Builder
	cmd.Stderr = &stderr
	if err := cmd.Start(); err != nil {
		return broken(out, err)
	}
	r := reader{out: out, said: map[string]string{}, failed: map[string]int{}}
	r.read(pipe)
	if err := cmd.Wait(); err != nil && r.sum.failed == 0 {
		_, _ = fmt.Fprintf(out, "FAIL go %s: %v\n%s", args[0], err, stderr.String())
		r.sum.failed = 1
	}
	return r.sum
}

// reader follows the events of one `go test`.
type reader struct {
	out    io.Writer
	said   map[string]string // output so far, by test
	failed map[string]int    // failed tests, by package
	sum    tally
}

func (r *reader) read(in io.Reader) {
	lines := bufio.NewReader(in)
	for {
		line, err := lines.ReadString('\n')
		var e event
		if json.Unmarshal([]byte(line), &e) == nil {
			r.take(e)
		} else if strings.TrimSpace(line) != "" {
			_, _ = fmt.Fprint(r.out, line)
		}
		if err != nil {
			return
		}
	}
}

func (r *reader) take(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "output":
		r.said[key] += e.Output
	case "build-output":
		_, _ = fmt.Fprint(r.out, e.Output)
	case "pass", "fail", "skip":
		if e.Test == "" {
			r.endPackage(e)
			return
		}
		r.endTest(e)
	}
}

func (r *reader) endTest(e event) {
	key := e.Package + " " + e.Test
	switch e.Action {
	case "pass":
		r.sum.passed++
	case "skip":
		r.sum.skipped++
		_, _ = fmt.Fprintf(r.out, "SKIP %s %s: %s\n", short(e.Package), e.Test, reason(r.said[key]))
	case "fail":
		r.sum.failed++
		r.failed[e.Package]++
		_, _ = fmt.Fprintf(r.out, "FAIL %s %s (%.2f s)\n%s", short(e.Package), e.Test, e.Elapsed, r.said[key])
	}
	delete(r.said, key)
}

func (r *reader) endPackage(e event) {
	if e.Action == "fail" && r.failed[e.Package] == 0 {
		r.sum.failed++
		for key, text := range r.said { // tests that never ended: the panic or the time-out is in one of them
			if strings.HasPrefix(key, e.Package+" ") {
				_, _ = fmt.Fprint(r.out, text)
			}
		}
	}
	for key := range r.said {
		if strings.HasPrefix(key, e.Package+" ") {
			delete(r.said, key)
		}
	}
	if e.Action != "skip" { // a package without tests
		_, _ = fmt.Fprintf(r.out, "%-4s %s (%.1f s)\n", map[string]string{"pass": "ok", "fail": "FAIL"}[e.Action], short(e.Package), e.Elapsed)
	}
}

// reason is the line in which a skipped test says why.
func reason(said string) string {
	for line := range strings.SplitSeq(said, "\n") {
		if text := strings.TrimSpace(line); text != "" && !strings.HasPrefix(text, "=== ") && !strings.HasPrefix(text, "--- ") {
			return text
		}
	}
	return "no reason given"
}

func short(pkg string) string { return strings.TrimPrefix(pkg, "github.com/weft-cni/weft/") }
