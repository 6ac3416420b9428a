package subnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
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
	removeStaleTemps(dir, base)
	var err error
	for range 3 { // another writer can take a temporary file for a dead one's before it is locked
		if err = replace(dir, base, data, perm); !errors.Is(err, fs.ErrNotExist) {
			break
		}
	}
	if err != nil {
		return fmt.Errorf("write %s: %w", path, err)
	}
	return nil
}

// replace writes a temporary file and renames it. The temporary file is locked for as long as its writer lives, which
// is how others tell that it is not stale.
func replace(dir, base string, data []byte, perm fs.FileMode) (err error) {
	f, err := os.CreateTemp(dir, "."+base+".tmp*")
	if err != nil {
		return err
	}
	defer func() {
		if err != nil {
			_ = os.Remove(f.Name()) // the first error is the one that matters
		}
		_ = f.Close() // a no-op unless an error came first; the lock goes with it
	}()
	if err := syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB); err != nil {
		return err
	}
	if _, err := f.Write(data); err != nil {
		return err
	}
	if err := f.Chmod(perm); err != nil { // CreateTemp makes 0600; chmod is not subject to the umask
		return err
	}
	if err := f.Sync(); err != nil {
		return err
	}
	if err := os.Rename(f.Name(), filepath.Join(dir, base)); err != nil {
		return err
	}
	return syncDir(dir)
}

// removeStaleTemps removes what killed writers left. What cannot be removed now is left to the next write.
func removeStaleTemps(dir, base string) {
	entries, err := os.ReadDir(dir)
	if err != nil {
		return
	}
	for _, entry := range entries {
		if ok, err := filepath.Match(escape("."+base+".tmp")+"*", entry.Name()); err != nil || !ok || !entry.Type().IsRegular() {
			continue
		}
		name := filepath.Join(dir, entry.Name())
		f, err := os.OpenFile(name, os.O_RDONLY|syscall.O_NOFOLLOW, 0)
		if err != nil {
			continue
		}
		if syscall.Flock(int(f.Fd()), syscall.LOCK_EX|syscall.LOCK_NB) == nil {
			_ = os.Remove(name)
		}
		_ = f.Close()
	}
}

// escape makes a name safe in a pattern of filepath.Match.
func escape(name string) string {
	var out []rune
	for _, r := range name {
		if r == '*' || r == '?' || r == '[' || r == '\\' {
			out = append(out, '\\')
		}
		out = append(out, r)
	}
	return string(out)
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
