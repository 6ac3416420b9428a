package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path"
	"path/filepath"
	"strings"
)

// binaries are test programs that were built beforehand. `go test -p 1` compiles, links and runs one package after the other,
// and one core idles all the time that it builds; built all at once, they use both. golangci-lint vets them, so nothing here does.
type binaries struct{ dir string }

// buildTests builds the test programs of the packages, whose folders must have different names. Where one does not build, that
// is a failed test, and the others are there.
func buildTests(ctx context.Context, out io.Writer, p place, pkgs []string) (binaries, tally) {
	dir, err := os.MkdirTemp("", "tests-")
	if err != nil {
		return binaries{}, broken(out, err)
	}
	cmd := exec.CommandContext(ctx, "go", append([]string{"test", "-vet=off", "-c", "-o", dir + "/"}, pkgs...)...)
	cmd.Dir, cmd.Env = p.dir, append(os.Environ(), p.env...)
	text, err := cmd.CombinedOutput()
	if err != nil {
		_, _ = fmt.Fprintf(out, "FAIL build the tests: %v\n%s", err, text)
		return binaries{dir}, tally{failed: 1}
	}
	return binaries{dir}, tally{}
}

func (b binaries) remove() { _ = os.RemoveAll(b.dir) }

// program is where the test program of a package lies.
func (b binaries) program(pkg string) string { return filepath.Join(b.dir, path.Base(pkg)+".test") }

// call is how the tests of one package are run.
type call struct {
	pkg    string
	env    []string
	before string   // stands before the program, as go test -exec has it
	args   []string // without "-test."
}

// run runs the tests of one package in its folder, as the go command does.
func (b binaries) run(ctx context.Context, out io.Writer, c call) tally {
	if _, err := os.Stat(b.program(c.pkg)); errors.Is(err, os.ErrNotExist) {
		return tally{} // the build has said why
	}
	line := []string{"tool", "test2json", "-t", "-p", strings.TrimPrefix(c.pkg, "./")}
	if c.before != "" {
		line = append(line, c.before)
	}
	line = append(line, b.program(c.pkg), "-test.v=test2json", "-test.paniconexit0")
	for _, arg := range c.args {
		line = append(line, "-test."+arg)
	}
	return events(ctx, out, place{dir: c.pkg, env: c.env}, line...)
}
