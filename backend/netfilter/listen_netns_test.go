package netfilter

import (
	"context"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/tests/nstest"
)

func TestChangesThatWereLostAreToldOf(t *testing.T) {
	ns := nstest.New(t)
	file, err := Host{NetNS: ns.Path()}.open(listenGroup)
	if err != nil {
		t.Fatal(err)
	}
	raw, err := file.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	if err := raw.Control(func(fd uintptr) { err = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, 1) }); err != nil {
		t.Fatal(err)
	}
	for range 20 { // nobody reads
		ns.SetNFT("add table ip other; add chain ip other c; add rule ip other c drop; add rule ip other c drop\n")
	}
	var lost atomic.Int32
	done := make(chan error, 1)
	go func() {
		done <- hear(file, func(c Change) {
			if c.Lost {
				lost.Add(1)
			}
		})
	}()
	nstest.Eventually(t, 5*time.Second, func() error {
		if lost.Load() == 0 {
			return context.DeadlineExceeded
		}
		return nil
	})
	file.Close()
	if err := <-done; err == nil {
		t.Error("a closed socket is no reason to end")
	}
}

func TestTablesAreListedWithTheirFamilies(t *testing.T) {
	ns := nstest.New(t)
	h := Host{NetNS: ns.Path()}
	if got, err := h.Tables(); err != nil || len(got) > 0 {
		t.Errorf("in a new namespace: %v, %v", got, err)
	}
	ns.SetNFT("add table ip a; add table inet a; add table bridge b")
	if got, err := h.Tables(); err != nil || len(got) != 3 || !got["ip a"] || !got["inet a"] || !got["bridge b"] {
		t.Errorf("%v, %v", got, err)
	}
}
