package vm

import (
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
)

// File types of an archive entry, as stat(2) has them.
const (
	modeDir  = 0o040000
	modeFile = 0o100000
	modeLink = 0o120000
)

// archive writes the cpio format "newc" that the kernel unpacks as its first root file system
// (Documentation/driver-api/early-userspace/buffer-format.rst). Folders on the way to an entry are made when they are needed.
type archive struct {
	out  io.Writer
	seen map[string]bool
	next int // inode number
	err  error
}

func newArchive(out io.Writer) *archive { return &archive{out: out, seen: map[string]bool{"/": true}} }

// entry writes one entry, unless there is one of that name already.
func (a *archive) entry(name string, mode uint32, data []byte) {
	if a.seen[name] || a.err != nil {
		return
	}
	a.folder(path.Dir(name))
	a.seen[name] = true
	a.write(strings.TrimPrefix(name, "/"), mode, data)
}

func (a *archive) folder(name string) { a.entry(name, modeDir|0o755, nil) }

func (a *archive) link(name, target string) { a.entry(name, modeLink|0o777, []byte(target)) }

func (a *archive) write(name string, mode uint32, data []byte) {
	a.next++
	header := fmt.Sprintf("070701%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x%08x",
		a.next, mode, 0, 0, 1, 0, len(data), 0, 0, 0, 0, len(name)+1, 0)
	a.put([]byte(header + name + "\x00"))
	a.pad(len(header) + len(name) + 1)
	a.put(data)
	a.pad(len(data))
}

func (a *archive) put(b []byte) {
	if a.err == nil {
		_, a.err = a.out.Write(b)
	}
}

func (a *archive) pad(size int) { a.put(make([]byte, (4-size%4)%4)) }

// close ends the archive, and tells the first error of all.
func (a *archive) close() error {
	a.write("TRAILER!!!", 0, nil)
	return a.err
}

// file copies a file of this machine to the place where it lies here; symbolic links on the last step are copied as such,
// with what they point to.
func (a *archive) file(name string) error {
	dir, err := filepath.EvalSymlinks(filepath.Dir(name))
	if err != nil {
		return err
	}
	name = filepath.Join(dir, filepath.Base(name))
	info, err := os.Lstat(name)
	if err != nil || a.seen[name] {
		return err
	}
	switch {
	case info.Mode()&os.ModeSymlink != 0:
		target, err := os.Readlink(name)
		if err != nil {
			return err
		}
		a.link(name, target)
		if !filepath.IsAbs(target) {
			target = filepath.Join(dir, target)
		}
		return a.file(target)
	case info.Mode().IsRegular():
		return a.as(name, name)
	}
	return fmt.Errorf("copy %s: neither a file nor a link", name)
}

// as copies a file of this machine under another name.
func (a *archive) as(name, from string) error {
	info, err := os.Stat(from)
	if err != nil {
		return err
	}
	data, err := os.ReadFile(from)
	if err != nil {
		return err
	}
	a.entry(name, modeFile|uint32(info.Mode().Perm()), data)
	return a.err
}

// tree copies a folder of this machine with all that is in it.
func (a *archive) tree(root string) error {
	return filepath.WalkDir(root, func(name string, d os.DirEntry, err error) error {
		if err != nil || d.IsDir() {
			return err
		}
		return a.file(name)
	})
}
