package nstest

import (
	"encoding/binary"
	"fmt"
	"sync"

	"golang.org/x/sys/unix"
)

// Monitor collects the kernel's rtnetlink notifications of a namespace, to show which changes were made at all.
// The kernel queues a notification before the call that made the change returns; the socket is read when Events asks,
// so that what was done before is always in the answer.
type Monitor struct {
	fd     int
	mu     sync.Mutex // guards events and the reading of fd
	events []Event
}

// Event is one rtnetlink notification.
type Event struct {
	Type  uint16 // unix.RTM_NEWROUTE, ...
	Index int    // ifindex, for links, addresses and neighbours; 0 for routes
	Body  []byte // message without its netlink header
}

// String names the kind of change.
func (e Event) String() string {
	name, ok := map[uint16]string{
		unix.RTM_NEWLINK: "new link", unix.RTM_DELLINK: "del link",
		unix.RTM_NEWADDR: "new addr", unix.RTM_DELADDR: "del addr",
		unix.RTM_NEWNEIGH: "new neigh", unix.RTM_DELNEIGH: "del neigh",
		unix.RTM_NEWROUTE: "new route", unix.RTM_DELROUTE: "del route",
	}[e.Type]
	if !ok {
		name = fmt.Sprintf("message %d", e.Type)
	}
	return fmt.Sprintf("%s (device %d)", name, e.Index)
}

// IsRoute tells whether a route came or went that somebody set: the kernel's own come and go with its addresses, those of
// IPv6 a while after a device is up.
func (e Event) IsRoute() bool {
	return (e.Type == unix.RTM_NEWROUTE || e.Type == unix.RTM_DELROUTE) && len(e.Body) > 5 && e.Body[5] != unix.RTPROT_KERNEL
}

// Monitor starts to collect changes of links, addresses, neighbours (and forwarding entries) and routes.
func (n *NS) Monitor() *Monitor {
	n.t.Helper()
	m := &Monitor{}
	if err := n.Do(m.open); err != nil {
		n.t.Fatalf("in %s: open rtnetlink: %v", n.Name, err)
	}
	n.t.Cleanup(func() { unix.Close(m.fd) })
	return m
}

// Events returns what the kernel has reported up to now.
func (m *Monitor) Events() []Event {
	m.mu.Lock()
	defer m.mu.Unlock()
	m.receive()
	return append([]Event(nil), m.events...)
}

func (m *Monitor) open() error {
	fd, err := unix.Socket(unix.AF_NETLINK, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, unix.NETLINK_ROUTE)
	if err != nil {
		return err
	}
	m.fd = fd
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 64<<20)
	var groups uint32
	for _, g := range []uint{unix.RTNLGRP_LINK, unix.RTNLGRP_NEIGH, unix.RTNLGRP_IPV4_IFADDR, unix.RTNLGRP_IPV4_ROUTE,
		unix.RTNLGRP_IPV6_IFADDR, unix.RTNLGRP_IPV6_ROUTE} {
		groups |= 1 << (g - 1)
	}
	return unix.Bind(fd, &unix.SockaddrNetlink{Family: unix.AF_NETLINK, Groups: groups})
}

func (m *Monitor) receive() {
	buf := make([]byte, 1<<17)
	for {
		n, err := unix.Read(m.fd, buf)
		switch err {
		case nil:
			m.note(buf[:n])
		case unix.EINTR, unix.ENOBUFS: // read on; what ENOBUFS lost did not fit into 64 MiB
		default:
			return // EAGAIN: all is read
		}
	}
}

func (m *Monitor) note(b []byte) {
	for len(b) >= unix.SizeofNlMsghdr {
		size := int(binary.NativeEndian.Uint32(b))
		if size < unix.SizeofNlMsghdr || size > len(b) {
			return
		}
		e := Event{Type: binary.NativeEndian.Uint16(b[4:]), Body: append([]byte(nil), b[unix.SizeofNlMsghdr:size]...)}
		if e.Type != unix.RTM_NEWROUTE && e.Type != unix.RTM_DELROUTE && len(e.Body) >= 8 {
			e.Index = int(int32(binary.NativeEndian.Uint32(e.Body[4:]))) // ifinfomsg, ifaddrmsg and ndmsg agree here
		}
		m.events = append(m.events, e)
		b = b[min((size+3)&^3, len(b)):]
	}
}
