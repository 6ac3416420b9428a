package subnet

import (
	"errors"
	"io/fs"
	"os"
	"syscall"
)

// Disk is what a Writer makes files with: the steps between which a process can be killed, the power can go, or the disk
// can fail. OSDisk is the real one; tests wrap it.
type Disk interface {
	// Create makes a new file in a directory, with a name from the pattern as os.CreateTemp makes it.
	Create(dir, pattern string, perm fs.FileMode) (DiskFile, error)
	// Rename puts a file in the place of another.
	Rename(from, to string) error
	// SyncDir makes the names in a directory durable.
	SyncDir(dir string) error
}

// DiskFile is a file that is being written.
type DiskFile interface {
	Name() string
	Write(data []byte) (int, error)
	Sync() error
	Close() error
}

// OSDisk is the file system of the machine.
type OSDisk struct{}

// Create implements Disk.
func (OSDisk) Create(dir, pattern string, perm fs.FileMode) (DiskFile, error) {
	f, err := os.CreateTemp(dir, pattern)
	if err != nil {
		return nil, err
	}
	if err := f.Chmod(perm); err != nil { // CreateTemp makes 0600; chmod is not subject to the umask
		return nil, errors.Join(err, os.Remove(f.Name()), f.Close())
	}
	return f, nil
}

// Rename implements Disk.
func (OSDisk) Rename(from, to string) error { return os.Rename(from, to) }

// SyncDir implements Disk. File systems that cannot sync a directory say EINVAL or ENOTSUP.
func (OSDisk) SyncDir(dir string) error {
	d, err := os.Open(dir)
	if err != nil {
		return err
	}
	defer d.Close()
	if err := d.Sync(); err != nil && !errors.Is(err, syscall.EINVAL) && !errors.Is(err, syscall.ENOTSUP) {
		return err
	}
	return nil
}
