package netfilter

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// The numbers of linux/netfilter/nfnetlink_conntrack.h that golang.org/x/sys lacks.
const (
	ctGet    = unix.NFNL_SUBSYS_CTNETLINK<<8 | 1
	ctDelete = unix.NFNL_SUBSYS_CTNETLINK<<8 | 2

	ctaOriginal = 1
	ctaReply    = 2
	ctaStatus   = 3
	ctaID       = 12
	ctaZone     = 18

	ctaTupleIP, ctaTupleProto                 = 1, 2
	ctaProtoNum, ctaProtoSource, ctaProtoDest = 1, 2, 3
)

// Tuple is one direction of a connection. Ports are zero for protocols that have none.
type Tuple struct {
	Src, Dst         netip.Addr
	Proto            uint8
	SrcPort, DstPort uint16
}

// Connection is a tracked connection: how its first packet looked before any translation, and how an answer looks before any.
type Connection struct {
	Original, Reply Tuple
	Answered        bool // a packet of the other direction has been seen

	family byte
	key    []byte // the attributes that name it to the kernel, this very entry and no later one of the same addresses
	raw    []byte // the message that it was read from
}

// Forwarded is the connection's first packet as the forward hook saw it: behind the translation of the destination, before
// that of the source. An answer comes from where the packet really went.
func (c Connection) Forwarded() Tuple {
	t := c.Original
	t.Dst, t.DstPort = c.Reply.Src, c.Reply.SrcPort
	return t
}

// Connections lists the tracked connections of the namespace that are worth keeping.
func (h Host) Connections(keep func(Connection) bool) ([]Connection, error) {
	file, err := h.open(0)
	if err != nil {
		return nil, err
	}
	defer hangUp(file)
	var out []Connection
	err = ask(file, request{kind: ctGet, flags: unix.NLM_F_DUMP}, func(m syscall.NetlinkMessage) error {
		if c, ok := parseConnection(m.Data); ok && keep(c) {
			c.key, c.raw = key(c.raw), nil
			out = append(out, c)
		}
		return nil
	})
	if err != nil {
		return nil, connectionsError(err)
	}
	return out, nil
}

// connectionsError says what the kernel's answer means here: who asks a subsystem that is not there is told that he asks wrongly.
func connectionsError(err error) error {
	if errors.Is(err, unix.EINVAL) || errors.Is(err, unix.EOPNOTSUPP) {
		err = fmt.Errorf("%w: the kernel does not show them: modprobe nf_conntrack_netlink", err)
	}
	return fmt.Errorf("list tracked connections: %w", err)
}

// key copies what names an entry out of its message.
func key(attrs []byte) (key []byte) {
	attributes(attrs, func(kind uint16, whole, _ []byte) bool {
		switch kind {
		case ctaOriginal, ctaID, ctaZone:
			key = append(key, whole...)
		}
		return true
	})
	return key
}

// Forget deletes entries of the tracking table: the next packet of such a connection is judged as if it began one. An entry
// that is gone already is fine.
func (h Host) Forget(list []Connection) error {
	if len(list) == 0 {
		return nil
	}
	file, err := h.open(0)
	if err != nil {
		return err
	}
	defer hangUp(file)
	var errs []error
	for _, c := range list {
		if err := forget(file, c); err != nil {
			errs = append(errs, fmt.Errorf("delete the tracked connection %v: %w", c.Original, err))
		}
	}
	return errors.Join(errs[:min(len(errs), 10)]...)
}

func forget(file *os.File, c Connection) error {
	err := ask(file, request{kind: ctDelete, flags: unix.NLM_F_ACK, family: c.family, attrs: c.key},
		func(syscall.NetlinkMessage) error { return nil })
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// parseConnection reads a message of the tracking table.
func parseConnection(data []byte) (c Connection, ok bool) {
	if len(data) < nfgenmsgLen {
		return c, false
	}
	c.family, c.raw = data[0], data[nfgenmsgLen:]
	attributes(c.raw, func(kind uint16, _, payload []byte) bool {
		switch kind {
		case ctaOriginal:
			c.Original = parseTuple(payload)
		case ctaReply:
			c.Reply = parseTuple(payload)
		case ctaStatus:
			const seenReply = 1 << 1 // IPS_SEEN_REPLY
			c.Answered = len(payload) >= 4 && binary.BigEndian.Uint32(payload)&seenReply != 0
		}
		return true
	})
	return c, c.Original.Src.IsValid() && c.Original.Dst.IsValid() && c.Reply.Src.IsValid()
}

func parseTuple(b []byte) (t Tuple) {
	attributes(b, func(kind uint16, _, payload []byte) bool {
		switch kind {
		case ctaTupleIP:
			attributes(payload, func(kind uint16, _, addr []byte) bool {
				a, _ := netip.AddrFromSlice(addr)
				if kind == 1 || kind == 3 { // CTA_IP_V4_SRC, CTA_IP_V6_SRC; each is followed by its destination
					t.Src = a
				} else {
					t.Dst = a
				}
				return true
			})
		case ctaTupleProto:
			attributes(payload, func(kind uint16, _, value []byte) bool {
				switch {
				case kind == ctaProtoNum && len(value) > 0:
					t.Proto = value[0]
				case kind == ctaProtoSource && len(value) >= 2:
					t.SrcPort = binary.BigEndian.Uint16(value)
				case kind == ctaProtoDest && len(value) >= 2:
					t.DstPort = binary.BigEndian.Uint16(value)
				}
				return true
			})
		}
		return true
	})
	return t
}
