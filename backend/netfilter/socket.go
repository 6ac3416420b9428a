package netfilter

import (
	"encoding/binary"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

const (
	nfgenmsgLen   = 4
	receiveBuffer = 8 << 20 // a full sync of kube-proxy is some thousand messages at once
)

// open opens a netfilter socket in the host's namespace. Groups 0 is for questions.
func (h Host) open(groups uint32) (*os.File, error) {
	var file *os.File
	err := h.Inside(func() error {
		fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
		if err != nil {
			return fmt.Errorf("open a netfilter socket: %w", err)
		}
		// As root the buffer may exceed the system's limit; without, the usual size has to do.
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
		if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
			unix.Close(fd)
			return fmt.Errorf("bind a netfilter socket: %w", err)
		}
		file = os.NewFile(uintptr(fd), "netfilter")
		return nil
	})
	return file, err
}

// hangUp closes a socket for questions, and does not wait: Linux keeps who closes one until it has freed what transactions of
// nftables took away before, 10 ms or more.
func hangUp(file *os.File) {
	go func() { _ = file.Close() }() // nothing is buffered in it
}

// request is a netlink message for a netfilter subsystem.
type request struct {
	kind   uint16 // subsystem and message
	flags  uint16
	family byte
	attrs  []byte
}

func (r request) bytes() []byte {
	b := make([]byte, unix.SizeofNlMsghdr+nfgenmsgLen, unix.SizeofNlMsghdr+nfgenmsgLen+len(r.attrs))
	b = append(b, r.attrs...)
	binary.NativeEndian.PutUint32(b[0:], uint32(len(b)))
	binary.NativeEndian.PutUint16(b[4:], r.kind)
	binary.NativeEndian.PutUint16(b[6:], unix.NLM_F_REQUEST|r.flags)
	b[unix.SizeofNlMsghdr] = r.family
	return b
}

// ask sends a request and calls f for each message of the answer, until the kernel says that it is complete. The error is EINTR
// when what is listed changed meanwhile.
func ask(file *os.File, r request, f func(syscall.NetlinkMessage) error) error {
	if _, err := file.Write(r.bytes()); err != nil {
		return err
	}
	buf := make([]byte, 1<<16)
	interrupted := false
	for {
		n, err := file.Read(buf)
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return err
		}
		for _, m := range messages {
			interrupted = interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case m.Header.Type == unix.NLMSG_DONE && interrupted:
				return unix.EINTR
			case m.Header.Type == unix.NLMSG_DONE:
				return nil
			case m.Header.Type == unix.NLMSG_ERROR: // with code 0 it is the acknowledgement
				return netlinkError(m.Data)
			}
			if err := f(m); err != nil {
				return err
			}
		}
	}
}

// netlinkError reads the error code at the beginning of an error message.
func netlinkError(data []byte) error {
	if len(data) < 4 {
		return unix.EBADMSG
	}
	switch errno := unix.Errno(-int32(binary.NativeEndian.Uint32(data))); errno {
	case 0:
		return nil
	case unix.EPERM:
		return fmt.Errorf("%w: the capability NET_ADMIN is missing", errno)
	default:
		return errno
	}
}

// attributes calls f for each attribute, with its bytes as they stand and its payload. False ends the walk.
func attributes(b []byte, f func(kind uint16, whole, payload []byte) bool) {
	for len(b) >= unix.SizeofNlAttr {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return
		}
		padded := min((size+3)&^3, len(b))
		kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER)
		if !f(kind, b[:padded], b[unix.SizeofNlAttr:size]) {
			return
		}
		b = b[padded:]
	}
}
