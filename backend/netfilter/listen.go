package netfilter

import (
	"bytes"
	"context"
	"errors"
	"os"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

const (
	attrTable   = unix.NFTA_TABLE_NAME // and NFTA_CHAIN_TABLE, NFTA_RULE_TABLE, ...: always the table's name
	listenGroup = 1 << (unix.NFNLGRP_NFTABLES - 1)
	listenRetry = time.Second // between two attempts to listen
)

// Change is one message about a change to nftables that was made, by whomever.
type Change struct {
	Lost  bool   // changes came faster than they were read, or were made before anybody listened: there may be any number
	End   bool   // the transaction to which the changes since the last End belong is complete
	Table string // "family name"
	Chain string // of a change to a chain or a rule
	Kind  uint16 // unix.NFT_MSG_NEWRULE, ...
	Data  []byte // the message, for what else is in it; valid during the call only
}

// Listen calls f for each change to nftables until ctx ends. It begins with one that says Lost.
func (h Host) Listen(ctx context.Context, f func(Change)) {
	for ctx.Err() == nil {
		_ = h.listen(ctx, f) // why it ended is of no use: whoever writes next meets the cause and says it
		timer := time.NewTimer(listenRetry)
		select {
		case <-ctx.Done():
		case <-timer.C:
		}
		timer.Stop()
	}
}

func (h Host) listen(ctx context.Context, f func(Change)) error {
	file, err := h.open(listenGroup)
	if err != nil {
		return err
	}
	defer context.AfterFunc(ctx, func() { file.Close() })()
	defer file.Close()
	f(Change{Lost: true})
	return hear(file, f)
}

// hear passes on each message, until the socket is closed.
func hear(file *os.File, f func(Change)) error {
	buf := make([]byte, 1<<17)
	for {
		n, err := file.Read(buf)
		if errors.Is(err, unix.ENOBUFS) {
			f(Change{Lost: true})
			continue
		}
		if err != nil {
			return err
		}
		messages, err := syscall.ParseNetlinkMessage(buf[:n])
		if err != nil {
			f(Change{Lost: true})
			continue
		}
		for _, m := range messages {
			if c, ok := parseChange(m); ok {
				f(c)
			}
		}
	}
}

// parseChange reads a message of nftables; ok is false for every other.
func parseChange(m syscall.NetlinkMessage) (c Change, ok bool) {
	if m.Header.Type>>8 != unix.NFNL_SUBSYS_NFTABLES || len(m.Data) < nfgenmsgLen {
		return c, false
	}
	if m.Header.Type&0xff == unix.NFT_MSG_NEWGEN {
		return Change{End: true}, true
	}
	family := map[byte]string{unix.NFPROTO_INET: "inet", unix.NFPROTO_IPV4: "ip", unix.NFPROTO_IPV6: "ip6",
		unix.NFPROTO_ARP: "arp", unix.NFPROTO_NETDEV: "netdev", unix.NFPROTO_BRIDGE: "bridge"}[m.Data[0]]
	c = Change{Kind: m.Header.Type & 0xff, Data: m.Data}
	chain := chainAttr(c.Kind)
	attributes(m.Data[nfgenmsgLen:], func(kind uint16, _, payload []byte) bool {
		name, _, _ := bytes.Cut(payload, []byte{0})
		switch kind {
		case attrTable:
			c.Table, ok = family+" "+string(name), true
		case chain:
			c.Chain = string(name)
		}
		return !ok || chain != 0 && c.Chain == ""
	})
	return c, ok
}

// chainAttr is the attribute with the chain's name in messages that have one.
func chainAttr(kind uint16) uint16 {
	switch kind {
	case unix.NFT_MSG_NEWCHAIN, unix.NFT_MSG_DELCHAIN:
		return unix.NFTA_CHAIN_NAME
	case unix.NFT_MSG_NEWRULE, unix.NFT_MSG_DELRULE:
		return unix.NFTA_RULE_CHAIN
	}
	return 0
}
