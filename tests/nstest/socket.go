package nstest

import (
	"errors"
	"io"
	"net"
	"net/netip"
	"os"
	"time"
)

// Listen opens a TCP listener in the namespace; it is closed when the test ends.
func (n *NS) Listen(at netip.AddrPort) net.Listener {
	n.t.Helper()
	var l net.Listener
	err := n.Do(func() (err error) {
		l, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		n.t.Fatalf("in %s: %v", n.Name, err)
	}
	n.t.Cleanup(func() { l.Close() })
	return l
}

// TCPEcho serves a TCP echo that first says who the client is, as address and port on a line of its own.
func (n *NS) TCPEcho(at netip.AddrPort) {
	n.t.Helper()
	l := n.Listen(at)
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				_, _ = io.WriteString(conn, conn.RemoteAddr().String()+"\n")
				_, _ = io.Copy(conn, conn)
			}()
		}
	}()
}

// UDPEcho serves a UDP echo that answers each datagram with the client's address, a blank and the datagram.
func (n *NS) UDPEcho(at netip.AddrPort) {
	n.t.Helper()
	var conn net.PacketConn
	err := n.Do(func() (err error) {
		conn, err = net.ListenPacket("udp", at.String())
		return err
	})
	if err != nil {
		n.t.Fatalf("in %s: %v", n.Name, err)
	}
	n.t.Cleanup(func() { conn.Close() })
	go func() {
		buf := make([]byte, 1<<16)
		for {
			size, from, err := conn.ReadFrom(buf)
			if isClosed(err) {
				return
			}
			if err == nil {
				_, _ = conn.WriteTo(append([]byte(from.String()+" "), buf[:size]...), from)
			}
		}
	}()
}

// Dial opens a connection from the namespace: network "tcp" or "udp". It is closed when the test ends.
func (n *NS) Dial(network string, to netip.AddrPort, timeout time.Duration) (net.Conn, error) {
	var conn net.Conn
	err := n.Do(func() (err error) {
		conn, err = net.DialTimeout(network, to.String(), timeout)
		return err
	})
	if err == nil {
		n.t.Cleanup(func() { conn.Close() })
	}
	return conn, err
}

// Seen asks the echo server at to which client address and port it sees, in the answer's own words: "10.0.0.1:4711".
func (n *NS) Seen(network string, to netip.AddrPort, timeout time.Duration) (netip.AddrPort, error) {
	conn, err := n.Dial(network, to, timeout)
	if err != nil {
		return netip.AddrPort{}, err
	}
	defer conn.Close()
	_ = conn.SetDeadline(time.Now().Add(timeout))
	if network == "udp" {
		if _, err := conn.Write([]byte("who")); err != nil {
			return netip.AddrPort{}, err
		}
	}
	buf := make([]byte, 256)
	size, err := conn.Read(buf)
	if err != nil {
		return netip.AddrPort{}, err
	}
	end := 0
	for end < size && buf[end] != ' ' && buf[end] != '\n' {
		end++
	}
	return netip.ParseAddrPort(string(buf[:end]))
}

// isClosed reports whether an error says that the file or socket was closed by us.
func isClosed(err error) bool {
	return errors.Is(err, os.ErrClosed) || errors.Is(err, net.ErrClosed)
}
