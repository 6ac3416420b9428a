package attach

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// Notes is the folder of notes. It lies in /run, since no pod outlives a boot. The agent makes it when it enforces
// policies; while it is missing nobody writes any.
type Notes struct{ Dir string }

const tempPrefix = "."

// Make makes the folder.
func (n Notes) Make() error {
	if err := os.MkdirAll(n.Dir, 0o700); err != nil {
		return fmt.Errorf("make the folder of notes: %w", subnet.Cure(n.Dir, err))
	}
	return nil
}

// Write stores a note, whole or not at all. It is false when there is no folder.
func (n Notes) Write(note Note) (bool, error) {
	data, err := note.render()
	if err != nil {
		return false, err
	}
	file, temp := filepath.Join(n.Dir, note.Name()), filepath.Join(n.Dir, tempPrefix+note.Name())
	if err := os.WriteFile(temp, data, 0o600); errors.Is(err, fs.ErrNotExist) {
		return false, nil
	} else if err != nil {
		_ = os.Remove(temp) // the first error is the one that matters
		return false, fmt.Errorf("write a note: %w", subnet.Cure(file, err))
	}
	if err := os.Rename(temp, file); err != nil {
		return false, fmt.Errorf("write a note: %w", subnet.Cure(file, err))
	}
	return true, nil
}

// Remove takes a note away; without one it does nothing. It returns the note that was there.
func (n Notes) Remove(containerID, ifName string) (Note, error) {
	name := Note{ContainerID: containerID, IfName: ifName}.Name()
	_ = os.Remove(filepath.Join(n.Dir, tempPrefix+name)) // of a writer that was killed; mostly there is none
	note, err := n.Read(name)
	if errors.Is(err, fs.ErrNotExist) {
		return Note{}, nil
	}
	// A note that cannot be read goes too.
	if err := ignoreMissing(os.Remove(filepath.Join(n.Dir, name))); err != nil {
		return note, fmt.Errorf("remove a note: %w", subnet.Cure(filepath.Join(n.Dir, name), err))
	}
	return note, nil
}

// Read reads one by its file's name.
func (n Notes) Read(name string) (Note, error) {
	data, err := os.ReadFile(filepath.Join(n.Dir, name))
	if err != nil {
		return Note{}, fmt.Errorf("read a note: %w", err)
	}
	note, err := ParseNote(data)
	if err == nil && note.Name() != name {
		return Note{}, fmt.Errorf("read a note: %s speaks of %s", name, note.Name())
	}
	return note, err
}

// Names lists the files of notes.
func (n Notes) Names() ([]string, error) {
	entries, err := os.ReadDir(n.Dir)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("list the notes: %w", err)
	}
	var out []string
	for _, e := range entries {
		if e.Type().IsRegular() && !strings.HasPrefix(e.Name(), tempPrefix) {
			out = append(out, e.Name())
		}
	}
	return out, nil
}

func ignoreMissing(err error) error {
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	return err
}
