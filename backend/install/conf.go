package install

import (
	"fmt"
	"os"
	"path/filepath"

	"github.com/weft-cni/weft/subnet"
)

// Conf is the program that flannel's own manifest calls as /opt/bin/install-conf SRC DEST: it copies a CNI configuration by
// temporary file and rename, with the mode of the source.
func Conf(args []string) error {
	if len(args) != 2 {
		return fmt.Errorf("usage: install-conf SRC DEST (got %d arguments)", len(args))
	}
	src, dst := args[0], args[1]
	info, err := os.Stat(src)
	if err != nil {
		return fmt.Errorf("install %q: %w", src, err)
	}
	if !info.Mode().IsRegular() {
		return fmt.Errorf("install %q: not a regular file", src)
	}
	data, err := os.ReadFile(src)
	if err != nil {
		return fmt.Errorf("install %q: %w", src, err)
	}
	// The target may be a directory in a container's file system; say so before a rename does in worse words.
	if t, err := os.Stat(dst); err == nil && t.IsDir() {
		return fmt.Errorf("install %q: %s is a directory; name the file %s", src, dst, filepath.Join(dst, filepath.Base(src)))
	}
	if err := subnet.WriteFile(dst, data, info.Mode().Perm()); err != nil {
		return fmt.Errorf("install %q: %w", src, err)
	}
	return nil
}
