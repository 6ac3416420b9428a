package attach

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet/nl"
)

// conn speaks nfnetlink with the kernel: to run nft takes 5 ms and the program, which a host need not have.
// linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h
type conn struct{ *nl.Conn }

// message is one request about the inet family of nf_tables.
type message struct {
	kind  uint16 // NFT_MSG_...
	flags uint16 // beyond NLM_F_REQUEST and NLM_F_ACK
	attrs []byte
}

func dial() (conn, error) {
	c, err := nl.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return conn{}, fmt.Errorf("open netfilter: %w", err)
	}
	return conn{c}, nil
}

// ask sends a question; only whether it can be answered is of interest.
func (c conn) ask(m message) error { return c.Do(request(m)) }

// change sends a transaction. The error is that of the first message that failed; then none was carried out.
func (c conn) change(ms ...message) error {
	out, first := c.Frame(batch(unix.NFNL_MSG_BATCH_BEGIN))
	last := first
	for i, m := range ms {
		if i == len(ms)-1 {
			m.flags |= unix.NLM_F_ACK
		}
		var frame []byte
		frame, last = c.Frame(request(m))
		out = append(out, frame...)
	}
	end, _ := c.Frame(batch(unix.NFNL_MSG_BATCH_END))
	return c.Exchange(append(out, end...), first, last, nil)
}

func request(m message) nl.Request {
	return nl.Request{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | m.kind, Flags: m.flags, Body: append(generic(unix.NFPROTO_INET, 0), m.attrs...)}
}

func batch(kind uint16) nl.Request {
	return nl.Request{Kind: kind, Body: generic(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)}
}

// generic is struct nfgenmsg.
func generic(family uint8, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}
