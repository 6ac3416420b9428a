package traffic

import (
	"context"
	"os"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/tests/nstest"
)

func TestEventsThatWereLostPokeAllTheSame(t *testing.T) {
	ns := nstest.New(t)
	var file *os.File
	if err := ns.Do(func() (err error) {
		file, err = openNetfilter(groupNFTables)
		return err
	}); err != nil {
		t.Fatal(err)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) }); err != nil {
		t.Fatal(err)
	}
	for range 20 { // nobody reads, and none of it concerns us: only the loss does
		ns.SetNFT("add table ip other; add chain ip other c; add rule ip other c drop; add rule ip other c drop\n")
	}
	var pokes atomic.Int32
	done := make(chan error, 1)
	go func() { done <- hear(file, func() { pokes.Add(1) }) }()
	nstest.Eventually(t, 5*time.Second, func() error {
		if pokes.Load() == 0 {
			return context.DeadlineExceeded
		}
		return nil
	})
	file.Close()
	<-done
}

func TestWatchEndsWithItsContextAndStartsWithAPoke(t *testing.T) {
	ns := nstest.New(t)
	ctx, cancel := context.WithCancel(context.Background())
	pokes := manager(ns).Watch(ctx)
	<-pokes // what happened before is not known
	cancel()
	for range pokes { // ends when the channel is closed
	}
}

func TestWatchGoesOnWhenTheNamespaceComesLater(t *testing.T) {
	ctx, cancel := context.WithCancel(context.Background())
	defer cancel()
	ns := nstest.New(t)
	path := t.TempDir() + "/later"
	pokes := New(Options{NetNS: path}).Watch(ctx)
	if err := os.Symlink(ns.Path(), path); err != nil {
		t.Fatal(err)
	}
	select {
	case <-pokes:
	case <-time.After(10 * time.Second):
		t.Error("no poke")
	}
}
