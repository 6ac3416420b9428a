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

// WriteFile replaces a file so that no reader ever sees a part of it and a power cut leaves the old or the new one:
// temporary file in the same directory, fsync, rename, fsync of the directory. An existing file keeps its mode, a
// missing directory is made with 0755, and temporary files of writers that died are removed.
func WriteFile(path string, data []byte, perm fs.FileMode) error {
	dir, base := filepath.Dir(path), filepath.Base(path)
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().IsRegular() {
		perm = info.Mode().Perm()
	}
	locked, unlock := lockDir(dir)
	defer unlock()
	if locked {
		removeTemps(dir, base) // nobody else is writing here, so whoever made them is dead
	}
	if err := replace(dir, base, data, perm); err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
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
func replace(dir, base string, data []byte, perm fs.FileMode) (err error) {
	f, err := os.CreateTemp(dir, "."+base+".tmp*")
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
	if err := f.Chmod(perm); err != nil { // CreateTemp makes 0600; chmod is not subject to the umask
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := f.Close(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, base)); err != nil {
		return err
	}
	return syncDir(dir)
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

// syncDir makes the rename durable. File systems that cannot sync a directory say EINVAL or ENOTSUP.
func syncDir(dir string) error {
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
