package kernel

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"syscall"
	"time"

	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Changes tells that something in the kernel is not as it was. A channel holds at most one value: it says "look
// again", never what happened, so that nothing is lost when much happens at once.
type Changes struct {
	Ours <-chan struct{} // what Dump reads
	Host <-chan struct{} // what Host reads, as far as it is not ours
}

// watchBuffer is the size of the socket's receive buffer: 15,000 peers written at once send some 10 MB of notifications.
const watchBuffer = 16 << 20

// reopenPause is how long a watch waits before it opens its socket again.
const reopenPause = time.Second

// watchGroups are the multicast groups that a watch listens to.
func watchGroups() []uint {
	return []uint{
		unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH,
		unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE, unix.RTNLGRP_IPV4_RULE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE, unix.RTNLGRP_IPV6_RULE,
	}
}

// Watch listens to the kernel's notifications until ctx ends. Notifications that the kernel had to drop count as a
// change of everything.
func (c *Conn) Watch(ctx context.Context) (Changes, error) {
	socket, err := c.subscribe()
	if err != nil {
		return Changes{}, err
	}
	ours, host := make(chan struct{}, 1), make(chan struct{}, 1)
	go func() {
		for ctx.Err() == nil {
			c.receive(ctx, socket, ours, host)
			poke(ours, host) // something may have been missed
			socket = c.resubscribe(ctx)
		}
		if socket != nil {
			socket.Close()
		}
	}()
	return Changes{Ours: ours, Host: host}, nil
}

func (c *Conn) subscribe() (*nl.NetlinkSocket, error) {
	socket, err := nl.SubscribeAt(c.nsHandle(), netns.None(), unix.NETLINK_ROUTE, watchGroups()...)
	if err != nil {
		return nil, fmt.Errorf("listen to rtnetlink: %w", err)
	}
	_ = socket.SetReceiveBufferSize(watchBuffer, true) // a smaller buffer only drops more, and that is handled
	return socket, nil
}

// resubscribe opens the socket again, as often as it takes; nil when ctx ended first.
func (c *Conn) resubscribe(ctx context.Context) *nl.NetlinkSocket {
	for ctx.Err() == nil {
		if socket, err := c.subscribe(); err == nil {
			return socket
		}
		select {
		case <-ctx.Done():
		case <-time.After(reopenPause):
		}
	}
	return nil
}

// receive reads notifications until the socket fails or ctx ends, and closes the socket.
func (c *Conn) receive(ctx context.Context, socket *nl.NetlinkSocket, ours, host chan struct{}) {
	stop := context.AfterFunc(ctx, socket.Close)
	defer func() {
		if stop() {
			socket.Close()
		}
	}()
	for {
		msgs, _, err := socket.Receive()
		if errors.Is(err, unix.ENOBUFS) {
			poke(ours, host) // the socket itself is still good
			continue
		}
		if err != nil {
			return
		}
		for _, m := range msgs {
			c.notify(m, ours, host)
		}
	}
}

func (c *Conn) notify(m syscall.NetlinkMessage, ours, host chan struct{}) {
	switch classify(m.Header.Type, m.Data, c.isOurIndex) {
	case changeOurs:
		poke(ours)
	case changeHost:
		poke(host)
	}
}

// poke fills channels that are empty.
func poke(channels ...chan struct{}) {
	for _, ch := range channels {
		select {
		case ch <- struct{}{}:
		default:
		}
	}
}

// change says whom a notification concerns.
type change uint8

const (
	changeNone change = iota
	changeOurs
	changeHost
)

// classify decides whom a notification concerns. Pods come and go all the time, with veths and ARP entries: these
// concern nobody.
func classify(kind uint16, body []byte, isOurs func(index int) bool) change {
	if len(body) < 8 {
		return changeNone
	}
	index := int(int32(binary.NativeEndian.Uint32(body[4:]))) // the same place in ifinfomsg, ifaddrmsg and ndmsg
	switch kind {
	case unix.RTM_NEWLINK, unix.RTM_DELLINK:
		return classifyLink(body, isOurs(index))
	case unix.RTM_NEWADDR, unix.RTM_DELADDR:
		return either(isOurs(index), changeHost)
	case unix.RTM_NEWNEIGH, unix.RTM_DELNEIGH:
		return either(isOurs(index), changeNone)
	case unix.RTM_NEWROUTE, unix.RTM_DELROUTE:
		return classifyRoute(body, isOurs)
	case unix.RTM_NEWRULE, unix.RTM_DELRULE:
		return changeHost
	}
	return changeNone
}

func either(ours bool, otherwise change) change {
	if ours {
		return changeOurs
	}
	return otherwise
}

func classifyLink(body []byte, ours bool) change {
	if ours {
		return changeOurs
	}
	if body[0] == unix.AF_BRIDGE || len(body) < unix.SizeofIfInfomsg {
		return changeNone // a bridge tells about its ports
	}
	attrs, err := nl.ParseRouteAttrAsMap(body[unix.SizeofIfInfomsg:])
	if err != nil {
		return changeHost
	}
	if IsDeviceName(unix.ByteSliceToString(attrs[unix.IFLA_IFNAME].Value)) {
		return changeOurs
	}
	info, err := nl.ParseRouteAttrAsMap(attrs[unix.IFLA_LINKINFO].Value)
	if err == nil && unix.ByteSliceToString(info[nl.IFLA_INFO_KIND].Value) == "veth" && len(attrs[unix.IFLA_MASTER].Value) > 0 {
		return changeNone // a pod's
	}
	return changeHost
}

func classifyRoute(body []byte, isOurs func(int) bool) change {
	if len(body) < unix.SizeofRtMsg || body[4] != unix.RT_TABLE_MAIN {
		return changeNone
	}
	attrs, err := nl.ParseRouteAttrAsMap(body[unix.SizeofRtMsg:])
	if err != nil {
		return changeHost
	}
	oif := attrs[unix.RTA_OIF].Value
	onOurs := len(oif) == 4 && isOurs(int(binary.NativeEndian.Uint32(oif)))
	return either(onOurs || body[5] == Protocol, changeHost)
}
