package kernel

import (
	"errors"
	"fmt"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netlink/nl"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Pods is what lives on the node: the addresses inside the namespaces that the host can name. A namespace is named by
// a file that a runtime keeps, or by a veth whose other end is in it; either way it is read from outside, by namespace
// ID, since entering it would need CAP_SYS_ADMIN.
type Pods struct {
	Host    []netip.Addr // the host's own addresses
	Spaces  []Space      // each namespace once, the host's own left out
	Blind   []string     // what could not be seen, in words: what lives there is not known
	DirSeen bool         // the folder of namespace files is there
	Names   []string     // all files in that folder, seen through or not
}

// Space is one network namespace and its addresses, loopback and link-local ones left out.
type Space struct {
	ID    int
	Files []string // names in the folder; none when only a veth leads there
	Addrs []netip.Addr
}

// Of rtnetlink, and not named by the library (linux/net_namespace.h, linux/if_addr.h).
const (
	nsidNone         = -1 // on input: choose a number
	ifaTargetNetnsid = 10
)

// Pods reads the namespaces named by the files in dir and those behind the host's veths.
func (c *Conn) Pods(dir string) (Pods, error) {
	r, err := c.openPods()
	if err != nil {
		return Pods{}, err
	}
	defer r.socket.Close()
	if r.pods.Host, err = r.addrs(nsidNone); err != nil {
		return Pods{}, fmt.Errorf("read the host's addresses: %w", err)
	}
	if err := r.readFiles(dir); err != nil {
		return Pods{}, err
	}
	if err := r.readVeths(); err != nil {
		return Pods{}, err
	}
	return r.pods, nil
}

type podReader struct {
	handle *netlink.Handle
	socket *nl.SocketHandle
	self   unix.Stat_t // of the host's namespace
	pods   Pods
}

// openPods opens a socket that lets the kernel look at the attributes of dump requests; on the Conn's own sockets the
// library sends some that it would refuse.
func (c *Conn) openPods() (*podReader, error) {
	s, err := nl.GetNetlinkSocketAt(c.nsHandle(), netns.None(), unix.NETLINK_ROUTE)
	if err != nil {
		return nil, fmt.Errorf("open rtnetlink: %w", err)
	}
	r := &podReader{handle: c.handle, socket: &nl.SocketHandle{Socket: s}}
	if err := s.SetReceiveTimeout(&nl.SocketTimeoutTv); err != nil {
		r.socket.Close()
		return nil, fmt.Errorf("set a time limit on rtnetlink: %w", err)
	}
	if err := unix.SetsockoptInt(s.GetFd(), unix.SOL_NETLINK, unix.NETLINK_GET_STRICT_CHK, 1); err != nil {
		r.socket.Close()
		return nil, fmt.Errorf("ask for strict checking of dumps: %w", err)
	}
	if err := unix.Fstat(int(c.ns.Fd()), &r.self); err != nil {
		r.socket.Close()
		return nil, fmt.Errorf("read the host's namespace: %w", err)
	}
	return r, nil
}

func (r *podReader) request(proto, flags int) *nl.NetlinkRequest {
	req := nl.NewNetlinkRequest(proto, flags)
	req.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_ROUTE: r.socket}
	return req
}

func (r *podReader) readFiles(dir string) error {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return fmt.Errorf("list namespaces: %w", err)
	}
	r.pods.DirSeen = true
	for _, e := range entries {
		r.pods.Names = append(r.pods.Names, e.Name())
		switch id, err := r.idOfFile(filepath.Join(dir, e.Name())); {
		case errors.Is(err, fs.ErrNotExist): // went away
		case err != nil:
			r.blind("namespace %s: %v", e.Name(), err)
		case id != nsidNone:
			if s := r.space(id); s != nil {
				s.Files = append(s.Files, e.Name())
			}
		}
	}
	return nil
}

// idOfFile gives the host's number for a namespace, making one if need be; the host itself is nsidNone.
func (r *podReader) idOfFile(path string) (int, error) {
	f, err := os.Open(path)
	if err != nil {
		return nsidNone, err
	}
	defer func() { _ = f.Close() }() // only read
	var fsStat unix.Statfs_t
	if err := unix.Fstatfs(int(f.Fd()), &fsStat); err != nil {
		return nsidNone, err
	}
	if fsStat.Type != unix.NSFS_MAGIC {
		return nsidNone, errors.New("the file is no namespace, or its mount is not passed on to this container")
	}
	var st unix.Stat_t
	if err := unix.Fstat(int(f.Fd()), &st); err != nil {
		return nsidNone, err
	}
	if st.Dev == r.self.Dev && st.Ino == r.self.Ino {
		return nsidNone, nil
	}
	if err := r.handle.SetNetNsIdByFd(int(f.Fd()), nsidNone); err != nil && !errors.Is(err, unix.EEXIST) {
		return nsidNone, fmt.Errorf("number it: %w", err)
	}
	id, err := r.handle.GetNetNsIdByFd(int(f.Fd()))
	if err != nil {
		return nsidNone, fmt.Errorf("ask its number: %w", err)
	}
	return id, nil
}

// space reads a namespace once; nil means that it cannot be seen.
func (r *podReader) space(id int) *Space {
	if i := slices.IndexFunc(r.pods.Spaces, func(s Space) bool { return s.ID == id }); i >= 0 {
		return &r.pods.Spaces[i]
	}
	addrs, err := r.addrs(id)
	if err != nil {
		r.blind("namespace number %d: %v", id, err)
		return nil
	}
	r.pods.Spaces = append(r.pods.Spaces, Space{ID: id, Addrs: addrs})
	return &r.pods.Spaces[len(r.pods.Spaces)-1]
}

func (r *podReader) blind(format string, args ...any) {
	r.pods.Blind = append(r.pods.Blind, fmt.Sprintf(format, args...))
}
