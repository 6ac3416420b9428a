package artifacts

import (
	"context"
	"fmt"
	"io"
	"os/exec"
	"strings"
	"time"
)

// Progress writes one line for each step that takes long, with the time it took.
type Progress struct {
	Out io.Writer
}

// Step runs do and reports it: a line when it starts, its time when it ends.
func (p Progress) Step(what string, do func() error) error {
	start := time.Now()
	fmt.Fprintf(p.Out, "%s %s ...\n", start.Format("15:04:05"), what)
	err := do()
	took := time.Since(start).Round(100 * time.Millisecond)
	if err != nil {
		fmt.Fprintf(p.Out, "%s %s: %v (after %s)\n", time.Now().Format("15:04:05"), what, err, took)
		return err
	}
	fmt.Fprintf(p.Out, "%s %s: done in %s\n", time.Now().Format("15:04:05"), what, took)
	return nil
}

// Command is a program to run, with what it needs to know.
type Command struct {
	Dir  string
	Env  []string // added to the environment
	Args []string // the program first
}

// Run runs the command and returns its standard output; a failure carries what it said.
func (c Command) Run(ctx context.Context) (string, error) {
	cmd := exec.CommandContext(ctx, c.Args[0], c.Args[1:]...)
	cmd.Dir = c.Dir
	if len(c.Env) > 0 {
		cmd.Env = append(cmd.Environ(), c.Env...)
	}
	var out, errOut strings.Builder
	cmd.Stdout, cmd.Stderr = &out, &errOut
	if err := cmd.Run(); err != nil {
		said := strings.TrimSpace(errOut.String())
		if said == "" {
			said = strings.TrimSpace(out.String())
		}
		return out.String(), fmt.Errorf("run %s: %w: %s", strings.Join(c.Args, " "), err, said)
	}
	return out.String(), nil
}
