package cluster

import (
	"bytes"
	"context"
	"errors"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"
)

// log is a writer that a test reads while another goroutine writes.
type log struct {
	mu   sync.Mutex // guards text
	text bytes.Buffer
}

func (l *log) Write(p []byte) (int, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.Write(p)
}

func (l *log) String() string {
	l.mu.Lock()
	defer l.mu.Unlock()
	return l.text.String()
}

// inEmptyCache prepares a cluster whose cache holds nothing.
func inEmptyCache(t *testing.T, name string) *Cluster {
	t.Helper()
	cfg := Default()
	cfg.Name = name
	c, err := prepare(cfg)
	if err != nil {
		t.Fatal(err)
	}
	return c
}

// holdLock has another process hold the lock.
func holdLock(t *testing.T, c *Cluster) *exec.Cmd {
	t.Helper()
	lock := filepath.Join(c.cache.Dir, "e2e.lock")
	other := exec.CommandContext(t.Context(), "flock", "--no-fork", "--exclusive", lock, "sleep", "600")
	if err := other.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = errors.Join(other.Process.Kill(), other.Wait()) }) // it ends by the signal, once
	h := newHolder(c.Config)
	h.PID, h.Cluster, h.Program = other.Process.Pid, "other", "e2e.test"
	if err := writeHolder(lock, h); err != nil {
		t.Fatal(err)
	}
	err := Eventually(t.Context(), 10*time.Second, "the other process has the lock", func() error {
		if exec.Command("flock", "--nonblock", lock, "true").Run() == nil {
			return errors.New("the lock is free")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return other
}

func TestTheLockIsWaitedForAndTheHolderIsNamedOnce(t *testing.T) {
	t.Setenv("WEFT_CACHE", t.TempDir())
	c := inEmptyCache(t, "mine")
	var said log
	c.Config.Log = &said
	other := holdLock(t, c)
	got := make(chan error, 1)
	go func() { got <- c.acquire(t.Context()) }()
	err := Eventually(t.Context(), 10*time.Second, "the holder is named", func() error {
		if !strings.Contains(said.String(), "waiting for cluster other of process ") {
			return errors.New("nothing is said")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	if err := other.Process.Kill(); err != nil { // as abruptly as a process can end
		t.Fatal(err)
	}
	select {
	case err := <-got:
		if err != nil {
			t.Fatal(err)
		}
	case <-time.After(10 * time.Second):
		t.Fatal("the lock of a killed process is still held")
	}
	if n := strings.Count(said.String(), "\n"); n != 1 {
		t.Errorf("%d lines instead of one:\n%s", n, said.String())
	}
	if err := inEmptyCache(t, "second").acquire(t.Context()); err != nil {
		t.Errorf("the process that has the lock does not get it for its second cluster: %v", err)
	}
}

func TestWaitingForTheLockEndsWithItsContext(t *testing.T) {
	t.Setenv("WEFT_CACHE", t.TempDir())
	c := inEmptyCache(t, "mine")
	holdLock(t, c)
	ctx, cancel := context.WithTimeout(t.Context(), 200*time.Millisecond)
	defer cancel()
	if err := c.acquire(ctx); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("got %v", err)
	}
}

// stand makes what a cluster is to makeRoom: a folder with an owner, and a process 1 of a node.
func stand(t *testing.T, name string, owner holder) *Cluster {
	t.Helper()
	c := inEmptyCache(t, name)
	spec := filepath.Join(c.dir, "nodes", "node-1", "spec.json")
	script := t.TempDir()
	for file, text := range map[string]string{spec: "{}", filepath.Join(script, "init"): "read forever\n"} {
		if err := writeFile(file, text); err != nil {
			t.Fatal(err)
		}
	}
	if err := writeHolder(c.ownerFile(), owner); err != nil {
		t.Fatal(err)
	}
	node := exec.CommandContext(t.Context(), "sh", "init", spec)
	node.Dir = script
	if _, err := node.StdinPipe(); err != nil {
		t.Fatal(err)
	}
	if err := node.Start(); err != nil {
		t.Fatal(err)
	}
	ended := make(chan error, 1)
	go func() { ended <- node.Wait() }()                                // no zombie, which would have no command line but for a moment
	t.Cleanup(func() { _ = errors.Join(node.Process.Kill(), <-ended) }) // it may be dead already
	err := Eventually(t.Context(), 10*time.Second, "the process 1 is seen", func() error {
		if !c.running() {
			return errors.New("it is not")
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	return c
}

func TestOnlyAKeptClusterThatRunsStandsInTheWayOfAnother(t *testing.T) {
	for _, test := range []struct {
		name  string
		owner holder // of the cluster that is there
		mine  string // the name of the one that comes
		stays bool
		err   error
	}{
		{"another's that was kept", holder{PID: 1, Program: "cluster", Cluster: "there", Kept: true}, "mine", true, ErrStands},
		{"one of the same name that another command keeps", holder{PID: 1, Program: "cluster", Cluster: "there", Kept: true}, "there", true, ErrStands},
		{"one of the same name that the same command kept", holder{PID: 1, Program: filepath.Base(os.Args[0]), Cluster: "there", Kept: true}, "there", false, nil},
		{"what a killed run left", holder{PID: 1, Program: "e2e.test", Cluster: "there"}, "mine", false, nil},
		{"a second one of this process", holder{PID: os.Getpid(), Program: "e2e.test", Cluster: "there"}, "mine", true, nil},
	} {
		t.Run(test.name, func(t *testing.T) {
			t.Setenv("WEFT_CACHE", t.TempDir())
			there := stand(t, "there", test.owner)
			if err := inEmptyCache(t, test.mine).makeRoom(t.Context()); !errors.Is(err, test.err) {
				t.Errorf("got %v, want %v", err, test.err)
			}
			_, err := os.Stat(there.dir)
			if stays := err == nil && there.running(); stays != test.stays {
				t.Errorf("it stays: %t, want %t", stays, test.stays)
			}
		})
	}
}
