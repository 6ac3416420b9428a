package traffic

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"os"
	"syscall"

	"golang.org/x/sys/unix"
)

// Two questions are asked of the kernel directly, since nft answers them by loading every rule of the host: which tables
// are there, and did somebody change one. With kube-proxy's 20,000 rules `nft list tables` (1.0.6) takes 1.5 s, and
// `nft monitor` lives with 68 MB. The messages are those of linux/netfilter/nf_tables.h.
const (
	attrTable     = 1 // NFTA_TABLE_NAME, and NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, ...: always the table's name
	attrChainName = 3 // NFTA_CHAIN_NAME
	attrRuleChain = 2 // NFTA_RULE_CHAIN

	groupNFTables = 1 << (unix.NFNLGRP_NFTABLES - 1)
	nfgenmsgLen   = 4
	receiveBuffer = 8 << 20 // a full sync of kube-proxy is some thousand messages at once
)

// nfEvent is one message about nftables: a table that is there, or a change that was made.
type nfEvent struct {
	kind  uint16 // unix.NFT_MSG_NEWTABLE, ...
	table string // "family name"
	chain string // of changes to a chain or a rule
}

// openNetfilter opens a netlink socket in the namespace of the calling thread. Groups 0 is for questions.
func openNetfilter(groups uint32) (*os.File, error) {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_CLOEXEC|unix.SOCK_NONBLOCK, unix.NETLINK_NETFILTER)
	if err != nil {
		return nil, fmt.Errorf("open a netfilter socket: %w", err)
	}
	// As root the buffer may exceed the system's limit; without, the usual size has to do.
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, receiveBuffer)
	if err := unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups}); err != nil {
		unix.Close(fd)
		return nil, fmt.Errorf("bind a netfilter socket: %w", err)
	}
	return os.NewFile(uintptr(fd), "netfilter"), nil
}

// tables lists the nftables tables of the namespace, as "family name".
func (h host) tables() (map[string]bool, error) {
	var file *os.File
	if err := h.Inside(func() (err error) {
		file, err = openNetfilter(0)
		return err
	}); err != nil {
		return nil, err
	}
	defer file.Close()
	for try := 0; ; try++ {
		names, err := dumpTables(file)
		if !errors.Is(err, unix.EINTR) || try == 5 {
			return names, err
		}
	}
}

// dumpTables asks for all tables and reads the answer. EINTR means that the tables changed meanwhile.
func dumpTables(file *os.File) (map[string]bool, error) {
	ask := make([]byte, unix.SizeofNlMsghdr+nfgenmsgLen)
	binary.NativeEndian.PutUint32(ask[0:], uint32(len(ask)))
	binary.NativeEndian.PutUint16(ask[4:], unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_GETTABLE)
	binary.NativeEndian.PutUint16(ask[6:], unix.NLM_F_REQUEST|unix.NLM_F_DUMP)
	if _, err := file.Write(ask); err != nil {
		return nil, fmt.Errorf("ask for the nftables tables: %w", err)
	}
	names := map[string]bool{}
	buf := make([]byte, 1<<16)
	interrupted := false
	for {
		n, err := file.Read(buf)
		if err != nil {
			return nil, fmt.Errorf("list the nftables tables: %w", err)
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			return nil, fmt.Errorf("list the nftables tables: %w", err)
		}
		for _, m := range messages {
			interrupted = interrupted || m.Header.Flags&unix.NLM_F_DUMP_INTR != 0
			switch {
			case m.Header.Type == unix.NLMSG_DONE && interrupted:
				return nil, fmt.Errorf("list the nftables tables: %w", unix.EINTR)
			case m.Header.Type == unix.NLMSG_DONE:
				return names, nil
			case m.Header.Type == unix.NLMSG_ERROR:
				return nil, fmt.Errorf("list the nftables tables: %w", netlinkError(m.Data))
			}
			if e, ok := parseEvent(m); ok {
				names[e.table] = true
			}
		}
	}
}

// netlinkError reads the error code at the beginning of an error message.
func netlinkError(data []byte) error {
	if len(data) < 4 {
		return unix.EBADMSG
	}
	errno := unix.Errno(-int32(binary.NativeEndian.Uint32(data)))
	switch errno {
	case unix.EPERM:
		return fmt.Errorf("%w: the capability NET_ADMIN is missing", errno)
	case unix.EINVAL, unix.EOPNOTSUPP:
		return fmt.Errorf("%w: the kernel has no nf_tables: modprobe nf_tables", errno)
	}
	return errno
}

// parseEvent reads a message of nftables, as far as it names a table; ok is false for every other.
func parseEvent(m syscall.NetlinkMessage) (e nfEvent, ok bool) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nfgenmsgLen {
		return e, false
	}
	e.kind = m.Header.Type & 0xff
	family := map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6",
		unix.NFPROTO_ARP: "arp", unix.NFPROTO_NETDEV: "netdev", unix.NFPROTO_BRIDGE: "bridge"}[m.Data[0]]
	chainAttr := uint16(0)
	switch e.kind {
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		chainAttr = attrChainName
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		chainAttr = attrRuleChain
	}
	for b := m.Data[nfgenmsgLen:]; len(b) >= unix.SizeofNlAttr; {
		size := int(binary.NativeEndian.Uint16(b))
		if size < unix.SizeofNlAttr || size > len(b) {
			return e, false
		}
		text, _, _ := bytes.Cut(b[unix.SizeofNlAttr:size], []byte{0})
		switch kind := binary.NativeEndian.Uint16(b[2:]) &^ (unix.NLA_F_NESTED | unix.NLA_F_NET_BYTEORDER); {
		case kind == attrTable:
			e.table, ok = family+" "+string(text), true
		case kind == chainAttr && chainAttr != 0:
			e.chain = string(text)
		}
		b = b[min((size+3)&^3, len(b)):]
	}
	return e, ok && e.kind != unix.NFT_MSG_NEWGEN // whose attribute 1 is a number
}
