package attach

import (
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"
)

// conn speaks nfnetlink with the kernel. It is the few messages that the plugin needs, written out: to run nft takes 5 ms
// and the program, which a host need not have, and a library would double the plugin's size.
// https://docs.kernel.org/userspace-api/netlink/intro.html, linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h
type conn struct {
	fd  int
	seq uint32
}

// message is one request about the inet family of nf_tables.
type message struct {
	kind  uint16 // NFT_MSG_...
	flags uint16 // beyond NLM_F_REQUEST and NLM_F_ACK
	attrs []byte
}

// answerTime bounds the wait for the kernel, which answers before a send returns; it is there so that nothing can hang.
const answerTime = 5

func dial() (*conn, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netfilter netlink: %w", err)
	}
	c := &conn{fd: fd}
	err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: answerTime})
	if err == nil {
		err = unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK})
	}
	if err != nil {
		c.close()
		return nil, fmt.Errorf("open netfilter netlink: %w", err)
	}
	return c, nil
}

func (c *conn) close() { _ = unix.Close(c.fd) } // nothing is buffered in it

// ask sends a question; only whether it can be answered is of interest.
func (c *conn) ask(m message) error {
	m.flags |= unix.NLM_F_ACK
	return c.exchange(c.frame(unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, unix.NFPROTO_INET, 0, m), c.seq, c.seq)
}

// change sends a transaction. The error is that of the first message that failed; then none was carried out.
func (c *conn) change(ms ...message) error {
	begin := message{}
	out := c.frame(unix.NFNL_MSG_BATCH_BEGIN, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, begin)
	first := c.seq
	for i, m := range ms {
		if i == len(ms)-1 {
			m.flags |= unix.NLM_F_ACK
		}
		out = append(out, c.frame(unix.NFNL_SUBSYS_NFTABLES<<8|m.kind, unix.NFPROTO_INET, 0, m)...)
	}
	last := c.seq
	return c.exchange(append(out, c.frame(unix.NFNL_MSG_BATCH_END, unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES, begin)...), first, last)
}

// exchange sends and reads until the last message is answered, or the first one, without which the others are not looked
// at, is refused.
func (c *conn) exchange(out []byte, first, last uint32) (failed error) {
	if err := unix.Sendto(c.fd, out, 0, &unix.SockaddrNetlink{Family: unix.AF_NETLINK}); err != nil {
		return fmt.Errorf("send to netfilter: %w", err)
	}
	buf := make([]byte, 16<<10)
	for {
		n, _, err := unix.Recvfrom(c.fd, buf, 0)
		if errors.Is(err, unix.EINTR) {
			continue
		}
		if err != nil {
			return errors.Join(failed, fmt.Errorf("read from netfilter: %w", err))
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return fmt.Errorf("read from netfilter: %w", err)
		}
		for _, m := range messages {
			if m.Header.Type != unix.NLMSG_ERROR || len(m.Data) < 4 {
				continue // the answer itself, before its acknowledgement
			}
			if code := int32(binary.NativeEndian.Uint32(m.Data)); code != 0 && failed == nil {
				failed = syscall.Errno(-code)
			}
			if m.Header.Seq == last || m.Header.Seq == first {
				return failed
			}
		}
	}
}

// frame is a netlink message: struct nlmsghdr, struct nfgenmsg, attributes.
func (c *conn) frame(kind uint16, family uint8, resource uint16, m message) []byte {
	c.seq++
	const header, generic = 16, 4
	out := make([]byte, header+generic, header+generic+len(m.attrs))
	binary.NativeEndian.PutUint32(out, uint32(header+generic+len(m.attrs)))
	binary.NativeEndian.PutUint16(out[4:], kind)
	binary.NativeEndian.PutUint16(out[6:], unix.NLM_F_REQUEST|m.flags)
	binary.NativeEndian.PutUint32(out[8:], c.seq)
	out[header] = family
	out[header+1] = unix.NFNETLINK_V0
	binary.BigEndian.PutUint16(out[header+2:], resource)
	return append(out, m.attrs...)
}

// attr is a netlink attribute, padded to four bytes.
func attr(kind uint16, value []byte) []byte {
	out := make([]byte, 4, 4+len(value)+3)
	binary.NativeEndian.PutUint16(out, uint16(4+len(value)))
	binary.NativeEndian.PutUint16(out[2:], kind)
	out = append(out, value...)
	for len(out)%4 != 0 {
		out = append(out, 0)
	}
	return out
}

func nested(kind uint16, value []byte) []byte { return attr(kind|unix.NLA_F_NESTED, value) }

func text(kind uint16, value string) []byte { return attr(kind, append([]byte(value), 0)) }
