package main

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"runtime"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
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

// inNetns runs f on a thread that is inside a namespace. Without the namespace the error is fs.ErrNotExist.
func inNetns(path string, f func() error) error {
	ns, err := os.Open(path)
	if err != nil {
		return fmt.Errorf("open namespace: %w", err)
	}
	defer func() { _ = ns.Close() }() // only read
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine, as it is in the wrong namespace
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- fmt.Errorf("enter namespace %s: %w", path, err)
			return
		}
		done <- f()
	}()
	return <-done
}

// lookIn reads an interface of a namespace; it is false when either is missing.
func lookIn(path, name string) (l link, found bool, err error) {
	err = inNetns(path, func() error {
		l, found = look(name)
		return nil
	})
	if errors.Is(err, fs.ErrNotExist) {
		return link{}, false, nil
	}
	return l, found, err
}

// How long a pod waits until it can send. The kernel's worker needs a processor and the lock of all links; where many pods
// begin at once, those who wait must leave it both. So the steps grow.
const (
	settleTime  = 20 * time.Second
	settleFirst = 500 * time.Microsecond
	settleMost  = 30 * time.Millisecond
)

// settle waits until a pod can send from its IPv6 addresses.
func (p plugin) settle(netns, ifName string) error {
	return inNetns(netns, func() error {
		c, err := openRtnl()
		if err != nil {
			return err
		}
		defer c.Close()
		dev, err := openDevice(ifName)
		if err != nil {
			return err
		}
		defer dev.close()
		step := settleFirst
		for end := time.Now().Add(settleTime); ; time.Sleep(step) {
			step = min(2*step, settleMost)
			have, err := c.addrs(dev.index, subnet.IPv6)
			i := slices.IndexFunc(have, address.unsettled)
			switch {
			case err != nil || i < 0:
				return err
			case have[i].flags&unix.IFA_F_DADFAILED != 0:
				return fmt.Errorf("another station has the address %s of %s", have[i].prefix, ifName)
			case p.ctx.Err() != nil || time.Now().After(end):
				return fmt.Errorf("the address %s of %s cannot be used yet, after %v", have[i].prefix, ifName, settleTime)
			}
		}
	})
}

// look reads an interface of the calling thread's namespace. One that goes away meanwhile is not there.
func look(name string) (l link, found bool) {
	dev, err := openDevice(name)
	if err != nil {
		return link{}, false
	}
	defer dev.close()
	mtu, err := dev.ask(unix.SIOCGIFMTU)
	if err != nil {
		return link{}, false
	}
	c, err := openRtnl()
	if err != nil {
		return link{}, false
	}
	defer c.Close()
	l = link{mtu: int(mtu.Uint32()), up: dev.up}
	for _, f := range subnet.Families() {
		have, err := c.addrs(dev.index, f)
		if err != nil {
			return link{}, false
		}
		for _, a := range have {
			l.addrs = append(l.addrs, a.prefix.Addr())
		}
	}
	return l, true
}

func linkIsUp(name string) bool {
	l, ok := look(name)
	return ok && l.up
}
