// Package install puts weft's files on a node and takes them away again: the CNI plugins and the conflist that names them.
//
// Two things are never done: a plugin of the host is not replaced by an older one, and a conflist is not published whose
// plugins are not all there. Files are replaced by rename, since the kubelet may start a plugin at any moment.
package install

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"syscall"

	"github.com/weft-cni/weft/subnet"
)

const (
	// ConflistName is the file in the CNI configuration directory, the name that flannel uses.
	ConflistName = "10-flannel.conflist"
	// Shim is the plugin that is ours: the first of the chain.
	Shim = "flannel"
)

// write replaces a file atomically and makes sure of its execute bits.
func write(path string, data []byte, perm fs.FileMode) error {
	if err := subnet.WriteFile(path, data, perm); err != nil {
		return explain(err)
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&perm&0o111 != perm&0o111 {
		// WriteFile keeps the mode of the file it replaces; a plugin that nobody could execute is no reason to stay so.
		return explain(os.Chmod(path, perm))
	}
	return nil
}

// explain adds what is mostly behind a refusal that root does not expect.
func explain(err error) error {
	switch {
	case errors.Is(err, fs.ErrPermission):
		return fmt.Errorf("%w – SELinux? An enforcing host refuses a container this write unless the directory is labelled container_file_t; "+
			"so does an immutable file (chattr +i), or a directory that does not belong to root", err)
	case errors.Is(err, syscall.EROFS):
		return fmt.Errorf("%w: mount this directory of the host into the container, writable", err)
	default:
		return err
	}
}
