package subnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"
)

// Cure adds to an error of the file at path what a person can do about it, in the same line. An error that it has nothing
// to say to comes back as it is, and so does nil.
func Cure(path string, err error) error {
	if err == nil {
		return nil
	}
	dir := filepath.Dir(path)
	switch {
	case errors.Is(err, syscall.EISDIR):
		return fmt.Errorf("%w: a directory is in the place of this file: remove it (rm -r %s)", err, path)
	case isFile(dir) || errors.Is(err, syscall.ENOTDIR):
		return fmt.Errorf("%w: a file is in the place of the directory %s: remove it", err, dir)
	case errors.Is(err, syscall.ENOSPC) || errors.Is(err, syscall.EDQUOT):
		return fmt.Errorf("%w: %s", err, room(dir))
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: the file system of %s is read-only: mount this directory of the host into the container, writable; "+
			"or, after an error of the disk, repair it and mount it again (mount -o remount,rw)", err, dir)
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w – SELinux? An enforcing host refuses a container this write unless the directory is labelled container_file_t; "+
			"so does an immutable file (chattr -i %s), or a directory that does not belong to root (chown root %s)", err, path, dir)
	case errors.Is(err, syscall.EIO):
		return fmt.Errorf("%w: the disk under %s fails (see dmesg)", err, dir)
	}
	return err
}

// room says what the file system of a directory has run out of.
func room(dir string) string {
	var fs syscall.Statfs_t
	if err := syscall.Statfs(dir, &fs); err == nil && fs.Files > 0 && fs.Ffree == 0 {
		return fmt.Sprintf("the file system of %s has no inodes left: remove files (df -i %s)", dir, dir)
	}
	return fmt.Sprintf("the file system of %s is full: make room (df -h %s)", dir, dir)
}

func isFile(path string) bool {
	info, err := os.Stat(path)
	return err == nil && !info.IsDir()
}
