// Package nstest gives tests network namespaces of their own: small hosts with links, addresses, traffic and
// captures, wired into nodes and fabrics and gone when the test ends.
//
// Nothing here touches the network namespace that the test runs in. A test that needs root skips without it, which
// New does by itself. Waiting is always for a condition (Eventually), never for a guessed time.
package nstest

import (
	"crypto/rand"
	"encoding/hex"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strconv"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// dir is where iproute2 looks for named namespaces, so that `ip -n NAME` works on ours too.
const dir = "/run/netns"

// NS is one network namespace: one host of the test. It lives until the test ends, held by an open file and a name.
type NS struct {
	Name string // as `ip netns` knows it
	t    testing.TB
	file *os.File
}

// New makes an empty namespace with its loopback up. It skips the test when it does not run as root.
func New(t testing.TB) *NS {
	t.Helper()
	NeedRoot(t)
	reap()
	n := &NS{Name: uniqueName(), t: t}
	if err := n.create(); err != nil {
		t.Fatalf("make a network namespace: %v", err)
	}
	t.Cleanup(n.remove)
	n.Run("ip", "link", "set", "lo", "up")
	n.skipDAD()
	return n
}

// skipDAD lets IPv6 addresses be used at once: duplicate address detection takes a second or two for each device, and
// finds nothing in namespaces that the test itself numbers.
func (n *NS) skipDAD() {
	_ = n.Do(func() error { // a kernel without IPv6 has no such file
		return os.WriteFile("/proc/sys/net/ipv6/conf/default/accept_dad", []byte("0"), 0o644)
	})
}

// NeedRoot skips the test when it does not run as root.
func NeedRoot(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Skip("needs root to make network namespaces")
	}
}

// Path is the file that names the namespace.
func (n *NS) Path() string { return filepath.Join(dir, n.Name) }

// FD is an open file descriptor of the namespace. It stays owned by n.
func (n *NS) FD() int { return int(n.file.Fd()) }

// Do runs f on a thread that is inside the namespace. Sockets that f opens stay in the namespace; goroutines that f
// starts do not run in it.
func (n *NS) Do(f func() error) error {
	return away(func() error {
		if err := unix.Setns(n.FD(), unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("enter namespace %s: %w", n.Name, err)
		}
		return f()
	})
}

// away runs f, which changes the network namespace of its thread, and brings the thread back afterwards.
func away(f func() error) error {
	done := make(chan error, 1)
	go func() { done <- awayLocked(f) }()
	return <-done
}

// awayLocked: only a thread that cannot come back stays locked, so that the runtime ends it with the goroutine instead of using it
// for something else. No other may end: with it would end the programs it has started, where they are to end with their parent.
func awayLocked(f func() error) error {
	runtime.LockOSThread()
	home, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		runtime.UnlockOSThread() // it has not been anywhere
		return fmt.Errorf("open the thread's own namespace: %w", err)
	}
	defer home.Close()
	ferr := f()
	if err := unix.Setns(int(home.Fd()), unix.CLONE_NEWNET); err != nil {
		return errors.Join(ferr, fmt.Errorf("come back from another namespace: %w", err))
	}
	runtime.UnlockOSThread()
	return ferr
}

// create makes the namespace, its name and the file that holds it.
func (n *NS) create() error {
	return away(func() error {
		if err := os.MkdirAll(dir, 0o755); err != nil {
			return err
		}
		if err := os.WriteFile(n.Path(), nil, 0o400); err != nil {
			return err
		}
		if err := unix.Unshare(unix.CLONE_NEWNET); err != nil {
			return fmt.Errorf("unshare: %w", err)
		}
		if err := unix.Mount("/proc/thread-self/ns/net", n.Path(), "", unix.MS_BIND, ""); err != nil {
			return fmt.Errorf("bind mount %s: %w", n.Path(), err)
		}
		file, err := os.Open(n.Path())
		n.file = file
		return err
	})
}

// remove forgets the namespace; the kernel ends it when its last process is gone.
func (n *NS) remove() {
	if n.file != nil {
		n.file.Close()
	}
	unlinkName(n.Path())
}

func unlinkName(path string) {
	_ = unix.Unmount(path, unix.MNT_DETACH) // a name without a mount is removed all the same
	_ = os.Remove(path)
}

// uniqueName carries the process id, so that reap knows whose names are left over.
func uniqueName() string {
	var b [4]byte
	_, _ = rand.Read(b[:]) // crypto/rand never fails on Linux
	return fmt.Sprintf("weft-%d-%s", os.Getpid(), hex.EncodeToString(b[:]))
}

// reap removes the names that test processes left behind when they were killed.
func reap() {
	paths, _ := filepath.Glob(filepath.Join(dir, "weft-*-*"))
	for _, path := range paths {
		pid, err := strconv.Atoi(strings.Split(filepath.Base(path), "-")[1])
		if err != nil || unix.Kill(pid, 0) != unix.ESRCH {
			continue
		}
		unlinkName(path)
	}
}
