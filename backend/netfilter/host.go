// Package netfilter speaks with the netfilter of one network namespace: it runs nft there, hears what others change, and
// lists and deletes tracked connections. What is to be in the kernel is decided elsewhere.
package netfilter

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

// Host is where to work. The zero value is the process's own namespace.
type Host struct {
	NetNS    string                       // path of a network namespace; empty means the process's own
	OnExec   func(argv []string)          // called before each program that is run
	LookPath func(string) (string, error) // finds programs; nil means exec.LookPath
}

// Inside calls f on a thread that is in the namespace: a child process inherits the namespace of the thread that forks it,
// and Go moves goroutines between threads at will.
func (h Host) Inside(f func() error) error {
	if h.NetNS == "" {
		return f()
	}
	done := make(chan error, 1)
	go func() { done <- h.locked(f) }()
	return <-done
}

// locked enters the namespace and comes back. A thread that cannot come back stays locked, so the runtime ends it with
// this goroutine and nothing else ever runs in the wrong namespace.
func (h Host) locked(f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return fmt.Errorf("open own network namespace: %w", err)
	}
	defer home.Close()
	there, err := os.Open(h.NetNS)
	if err != nil {
		return fmt.Errorf("open network namespace: %w", err)
	}
	defer there.Close()
	if err := unix.Setns(int(there.Fd()), unix.CLONE_NEWNET); err != nil {
		return fmt.Errorf("enter network namespace %s: %w", h.NetNS, err)
	}
	ferr := f()
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		return errors.Join(ferr, fmt.Errorf("leave network namespace %s: %w", h.NetNS, err))
	}
	runtime.UnlockOSThread()
	return ferr
}

// Find returns the path of a program, or ErrNoTool.
func (h Host) Find(name string) (string, error) {
	look := h.LookPath
	if look == nil {
		look = exec.LookPath
	}
	path, err := look(name)
	if err != nil {
		return "", fmt.Errorf("%w: %s", ErrNoTool, name)
	}
	return path, nil
}

// Note tells a test what is about to run.
func (h Host) Note(argv ...string) {
	if h.OnExec != nil {
		h.OnExec(argv)
	}
}

// Run runs a program with an input and returns what it prints; the error carries what it complains about.
func (h Host) Run(ctx context.Context, input string, argv ...string) (string, error) {
	path, err := h.Find(argv[0])
	if err != nil {
		return "", err
	}
	h.Note(argv...)
	var out, complaint bytes.Buffer
	cmd := exec.CommandContext(ctx, path, argv[1:]...)
	cmd.Stdin, cmd.Stdout, cmd.Stderr = strings.NewReader(input), &out, &complaint
	if err := h.Inside(cmd.Start); err != nil {
		return "", fmt.Errorf("start %s: %w", argv[0], err)
	}
	if err := cmd.Wait(); err != nil {
		return out.String(), fmt.Errorf("run %s: %w: %s", strings.Join(argv, " "), err, strings.Join(strings.Fields(complaint.String()), " "))
	}
	return out.String(), nil
}
