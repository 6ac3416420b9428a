package ipam

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"
)

// DefaultNetworks is where host-local keeps one folder for each network, unless its configuration says otherwise.
const DefaultNetworks = "/var/lib/cni/networks"

// maxSmall bounds what is read of a file that ought to hold two words.
const maxSmall = 4 << 10

// Reservation is one file of host-local: an address that is not handed out.
type Reservation struct {
	Addr    netip.Addr
	Owner   Owner // zero when Broken
	Broken  bool  // empty, cut short or unreadable: the owner is not known
	Size    int64 // of the file
	ModTime time.Time
}

// Store is host-local's folder of one network: a file for each address, named after it, holding
// "containerID\r\nifname" (only "containerID" from old versions), and beside them last_reserved_ip.N and lock.
type Store struct {
	Dir string
}

// List gives all reservations in the order of their addresses. No folder means none. It takes no lock: every file is
// read whole or, for an instant while host-local writes it, as Broken; decide on a Broken one only inside Update.
func (s Store) List() ([]Reservation, error) {
	entries, err := os.ReadDir(s.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list reservations: %w", err)
	}
	var out []Reservation
	for _, e := range entries {
		addr, ok := addrOf(e)
		if !ok {
			continue
		}
		if r, ok := s.read(addr); ok {
			out = append(out, r)
		}
	}
	slices.SortFunc(out, func(a, b Reservation) int { return a.Addr.Compare(b.Addr) })
	return out, nil
}

// OwnedBy gives the addresses of one attachment, under exactly that name.
func (s Store) OwnedBy(o Owner) ([]netip.Addr, error) {
	all, err := s.List()
	if err != nil {
		return nil, err
	}
	var out []netip.Addr
	for _, r := range all {
		if !r.Broken && r.Owner == o {
			out = append(out, r.Addr)
		}
	}
	return out, nil
}

// Get reads one reservation.
func (s Store) Get(addr netip.Addr) (Reservation, bool) { return s.read(addr) }

// Has reports whether an address is reserved, without reading for whom.
func (s Store) Has(addr netip.Addr) bool {
	_, err := os.Lstat(s.path(addr))
	return err == nil
}

func (s Store) path(addr netip.Addr) string { return filepath.Join(s.Dir, addr.String()) }

// read is false when the file went away or is none.
func (s Store) read(addr netip.Addr) (Reservation, bool) {
	r := Reservation{Addr: addr, Broken: true}
	info, err := os.Lstat(s.path(addr))
	if err != nil || !info.Mode().IsRegular() {
		return r, false
	}
	r.ModTime, r.Size = info.ModTime(), info.Size()
	b, err := readSmall(s.path(addr))
	if errors.Is(err, fs.ErrNotExist) {
		return r, false
	}
	if o, ok := parseOwner(b); err == nil && ok {
		r.Owner, r.Broken = o, false
	}
	return r, true
}

// addrOf takes only names as host-local writes them, so that an address and its file name are one thing.
func addrOf(e fs.DirEntry) (netip.Addr, bool) {
	addr, err := netip.ParseAddr(e.Name())
	return addr, err == nil && e.Type().IsRegular() && addr.Zone() == "" && addr.String() == e.Name()
}

func parseOwner(b []byte) (Owner, bool) {
	id, ifName, _ := strings.Cut(strings.TrimSpace(string(b)), "\n")
	o := Owner{ContainerID: strings.TrimSpace(id), IfName: strings.TrimSpace(ifName)}
	return o, o.Valid()
}

func readSmall(path string) ([]byte, error) {
	f, err := os.Open(path)
	if err != nil {
		return nil, err
	}
	defer func() { _ = f.Close() }() // only read
	b, err := io.ReadAll(io.LimitReader(f, maxSmall+1))
	if err == nil && len(b) > maxSmall {
		err = fmt.Errorf("read %s: more than %d bytes", path, maxSmall)
	}
	return b, err
}
