// Package install puts weft's files on a node and takes them away again: the CNI plugins and the conflist that names them.
//
// Two things are never done: a plugin of the host is not replaced by an older one, and a conflist is not published whose
// plugins are not all there. Files are replaced by rename, since the kubelet may start a plugin at any moment.
package install

import (
	"io/fs"
	"os"

	"github.com/weft-cni/weft/subnet"
)

const (
	// ConflistName is the file in the CNI configuration directory, the name that flannel uses.
	ConflistName = "10-flannel.conflist"
	// Shim is the plugin that is ours: the first of the chain.
	Shim = "flannel"
)

// write replaces a file atomically and makes sure of its execute bits.
func write(w subnet.Writer, path string, data []byte, perm fs.FileMode) error {
	if err := w.WriteFile(path, data, perm); err != nil {
		return err
	}
	if info, err := os.Stat(path); err == nil && info.Mode().Perm()&perm&0o111 != perm&0o111 {
		// WriteFile keeps the mode of the file it replaces; a plugin that nobody could execute is no reason to stay so.
		return subnet.Cure(path, os.Chmod(path, perm))
	}
	return nil
}
