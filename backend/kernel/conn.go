package kernel

import (
	"errors"
	"fmt"
	"maps"
	"net/netip"
	"os"
	"slices"
	"sync"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Conn is the real kernel: one network namespace, as seen through netlink sockets that were opened in it. It may be
// used from any goroutine and any thread, and a process may hold one for each of many namespaces.
type Conn struct {
	ns      *os.File
	own     bool // ns is the one that the process lives in, so that no thread has to enter it
	handle  *netlink.Handle
	socket  *nl.SocketHandle // rtnetlink, for the messages that the library does not know
	generic *nl.SocketHandle // generic netlink, for ethtool's

	mu    sync.Mutex     // guards what follows, which Dump writes, Apply reads and writes, and Watch reads
	index map[string]int // our devices: name to ifindex

	metrics metrics
}

// Open connects to the network namespace of the calling thread, which has to be the one of the whole process. It enters
// no namespace, not even that one: setns needs CAP_SYS_ADMIN, which the agent's container does not have.
func Open() (*Conn, error) {
	file, err := os.Open("/proc/thread-self/ns/net")
	if err != nil {
		return nil, fmt.Errorf("open the network namespace: %w", err)
	}
	return open(&Conn{ns: file, own: true})
}

// OpenAt connects to the network namespace that an open file descriptor refers to. The descriptor stays the caller's.
func OpenAt(fd int) (*Conn, error) {
	own, err := unix.FcntlInt(uintptr(fd), unix.F_DUPFD_CLOEXEC, 0)
	if err != nil {
		return nil, fmt.Errorf("duplicate the descriptor of a network namespace: %w", err)
	}
	return open(&Conn{ns: os.NewFile(uintptr(own), "netns")})
}

func open(c *Conn) (*Conn, error) {
	c.index, c.metrics.now = map[string]int{}, map[netip.Prefix]int{}
	var err error
	if c.handle, err = netlink.NewHandleAt(c.nsHandle(), unix.NETLINK_ROUTE); err != nil {
		return nil, errors.Join(fmt.Errorf("open netlink: %w", err), c.ns.Close())
	}
	var serr, gerr error
	c.socket, serr = c.open(unix.NETLINK_ROUTE)
	c.generic, gerr = c.open(unix.NETLINK_GENERIC)
	if err := errors.Join(serr, gerr); err != nil {
		c.Close()
		return nil, fmt.Errorf("open netlink: %w", err)
	}
	return c, nil
}

// open opens a socket in the namespace.
func (c *Conn) open(protocol int) (*nl.SocketHandle, error) {
	socket, err := nl.GetNetlinkSocketAt(c.nsHandle(), netns.None(), protocol)
	if err != nil {
		return nil, err
	}
	_ = socket.SetExtAck(true) // without it errors are numbers only
	_ = socket.SetSendTimeout(&nl.SocketTimeoutTv)
	_ = socket.SetReceiveTimeout(&nl.SocketTimeoutTv)
	return &nl.SocketHandle{Socket: socket}, nil
}

// nsHandle is where sockets are to be opened; none means where the calling thread is.
func (c *Conn) nsHandle() netns.NsHandle {
	if c.own {
		return netns.None()
	}
	return netns.NsHandle(c.ns.Fd())
}

// Close closes the sockets. What was applied stays in the kernel.
func (c *Conn) Close() {
	c.settle()
	c.handle.Close()
	for _, socket := range []*nl.SocketHandle{c.socket, c.generic} {
		if socket != nil {
			socket.Close()
		}
	}
	_ = c.ns.Close()
}

// request starts a message on the Conn's own socket.
func (c *Conn) request(proto, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(proto, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: c.socket}
	return req
}

// learn remembers the indices of our devices.
func (c *Conn) learn(index map[string]int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index = index
}

// note remembers the index of one device, or forgets it when it is 0.
func (c *Conn) note(name string, index int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.index = maps.Clone(c.index)
	if index == 0 {
		delete(c.index, name)
		return
	}
	c.index[name] = index
}

// lookup finds the index of a device of ours, in the kernel if it is not remembered. A remembered index may be of a
// device that is gone: indices are not used again soon, so the kernel then answers ENODEV.
func (c *Conn) lookup(name string) (int, error) {
	c.mu.Lock()
	index := c.index[name]
	c.mu.Unlock()
	if index != 0 {
		return index, nil
	}
	link, err := c.handle.LinkByName(name)
	if err != nil {
		return 0, fmt.Errorf("find device %s: %w", name, notFound(err))
	}
	c.note(name, link.Attrs().Index)
	return link.Attrs().Index, nil
}

// isOurIndex reports whether an index is of a device of ours.
func (c *Conn) isOurIndex(index int) bool {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.Contains(slices.Collect(maps.Values(c.index)), index)
}

// notFound turns the library's own "not found" into the kernel's errno, so that callers know one thing only.
func notFound(err error) error {
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return fmt.Errorf("%w: %w", unix.ENODEV, err)
	}
	return err
}
