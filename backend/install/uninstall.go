package install

import (
	"bytes"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"syscall"

	"github.com/weft-cni/weft/subnet"
)

// Traces is where our files lie on a node.
type Traces struct {
	ConfDir   string   // CNI configurations; empty leaves the conflist
	BinDir    string   // CNI plugins; empty leaves the shim
	SourceDir string   // the plugins of this image, to know our shim by its content
	Files     []string // single files: subnet.env, the word to the shim
	Dirs      []string // whole folders: our state, the shim's records, host-local's reservations under our name
}

// Uninstall removes our files: the conflist first, so that no new pod starts, and the shim last, since a runtime may still ask
// it to free a pod. The standard plugins stay: others may use them by now. It goes on after an error and returns what it
// removed.
func Uninstall(t Traces) ([]string, error) {
	var removed []string
	var errs []error
	did := func(path string, ok bool, err error) {
		if ok {
			removed = append(removed, path)
		}
		if err != nil {
			errs = append(errs, err)
		}
	}
	if t.ConfDir != "" {
		ok, err := removeConflist(t.ConfDir)
		did(filepath.Join(t.ConfDir, ConflistName), ok, err)
	}
	for _, f := range t.Files {
		ok, err := remove(f)
		did(f, ok, err)
	}
	for _, d := range t.Dirs {
		ok, err := empty(d)
		did(d, ok, err)
	}
	if t.BinDir != "" {
		ok, err := removeShim(t)
		did(filepath.Join(t.BinDir, Shim), ok, err)
	}
	return removed, errors.Join(errs...)
}

// remove removes a file that is there.
func remove(path string) (bool, error) {
	if path == "" {
		return false, nil
	}
	if _, err := os.Lstat(path); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err := os.Remove(path); err != nil {
		return false, fmt.Errorf("uninstall: %w", subnet.Cure(path, err))
	}
	return true, nil
}

// empty removes a folder with all that is in it. A folder that is a mount point of our container, as the state directory is,
// can only be emptied, and counts as removed if there was something in it.
func empty(dir string) (bool, error) {
	entries, err := os.ReadDir(dir)
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil
	}
	if err != nil {
		return false, fmt.Errorf("uninstall: %w", subnet.Cure(dir, err))
	}
	for _, e := range entries {
		path := filepath.Join(dir, e.Name())
		if err := os.RemoveAll(path); err != nil {
			return false, fmt.Errorf("uninstall: %w", subnet.Cure(path, err))
		}
	}
	err = os.Remove(dir)
	if errors.Is(err, syscall.EBUSY) || errors.Is(err, syscall.EROFS) {
		return len(entries) > 0, nil
	}
	if err != nil {
		return false, fmt.Errorf("uninstall: %w", subnet.Cure(dir, err))
	}
	return true, nil
}

// removeShim removes the shim if its content is ours. Flannel's plugin of the same name stays.
func removeShim(t Traces) (bool, error) {
	ours, err := os.ReadFile(filepath.Join(t.SourceDir, Shim))
	if errors.Is(err, fs.ErrNotExist) {
		return false, nil // outside the image: nobody knows whose it is
	}
	if err != nil {
		return false, fmt.Errorf("uninstall: %w", err)
	}
	path := filepath.Join(t.BinDir, Shim)
	if theirs, err := os.ReadFile(path); err != nil || !bytes.Equal(ours, theirs) {
		return false, nil
	}
	return remove(path)
}
