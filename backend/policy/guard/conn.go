package guard

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet/nl"
)

// conn is the socket that owns the table: nft runs as a process with a socket of its own, and could not write to it.
type conn struct{ *nl.Conn }

// message is one request about the inet family of nf_tables.
type message struct {
	kind  uint16 // NFT_MSG_...
	flags uint16 // beyond NLM_F_REQUEST and NLM_F_ACK
	attrs []byte
}

func dial() (*conn, error) {
	c, err := nl.Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open netfilter: %w", err)
	}
	return &conn{c}, nil
}

// change sends a transaction. The error is that of the first message that failed; then none was carried out.
func (c *conn) change(list []message) error {
	if len(list) == 0 {
		return nil
	}
	out, first := c.Frame(bound(unix.NFNL_MSG_BATCH_BEGIN))
	last := first
	for i, m := range list {
		if i == len(list)-1 {
			m.flags |= unix.NLM_F_ACK
		}
		var frame []byte
		frame, last = c.Frame(nl.Request{
			Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | m.kind, Flags: m.flags, Body: append(generic(unix.NFPROTO_INET, 0), m.attrs...),
		})
		out = append(out, frame...)
	}
	end, _ := c.Frame(bound(unix.NFNL_MSG_BATCH_END))
	return c.Exchange(append(out, end...), first, last, nil)
}

// bound is the beginning or the end of a transaction.
func bound(kind uint16) nl.Request {
	return nl.Request{Kind: kind, Body: generic(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)}
}

// generic is struct nfgenmsg.
func generic(family uint8, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}
