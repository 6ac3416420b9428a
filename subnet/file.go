package subnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"time"
)

// Writer replaces files so that no reader ever sees a part of one, and a crash or a power cut leaves the old or the new
// one. The zero value writes to the machine's disk.
type Writer struct {
	Disk Disk // nil means OSDisk
}

// WriteFile is Writer.WriteFile on the machine's disk.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	return Writer{}.WriteFile(path, data, perm)
}

// WriteFile replaces a file: temporary file in the same directory, fsync, rename, fsync of the directory. An existing file
// keeps its mode, a missing directory is made with 0755, and temporary files of writers that died are removed. The error
// names the path, and the cure where one is known.
func (w Writer) WriteFile(path string, data []byte, perm fs.FileMode) error {
	if err := w.write(path, data, perm); err != nil {
		return fmt.Errorf("write %s: %w", path, Cure(path, err))
	}
	return nil
}

func (w Writer) write(path string, data []byte, perm fs.FileMode) error {
	dir, base := filepath.Dir(path), filepath.Base(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	switch info, err := os.Stat(path); {
	case err != nil: // not there; or the steps below meet the cause again and say it
	case info.IsDir():
		return syscall.EISDIR // a rename says "file exists"
	case info.Mode().IsRegular():
		perm = info.Mode().Perm()
	}
	locked, unlock := lockDir(dir)
	defer unlock()
	if locked {
		removeTemps(dir, base) // nobody else is writing here, so whoever made them is dead
		return nameless(w.replace(dir, base, data, perm))
	}
	// Without the lock another writer may take us for dead, and our temporary file away.
	const tries = 5
	var err error
	for range tries {
		if err = w.replace(dir, base, data, perm); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	return nameless(err)
}

// nameless takes the name of the temporary file out of an error: it says nothing to anybody, and an error that is worded
// anew at each try looks like a new one to whoever writes a log.
func nameless(err error) error {
	var path *fs.PathError
	var link *os.LinkError
	switch {
	case errors.As(err, &path):
		return fmt.Errorf("%s: %w", path.Op, path.Err)
	case errors.As(err, &link):
		return fmt.Errorf("%s: %w", link.Op, link.Err)
	}
	return err
}

// RemoveTemps removes what writers of a file left that were killed. WriteFile does so too, but only when there is
// something to write.
func RemoveTemps(path string) {
	dir, base := filepath.Dir(path), filepath.Base(path)
	locked, unlock := lockDir(dir)
	defer unlock()
	if locked {
		removeTemps(dir, base)
	}
}

// lockDir keeps other writers out of a directory. The lock goes with the process, however it ends. A writer that holds
// it for two seconds is stopped or hangs: then the write goes on without, since readers are safe in any case.
func lockDir(dir string) (locked bool, unlock func()) {
	d, err := os.Open(dir)
	if err != nil {
		return false, func() {}
	}
	unlock = func() { _ = d.Close() } // opened for reading: there is nothing to lose
	for deadline := time.Now().Add(2 * time.Second); time.Now().Before(deadline); time.Sleep(2 * time.Millisecond) {
		if syscall.Flock(int(d.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			return true, unlock
		}
	}
	return false, unlock
}

// replace writes a temporary file and renames it.
func (w Writer) replace(dir, base string, data []byte, perm fs.FileMode) (err error) {
	disk := w.Disk
	if disk == nil {
		disk = OSDisk{}
	}
	f, err := disk.Create(dir, "."+base+".tmp*", perm)
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the first error is the one that matters
			_ = f.Close()
		}
	}()
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := disk.Rename(f.Name(), filepath.Join(dir, base)); err != nil {
		return err
	}
	return disk.SyncDir(dir)
}

// removeTemps removes what killed writers left. What cannot be removed now is left to the next write.
func removeTemps(dir, base string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if strings.HasPrefix(entry.Name(), "."+base+".tmp") && entry.Type().IsRegular() {
			_ = os.Remove(filepath.Join(dir, entry.Name()))
		}
	}
}
