package install

import (
	"os"
	"syscall"
)

// Stamp is what a stat tells of a file's content. Equal stamps mean that nobody replaced or wrote to it in between.
type Stamp struct {
	inode       uint64
	size        int64
	mode        os.FileMode
	change      syscall.Timespec // ctime: a program cannot set it
	linkInode   uint64           // of the name itself, when that is a symbolic link
	linkChanged syscall.Timespec
}

// StampOf stats a file; the zero value means that it is not there.
func StampOf(path string) Stamp {
	info, err := os.Stat(path)
	if err != nil {
		return Stamp{}
	}
	link, err := os.Lstat(path)
	if err != nil {
		return Stamp{}
	}
	s := Stamp{size: info.Size(), mode: info.Mode()}
	if sys, ok := info.Sys().(*syscall.Stat_t); ok {
		s.inode, s.change = sys.Ino, sys.Ctim
	}
	if sys, ok := link.Sys().(*syscall.Stat_t); ok {
		s.linkInode, s.linkChanged = sys.Ino, sys.Ctim
	}
	return s
}

// Stands reports whether the file is there and as it was when the stamp was taken.
func (s Stamp) Stands(path string) bool { return s != (Stamp{}) && StampOf(path) == s }
