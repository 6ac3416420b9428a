package traffic

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"strings"

	"golang.org/x/sys/unix"
)

// ErrNoTool means that a program we need is not installed. Retrying helps only once somebody installs it.
var ErrNoTool = errors.New("program not found")

// host runs programs in one network namespace.
type host struct {
	netns    string // path; empty means the one that the process runs in
	onExec   func(argv []string)
	lookPath func(string) (string, error)
}

// inside calls f on a thread that is in the namespace: a child process inherits the namespace of the thread that forks
// it, and Go moves goroutines between threads at will.
func (h host) inside(f func() error) error {
	if h.netns == "" {
		return f()
	}
	done := make(chan error, 1)
	go func() { done <- h.locked(f) }()
	return <-done
}

// locked enters the namespace and comes back. A thread that cannot come back stays locked, so the runtime ends it with
// this goroutine and nothing else ever runs in the wrong namespace.
func (h host) locked(f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer home.Close()
	there, err := os.Open(h.netns)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", h.netns, err)
	}
	ferr := f()
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		return errors.Join(ferr, fmt.Errorf("leave network namespace %s: %w", h.netns, err))
	}
	runtime.UnlockOSThread()
	return ferr
}

// find returns the path of a program, or ErrNoTool.
func (h host) find(name string) (string, error) {
	look := h.lookPath
	if look == nil {
		look = exec.LookPath
	}
	path, err := look(name)
	if err != nil {
		return "", fmt.Errorf("%w: %s", ErrNoTool, name)
	}
	return path, nil
}

// note tells a test what is about to run.
func (h host) note(argv ...string) {
	if h.onExec != nil {
		h.onExec(argv)
	}
}

// run runs a program with an input and returns what it prints; the error carries what it complains about.
func (h host) run(ctx context.Context, input string, argv ...string) (string, error) {
	path, err := h.find(argv[0])
	if err != nil {
		return "", err
	}
	h.note(argv...)
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, path, argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaint
	if err := h.inside(cmd.Start); err != nil {
		return "", fmt.Errorf("start %s: %w", argv[0], err)
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("run %s: %w: %s", strings.Join(argv, " "), err, oneLine(complaint.String()))
	}
	return out.String(), nil
}

// oneLine folds a program's complaint so that it fits into an error.
func oneLine(s string) string { return strings.Join(strings.Fields(s), " ") }
