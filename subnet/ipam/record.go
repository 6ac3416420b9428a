package ipam

import (
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// DefaultRecords is where the CNI plugin keeps its records, unless its configuration says otherwise.
const DefaultRecords = "/var/lib/cni/flannel"

// ErrBroken marks a record that is there and says nothing: empty, cut short, or no delegate configuration.
var ErrBroken = errors.New("the record is broken")

// maxRecord bounds a record; the ones in the field have about 400 bytes.
const maxRecord = 1 << 20

// Records is the folder of the CNI plugin's records: for each attachment, the configuration its delegate was given,
// in flannel's format, so that pods attached by either are deleted by the other.
type Records struct {
	Dir string
}

// Record is what a record says. Raw is the delegate's configuration as it stands.
type Record struct {
	Network string
	Type    string // of the delegate
	IPAM    IPAM
	Raw     []byte
}

// IPAM is the part of a delegate's configuration that says where its reservations are.
type IPAM struct {
	Type    string `json:"type"`
	DataDir string `json:"dataDir"`
}

// Store is host-local's folder of the network; it is false for another kind of address management.
func (r Record) Store() (Store, bool) {
	dir := r.IPAM.DataDir
	if dir == "" {
		dir = DefaultNetworks
	}
	return Store{filepath.Join(dir, r.Network)}, r.IPAM.Type == "host-local" && validContainerID(r.Network)
}

// Entry is a file among the records.
type Entry struct {
	Name    string
	ModTime time.Time
}

// RecordName is the file name of an attachment's record: the container ID alone for eth0, which is flannel's name,
// since flannel keeps one file a container.
func RecordName(o Owner) string {
	if o.IfName == "eth0" || o.IfName == "" {
		return o.ContainerID
	}
	return o.ContainerID + "-" + o.IfName
}

// Read gives the record of an attachment. Without one the error is fs.ErrNotExist, with a useless one ErrBroken.
func (r Records) Read(o Owner) (Record, error) { return r.ReadName(RecordName(o)) }

// ReadName is Read by file name.
func (r Records) ReadName(name string) (Record, error) {
	path := filepath.Join(r.Dir, name)
	info, err := os.Lstat(path)
	if err != nil {
		return Record{}, fmt.Errorf("read record: %w", err)
	}
	if !info.Mode().IsRegular() || info.Size() > maxRecord {
		return Record{}, fmt.Errorf("read record %s: %w", path, ErrBroken)
	}
	b, err := os.ReadFile(path)
	if err != nil {
		return Record{}, fmt.Errorf("read record: %w", err)
	}
	rec, err := ParseRecord(b)
	if err != nil {
		return Record{}, fmt.Errorf("read record %s: %w", path, err)
	}
	return rec, nil
}

// ParseRecord reads a delegate's configuration.
func ParseRecord(b []byte) (Record, error) {
	var in struct {
		Name string `json:"name"`
		Type string `json:"type"`
		IPAM IPAM   `json:"ipam"`
	}
	if err := json.Unmarshal(b, &in); err != nil {
		return Record{}, fmt.Errorf("%w: %w", ErrBroken, err)
	}
	if in.Name == "" || in.Type == "" {
		return Record{}, fmt.Errorf("%w: name or type is missing", ErrBroken)
	}
	return Record{Network: in.Name, Type: in.Type, IPAM: in.IPAM, Raw: b}, nil
}

// Remove takes a record away, and what a writer of it left that was killed; without one it does nothing.
func (r Records) Remove(o Owner) error {
	if err := r.RemoveName(tempName(o)); err != nil {
		return err
	}
	return r.RemoveName(RecordName(o))
}

// RemoveName removes a record by file name.
func (r Records) RemoveName(name string) error {
	path := filepath.Join(r.Dir, name)
	err := syscall.Unlink(path) // os.Remove would go on to try whether it is a folder, whatever the error
	if errors.Is(err, syscall.EISDIR) {
		err = syscall.Rmdir(path) // an empty one; what else is in a folder is nothing of ours
	}
	if err == nil || errors.Is(err, syscall.ENOENT) {
		return nil
	}
	// A read-only file system says so even of what is not there.
	if _, there := os.Lstat(path); errors.Is(there, fs.ErrNotExist) {
		return nil
	}
	return fmt.Errorf("remove record: %w", subnet.Cure(path, err))
}

// List names all records.
func (r Records) List() ([]Entry, error) { return listEntries(r.Dir) }

func listEntries(dir string) ([]Entry, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list %s: %w", dir, err)
	}
	var out []Entry
	for _, e := range entries {
		if strings.HasPrefix(e.Name(), ".") || !e.Type().IsRegular() {
			continue
		}
		if info, err := e.Info(); err == nil { // else it went away
			out = append(out, Entry{e.Name(), info.ModTime()})
		}
	}
	return out, nil
}
