package gate

import (
	"errors"
	"io/fs"
	"log/slog"
	"os"
	"path/filepath"

	"github.com/weft-cni/weft/subnet/attach"
)

// folder reads the notes on disk, each once: a new one is a new file. Reading the 110 of a full node each time takes a new pod some
// milliseconds of its start.
type folder struct {
	notes attach.Notes
	log   *slog.Logger
	files map[string]noteFile // as they were at the last look
}

type noteFile struct {
	info fs.FileInfo
	note attach.Note
}

// look gives the notes by name.
func (f *folder) look() (map[string]attach.Note, error) {
	names, err := f.notes.Names()
	if err != nil {
		return nil, err
	}
	files, found := make(map[string]noteFile, len(names)), make(map[string]attach.Note, len(names))
	for _, name := range names {
		info, err := os.Stat(filepath.Join(f.notes.Dir, name))
		if err != nil {
			continue // it has just gone
		}
		file, seen := f.files[name]
		if !seen || !os.SameFile(file.info, info) || !file.info.ModTime().Equal(info.ModTime()) {
			file = f.read(name, info, file)
		}
		if file.info != nil {
			files[name], found[name] = file, file.note
		}
	}
	f.files = files
	return found, nil
}

// read gives what was there before for what cannot be read: a pod whose note is not known loses its policies. The next look tries
// again.
func (f *folder) read(name string, info fs.FileInfo, before noteFile) noteFile {
	n, err := f.notes.Read(name)
	switch {
	case err == nil:
		return noteFile{info, n}
	case !errors.Is(err, fs.ErrNotExist):
		f.log.Debug("gate: a note is passed over", "err", err)
		return before
	}
	return noteFile{}
}
