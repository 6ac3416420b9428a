package subnet

import (
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
)

// faultyDisk fails at one step. Writing fails half-way.
type faultyDisk struct {
	OSDisk
	step string
	err  error
}

func (d faultyDisk) fails(step string) error {
	if d.step == step {
		return d.err
	}
	return nil
}

func (d faultyDisk) Create(dir, pattern string, perm fs.FileMode) (DiskFile, error) {
	if err := d.fails("create"); err != nil {
		return nil, err
	}
	f, err := d.OSDisk.Create(dir, pattern, perm)
	return faultyFile{f, d}, err
}

func (d faultyDisk) Rename(from, to string) error {
	return errors.Join(d.fails("rename"), rename(d.step == "rename", from, to))
}

func rename(not bool, from, to string) error {
	if not {
		return nil
	}
	return os.Rename(from, to)
}

func (d faultyDisk) SyncDir(string) error { return d.fails("sync the directory") }

type faultyFile struct {
	DiskFile
	d faultyDisk
}

func (f faultyFile) Write(data []byte) (int, error) {
	if err := f.d.fails("write"); err != nil {
		n, _ := f.DiskFile.Write(data[:len(data)/2]) // the step's own error is the one that counts
		return n, err
	}
	return f.DiskFile.Write(data)
}

func (f faultyFile) Sync() error {
	return errors.Join(f.d.fails("sync"), f.DiskFile.Sync())
}

func (f faultyFile) Close() error {
	return errors.Join(f.d.fails("close"), f.DiskFile.Close())
}

func TestD09AStepThatFailsLeavesTheOldFileAndNothingBesideIt(t *testing.T) {
	for _, errno := range []syscall.Errno{syscall.ENOSPC, syscall.EDQUOT, syscall.EIO, syscall.EROFS, syscall.EPERM} {
		for _, step := range []string{"create", "write", "sync", "close", "rename"} {
			dir := t.TempDir()
			path := filepath.Join(dir, "subnet.env")
			if err := WriteFile(path, []byte("the old one"), 0o644); err != nil {
				t.Fatal(err)
			}
			err := Writer{Disk: faultyDisk{step: step, err: errno}}.WriteFile(path, []byte("the new one"), 0o644)
			if !errors.Is(err, errno) || !strings.Contains(err.Error(), path) || strings.Count(err.Error(), "\n") > 0 {
				t.Errorf("%v at %s: %v", errno, step, err)
			}
			wantFile(t, path, "the old one", 0o644)
			entries, err := os.ReadDir(dir)
			if err != nil || len(entries) != 1 {
				t.Errorf("%v at %s: the directory holds %v (%v)", errno, step, entries, err)
			}
			if err := WriteFile(path, []byte("the new one"), 0o644); err != nil {
				t.Errorf("%v at %s, cured: %v", errno, step, err)
			}
			wantFile(t, path, "the new one", 0o644)
		}
	}
}

func TestADirectoryThatCannotBeSyncedIsReportedAndTheNewFileStands(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subnet.env")
	err := Writer{Disk: faultyDisk{step: "sync the directory", err: syscall.EIO}}.WriteFile(path, []byte("a"), 0o644)
	if !errors.Is(err, syscall.EIO) {
		t.Errorf("got %v", err)
	}
	wantFile(t, path, "a", 0o644)
}

func TestWhatStandsInAFilesPlaceIsNamedWithItsCure(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "run", "subnet.env")
	if err := os.MkdirAll(path, 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("a"), 0o644); err == nil || !strings.Contains(err.Error(), "a directory is in the place of this file: remove it (rm -r "+path+")") {
		t.Errorf("a directory: %v", err)
	}
	if err := os.RemoveAll(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(filepath.Dir(path), nil, 0o644); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("a"), 0o644); err == nil || !strings.Contains(err.Error(), "a file is in the place of the directory "+filepath.Dir(path)) {
		t.Errorf("a file: %v", err)
	}
	if err := os.Remove(filepath.Dir(path)); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("a"), 0o644); err != nil {
		t.Errorf("cured: %v", err)
	}
}

func TestRemoveTempsTakesWhatADeadWriterLeftOfThisFileOnly(t *testing.T) {
	dir := t.TempDir()
	for _, name := range []string{".a.tmp1", ".b.tmp1", "a"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	RemoveTemps(filepath.Join(dir, "a"))
	entries, err := os.ReadDir(dir)
	if err != nil || len(entries) != 2 || entries[0].Name() != ".b.tmp1" || entries[1].Name() != "a" {
		t.Errorf("left: %v (%v)", entries, err)
	}
	RemoveTemps(filepath.Join(dir, "no", "such", "place"))
}

func TestARefusalIsWordedTheSameAtEachTry(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "subnet.env")
	for _, step := range []string{"create", "write", "rename"} {
		w := Writer{Disk: faultyDisk{step: step, err: &fs.PathError{Op: step, Path: filepath.Join(dir, "temp"), Err: syscall.ENOSPC}}}
		err := w.WriteFile(path, []byte("a"), 0o644)
		want := "write " + path + ": " + step + ": no space left on device: the file system of " + dir + " is full: make room (df -h " + dir + ")"
		if err == nil || err.Error() != want {
			t.Errorf("got %v, want %s", err, want)
		}
	}
}

// thief takes the first temporary file away, as a writer does that takes its owner for dead.
type thief struct {
	OSDisk
	stolen bool
}

func (d *thief) Rename(from, to string) error {
	if !d.stolen {
		d.stolen = true
		if err := os.Remove(from); err != nil {
			return err
		}
	}
	return d.OSDisk.Rename(from, to)
}

func TestAWriterThatWasTakenForDeadWritesAgain(t *testing.T) {
	dir := t.TempDir()
	other, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	path := filepath.Join(dir, "subnet.env")
	if err := (Writer{Disk: &thief{}}).WriteFile(path, []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "a", 0o644)
}
