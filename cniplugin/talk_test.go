package main

import (
	"net"
	"os"
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

// within runs f inside a pod; sockets that it opens stay there.
func (w *world) within(p pod, f func() error) {
	w.Helper()
	ns, err := os.Open(p.netns)
	w.must(err)
	defer func() { _ = ns.Close() }()
	done := make(chan error)
	go func() {
		runtime.LockOSThread() // for good: the thread ends with the goroutine
		if err := unix.Setns(int(ns.Fd()), unix.CLONE_NEWNET); err != nil {
			done <- err
			return
		}
		done <- f()
	}()
	w.must(<-done)
}

// echo answers every datagram with a name.
func echo(server net.PacketConn, name string, got *atomic.Int32) {
	b := make([]byte, 100)
	for {
		_, from, err := server.ReadFrom(b)
		if err != nil {
			return // closed
		}
		got.Add(1)
		_, _ = server.WriteTo([]byte(name), from)
	}
}

func ask(c net.Conn, patience time.Duration) string {
	_, _ = c.Write([]byte("?")) // an answer of ICMP to the last one is reported here
	return hear(c, patience)
}

func hear(c net.Conn, patience time.Duration) string {
	b := make([]byte, 100)
	_ = c.SetReadDeadline(time.Now().Add(patience))
	n, _ := c.Read(b)
	return string(b[:n])
}
