// Package sctp gives tests SCTP connections of the kernel's own, in one-to-one style (RFC 6458, section 4), which Go's net
// package lacks. A kernel without SCTP makes the test skip.
package sctp

import (
	"errors"
	"fmt"
	"net/netip"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Need skips the test on a kernel without SCTP.
func Need(t testing.TB) {
	t.Helper()
	fd, err := open(netip.IPv4Unspecified())
	if err != nil {
		t.Skipf("this kernel has no SCTP; make test-vm runs it on one that has (%v)", err)
	}
	_ = unix.Close(fd)
}

// Listener takes connections, tells each client its address as the server sees it, and closes the connection.
type Listener struct {
	fd     int
	closed chan struct{}
	ended  chan struct{}
}

// Listen opens a listener at an address, on the calling thread's network namespace. It takes connections until Close.
func Listen(at netip.AddrPort) (*Listener, error) {
	fd, err := open(at.Addr())
	if err != nil {
		return nil, err
	}
	look := unix.NsecToTimeval((50 * time.Millisecond).Nanoseconds())
	if err := errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &look), unix.Bind(fd, sockaddr(at)), unix.Listen(fd, 16),
	); err != nil {
		return nil, errors.Join(fmt.Errorf("listen at %s: %w", at, err), unix.Close(fd))
	}
	l := &Listener{fd: fd, closed: make(chan struct{}), ended: make(chan struct{})}
	go l.accept()
	return l, nil
}

// accept serves one client after the other until Close. Nothing wakes an accept of SCTP, so it looks up now and then.
func (l *Listener) accept() {
	defer close(l.ended)
	for {
		select {
		case <-l.closed:
			return
		default:
		}
		fd, from, err := unix.Accept(l.fd)
		if err != nil {
			continue // the time was up, or the client has gone
		}
		_, _ = unix.Write(fd, []byte(addrPort(from).String())) // who does not hear it reports that
		_ = unix.Close(fd)
	}
}

// Close ends the listener.
func (l *Listener) Close() {
	close(l.closed)
	<-l.ended
	_ = unix.Close(l.fd)
}

// Seen connects from an address, on the calling thread's network namespace, and returns the client's address as a Listener
// sees it. Bound to one address, the connection has one path, which packets cannot get around a rule on.
func Seen(from netip.Addr, to netip.AddrPort, timeout time.Duration) (netip.AddrPort, error) {
	fd, err := open(from)
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer func() { _ = unix.Close(fd) }()
	limit := unix.NsecToTimeval(timeout.Nanoseconds())
	if err := errors.Join(
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_SNDTIMEO, &limit),
		unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &limit),
		unix.Bind(fd, sockaddr(netip.AddrPortFrom(from, 0))),
	); err != nil {
		return netip.AddrPort{}, fmt.Errorf("prepare an SCTP socket at %s: %w", from, err)
	}
	if err := unix.Connect(fd, sockaddr(to)); err != nil {
		return netip.AddrPort{}, fmt.Errorf("connect to %s: %w", to, err)
	}
	buf := make([]byte, 128)
	n, err := unix.Read(fd, buf)
	if err != nil {
		return netip.AddrPort{}, fmt.Errorf("read from %s: %w", to, err)
	}
	return netip.ParseAddrPort(string(buf[:n]))
}

func open(family netip.Addr) (int, error) {
	domain := unix.AF_INET6
	if family.Is4() {
		domain = unix.AF_INET
	}
	fd, err := unix.Socket(domain, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, unix.IPPROTO_SCTP)
	if err != nil {
		return 0, fmt.Errorf("open an SCTP socket: %w", err)
	}
	return fd, nil
}

func sockaddr(a netip.AddrPort) unix.Sockaddr {
	if a.Addr().Is4() {
		return &unix.SockaddrInet4{Port: int(a.Port()), Addr: a.Addr().As4()}
	}
	return &unix.SockaddrInet6{Port: int(a.Port()), Addr: a.Addr().As16()}
}

func addrPort(s unix.Sockaddr) netip.AddrPort {
	switch s := s.(type) {
	case *unix.SockaddrInet4:
		return netip.AddrPortFrom(netip.AddrFrom4(s.Addr), uint16(s.Port))
	case *unix.SockaddrInet6:
		return netip.AddrPortFrom(netip.AddrFrom16(s.Addr), uint16(s.Port))
	}
	return netip.AddrPort{}
}
