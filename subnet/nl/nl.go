// Package nl speaks netlink with the kernel: the few messages that the CNI plugin needs, and the agent where a program cannot
// stand in, written out. A library would double the size of a program that is started for every pod, and running nft or ip would
// take longer than the rest of it.
//
// https://docs.kernel.org/userspace-api/netlink/intro.html
package nl

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// Conn is a netlink socket of the network namespace of the thread that opened it.
type Conn struct {
	fd  int
	seq uint32
	buf []byte // for answers; the kernel packs a dump into no more at once
}

const answerSize = 16 << 10

// answerTime bounds the wait for the kernel, which answers before a send returns; it is there so that nothing can hang.
const answerTime = 5

// Dial opens a socket of a netlink protocol, NETLINK_ROUTE or NETLINK_NETFILTER.
func Dial(protocol int) (*Conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, protocol)
	if err != nil {
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	c := &Conn{fd: fd}
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTime})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		c.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return c, nil
}

// Strict has the kernel look at what a dump asks for, and leave out the rest (Linux 4.20).
func (c *Conn) Strict() error {
	if err := unix.SetsockoptInt(c.fd, unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		return fmt.Errorf("set netlink to strict: %w", err)
	}
	return nil
}

// Close ends the conversation.
func (c *Conn) Close() { _ = unix.Close(c.fd) } // nothing is buffered in it

// Request is one message to the kernel.
type Request struct {
	Kind  uint16
	Flags uint16 // beyond NLM_F_REQUEST
	Body  []byte // the header of the protocol and the attributes
}

// Frame gives a message its header, and the number under which it is answered.
func (c *Conn) Frame(r Request) ([]byte, uint32) {
	c.seq++
	out := make([]byte, unix.NLMSG_HDRLEN, unix.NLMSG_HDRLEN+len(r.Body))
	binary.NativeEndian.PutUint32(out, uint32(unix.NLMSG_HDRLEN+len(r.Body)))
	binary.NativeEndian.PutUint16(out[4:], r.Kind)
	binary.NativeEndian.PutUint16(out[6:], unix.NLM_F_REQUEST|r.Flags)
	binary.NativeEndian.PutUint32(out[8:], c.seq)
	return append(out, r.Body...), c.seq
}

// Do sends a message that changes something and waits until it is done. An error of the kernel is a syscall.Errno.
func (c *Conn) Do(r Request) error {
	r.Flags |= unix.NLM_F_ACK
	out, seq := c.Frame(r)
	return c.Exchange(out, seq, seq, nil)
}

// Dump asks for all that a request describes, and gives the body of each answer. The bytes are good until the next one.
func (c *Conn) Dump(r Request, each func(body []byte)) error {
	r.Flags |= unix.NLM_F_DUMP
	out, seq := c.Frame(r)
	return c.Exchange(out, seq, seq, each)
}

// Exchange sends messages and reads until the last is answered, or the first, without which the others are not looked at,
// is refused. The error is that of the first message that failed. What is answered beside that goes to each, if there is one.
func (c *Conn) Exchange(out []byte, first, last uint32, each func(body []byte)) (failed error) {
	if err := unix.Sendto(c.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to the kernel: %w", err)
	}
	if c.buf == nil {
		c.buf = make([]byte, answerSize)
	}
	for {
		n, _, err := unix.Recvfrom(c.fd, c.buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return errors.Join(failed, fmt.Errorf("read from the kernel: %w", err))
		}
		messages, err := syscall.ParseNetlinkMessage(c.buf[:n])
		if err != nil {
			return fmt.Errorf("read from the kernel: %w", err)
		}
		for _, m := range messages {
			end := m.Header.Type == unix.NLMSG_ERROR || m.Header.Type == unix.NLMSG_DONE
			switch {
			case !end && each != nil && m.Header.Seq == last:
				each(m.Data)
			case end && len(m.Data) >= 4:
				if code := int32(binary.NativeEndian.Uint32(m.Data)); code < 0 && failed == nil {
					failed = syscall.Errno(-code)
				}
			}
			if end && (m.Header.Seq == last || m.Header.Seq == first) {
				return failed
			}
		}
	}
}
