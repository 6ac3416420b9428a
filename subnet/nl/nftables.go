package nl

import (
	"encoding/binary"
	"fmt"

	"golang.org/x/sys/unix"
)

// NFTables is a conversation with nftables: to run nft takes 5 ms and the program, which a host need not have, and a table can
// belong to a socket only as long as that is open. linux/netfilter/nfnetlink.h, linux/netfilter/nf_tables.h
type NFTables struct{ *Conn }

// NFTMessage is one request about the inet family.
type NFTMessage struct {
	Kind  uint16 // NFT_MSG_...
	Flags uint16 // beyond NLM_F_REQUEST and NLM_F_ACK
	Attrs []byte
}

// DialNFTables opens a socket in the network namespace of the thread.
func DialNFTables() (NFTables, error) {
	c, err := Dial(unix.NETLINK_NETFILTER)
	if err != nil {
		return NFTables{}, fmt.Errorf("open netfilter: %w", err)
	}
	return NFTables{c}, nil
}

// HangUp ends a conversation that nothing belongs to, and does not wait: Linux keeps who closes a netfilter socket until it has
// freed what transactions took away before, whosoever, 10 ms or more.
func (c NFTables) HangUp() { go c.Close() }

// Ask sends a question; only whether it can be answered is of interest.
func (c NFTables) Ask(m NFTMessage) error { return c.Do(m.request()) }

// Change sends a transaction. The error is that of the first message that failed; then none was carried out.
func (c NFTables) Change(list ...NFTMessage) error {
	if len(list) == 0 {
		return nil
	}
	out, first := c.Frame(batch(unix.NFNL_MSG_BATCH_BEGIN))
	last := first
	for i, m := range list {
		if i == len(list)-1 {
			m.Flags |= unix.NLM_F_ACK
		}
		var frame []byte
		frame, last = c.Frame(m.request())
		out = append(out, frame...)
	}
	end, _ := c.Frame(batch(unix.NFNL_MSG_BATCH_END))
	return c.Exchange(append(out, end...), first, last, nil)
}

func (m NFTMessage) request() Request {
	return Request{Kind: unix.NFNL_SUBSYS_NFTABLES<<8 | m.Kind, Flags: m.Flags, Body: append(generic(unix.NFPROTO_INET, 0), m.Attrs...)}
}

func batch(kind uint16) Request {
	return Request{Kind: kind, Body: generic(unix.AF_UNSPEC, unix.NFNL_SUBSYS_NFTABLES)}
}

// generic is struct nfgenmsg.
func generic(family uint8, resource uint16) []byte {
	return binary.BigEndian.AppendUint16([]byte{family, unix.NFNETLINK_V0}, resource)
}
