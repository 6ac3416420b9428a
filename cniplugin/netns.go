package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"net/netip"
	"os"
	"runtime"

	"golang.org/x/sys/unix"
)

// link is an interface as another namespace has it.
type link struct {
	mtu   int
	up    bool
	addrs []netip.Addr
}

// isNetns reports whether path is a network namespace that is there. On a boot, and when a runtime was killed, plain
// files are left in its place.
func isNetns(path string) bool {
	var st unix.Statfs_t
	if path == "" || unix.Statfs(path, &st) != nil {
		return false
	}
	return st.Type == unix.NSFS_MAGIC || st.Type == unix.PROC_SUPER_MAGIC
}

// isOwnNetns reports whether path is the namespace that we run in ourselves: the host's.
func isOwnNetns(path string) bool {
	var own, other unix.Stat_t
	return unix.Stat("/proc/thread-self/ns/net", &own) == nil && unix.Stat(path, &other) == nil && own.Dev == other.Dev && own.Ino == other.Ino
}

// lookIn reads an interface of a namespace; it is false when either is missing.
func lookIn(path, name string) (link, bool, error) {
	f, err := os.Open(path)
	if errors.Is(err, fs.ErrNotExist) {
		return link{}, false, nil
	}
	if err != nil {
		return link{}, false, fmt.Errorf("open namespace: %w", err)
	}
	defer func() { _ = f.Close() }() // only read
	type answer struct {
		link  link
		found bool
		err   error
	}
	done := make(chan answer)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, as it is in the wrong namespace
		var a answer
		if a.err = unix.Setns(int(f.Fd()), unix.CLONE_NEWNET); a.err == nil {
			a.link, a.found = look(name)
		}
		done <- a
	}()
	a := <-done
	if a.err != nil {
		return link{}, false, fmt.Errorf("enter namespace %s: %w", path, a.err)
	}
	return a.link, a.found, nil
}

// look reads an interface of the calling thread's namespace.
func look(name string) (link, bool) {
	i, err := net.InterfaceByName(name)
	if err != nil {
		return link{}, false
	}
	l := link{mtu: i.MTU, up: i.Flags&net.FlagUp != 0}
	addrs, _ := i.Addrs() // an interface that goes away has none
	for _, a := range addrs {
		if p, err := netip.ParsePrefix(a.String()); err == nil {
			l.addrs = append(l.addrs, p.Addr())
		}
	}
	return l, true
}

func linkIsUp(name string) bool {
	l, ok := look(name)
	return ok && l.up
}
