package images

import (
	"archive/tar"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
)

// entry is one file of an image: a copy of a host file, a text, a link or a folder.
type entry struct {
	from string // host path
	text string
	link string
	mode int64
	dir  bool
}

// Tree is the file system of an image. The zero value is empty and ready.
type Tree struct {
	entries map[string]entry
}

// Add puts a copy of the host file from at the path to.
func (t *Tree) Add(from, to string) { t.put(to, entry{from: from, mode: 0o755}) }

// Text puts a file with this content at the path to.
func (t *Tree) Text(to, content string, mode int64) { t.put(to, entry{text: content, mode: mode}) }

// Link puts a symbolic link at the path to.
func (t *Tree) Link(to, target string) { t.put(to, entry{link: target, mode: 0o777}) }

// Folder puts an empty folder at the path to.
func (t *Tree) Folder(to string, mode int64) { t.put(to, entry{dir: true, mode: mode}) }

// AddProgram puts a host program and every library it is linked with at their own paths.
func (t *Tree) AddProgram(from string) error {
	if err := t.addWithTarget(from); err != nil {
		return err
	}
	libraries, err := librariesOf(from)
	if err != nil {
		return err
	}
	for _, library := range libraries {
		if err := t.addWithTarget(library); err != nil {
			return err
		}
	}
	return nil
}

// AddFolder puts all files below the host folder from at their own paths, with the libraries they need.
func (t *Tree) AddFolder(from string) error {
	return filepath.WalkDir(from, func(p string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		if d.IsDir() {
			return nil
		}
		return t.AddProgram(p)
	})
}

// addWithTarget copies what from leads to under the name from, so that links need not be followed in the image.
func (t *Tree) addWithTarget(from string) error {
	real, err := filepath.EvalSymlinks(from)
	if err != nil {
		return fmt.Errorf("find %s on the host: %w", from, err)
	}
	t.Add(real, from)
	return nil
}

func (t *Tree) put(to string, e entry) {
	if t.entries == nil {
		t.entries = map[string]entry{}
	}
	to = strings.TrimPrefix(path.Clean("/"+to), "/")
	for dir := path.Dir(to); dir != "."; dir = path.Dir(dir) {
		if _, there := t.entries[dir]; !there {
			t.entries[dir] = entry{dir: true, mode: 0o755}
		}
	}
	t.entries[to] = e
}

func (t *Tree) names() []string { return slices.Sorted(maps.Keys(t.entries)) }

// write emits the tree as a layer; the order is fixed and the times are zero, so that equal trees give equal bytes.
func (t *Tree) write(w io.Writer) error {
	out := tar.NewWriter(w)
	for _, name := range t.names() {
		if err := t.entries[name].write(out, name); err != nil {
			return fmt.Errorf("write %s: %w", name, err)
		}
	}
	return out.Close()
}

// layer writes the tree to a file, which is the caller's to remove, and tells its digest.
func (t *Tree) layer() (*os.File, string, error) {
	file, err := os.CreateTemp("", "weft-layer-")
	if err != nil {
		return nil, "", fmt.Errorf("make a file for it: %w", err)
	}
	sum := sha256.New()
	if err := t.write(io.MultiWriter(file, sum)); err != nil {
		return nil, "", errors.Join(err, file.Close(), os.Remove(file.Name()))
	}
	return file, hex.EncodeToString(sum.Sum(nil)), nil
}

func (e entry) write(out *tar.Writer, name string) error {
	header := &tar.Header{Name: name, Mode: e.mode, Format: tar.FormatPAX}
	switch {
	case e.dir:
		header.Name, header.Typeflag = name+"/", tar.TypeDir
		return out.WriteHeader(header)
	case e.link != "":
		header.Typeflag, header.Linkname = tar.TypeSymlink, e.link
		return out.WriteHeader(header)
	case e.from == "":
		header.Typeflag, header.Size = tar.TypeReg, int64(len(e.text))
		err := out.WriteHeader(header)
		_, errWrite := io.WriteString(out, e.text)
		return errors.Join(err, errWrite)
	}
	in, err := os.Open(e.from)
	if err != nil {
		return err
	}
	defer in.Close()
	info, err := in.Stat()
	if err != nil {
		return err
	}
	header.Typeflag, header.Size = tar.TypeReg, info.Size()
	if err := out.WriteHeader(header); err != nil {
		return err
	}
	_, err = io.Copy(out, in)
	return err
}
