package subnet

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"
)

func TestWriteFileMakesTheDirectoryAndTheModeWhateverTheUmask(t *testing.T) {
	old := syscall.Umask(0o027)
	defer syscall.Umask(old)
	path := filepath.Join(t.TempDir(), "run", "flannel", "subnet.env")
	if err := WriteFile(path, []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "a", 0o644)
	if err := os.Chmod(path, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("bb"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantFile(t, path, "bb", 0o600)
}

func TestWriteFileWorksOnABareName(t *testing.T) {
	t.Chdir(t.TempDir())
	if err := WriteFile("subnet.env", []byte("a"), 0o644); err != nil {
		t.Fatal(err)
	}
	wantFile(t, "subnet.env", "a", 0o644)
}

func TestWriteFileRemovesTempsOfDeadWritersOnly(t *testing.T) {
	dir := t.TempDir()
	path := filepath.Join(dir, "a[b].env")
	for _, name := range []string{".a[b].env.tmp1", ".a[b].env.tmp2", ".ab.env.tmp1", ".other.env.tmp1", "a[b].env.tmp1"} {
		if err := os.WriteFile(filepath.Join(dir, name), nil, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	if err := os.Mkdir(filepath.Join(dir, ".a[b].env.tmpdir"), 0o755); err != nil {
		t.Fatal(err)
	}
	other, err := os.Open(dir)
	if err != nil {
		t.Fatal(err)
	}
	if err := syscall.Flock(int(other.Fd()), syscall.LOCK_EX); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Errorf("a writer that hangs stops the others: %v", err)
	}
	if _, err := os.Stat(filepath.Join(dir, ".a[b].env.tmp1")); err != nil {
		t.Errorf("removed while another writer is at work: %v", err)
	}
	if err := other.Close(); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(path, []byte("x"), 0o644); err != nil {
		t.Fatal(err)
	}
	entries, err := os.ReadDir(dir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, e := range entries {
		names = append(names, e.Name())
	}
	if got, want := strings.Join(names, " "), ".a[b].env.tmpdir .ab.env.tmp1 .other.env.tmp1 a[b].env a[b].env.tmp1"; got != want {
		t.Errorf("left: %s\nwant: %s", got, want)
	}
}

func TestWriteFileLeavesTheOldFileAndNoTempWhenItCannotWrite(t *testing.T) {
	dir := t.TempDir()
	if err := os.WriteFile(filepath.Join(dir, "file"), nil, 0o600); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "file", "x"), nil, 0o644); !errors.Is(err, syscall.ENOTDIR) {
		t.Errorf("directory is a file: %v", err)
	}
	if err := os.Mkdir(filepath.Join(dir, "taken"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := WriteFile(filepath.Join(dir, "taken"), nil, 0o644); err == nil {
		t.Error("wrote over a directory")
	}
	if temps, err := filepath.Glob(filepath.Join(dir, ".*tmp*")); err != nil || len(temps) > 0 {
		t.Errorf("left %v %v", temps, err)
	}
}

func TestWriteFileServesManyWritersAndReadersSeeNoPart(t *testing.T) {
	path := filepath.Join(t.TempDir(), "f")
	content := func(i int) string { return strings.Repeat(fmt.Sprint(i), 10000) }
	if err := WriteFile(path, []byte(content(0)), 0o644); err != nil {
		t.Fatal(err)
	}
	var writers, readers sync.WaitGroup
	stop := make(chan struct{})
	readers.Go(func() {
		for {
			select {
			case <-stop:
				return
			default:
			}
			got, err := os.ReadFile(path)
			if err != nil || len(got) != 10000 || strings.Trim(string(got), string(got[:1])) != "" {
				t.Errorf("read %d bytes, %v", len(got), err)
				return
			}
		}
	})
	for i := range 4 {
		writers.Go(func() {
			for range 50 {
				if err := WriteFile(path, []byte(content(i)), 0o644); err != nil {
					t.Error(err)
				}
			}
		})
	}
	writers.Wait()
	close(stop)
	readers.Wait()
}

// TestD09KillsDuringWritesLeaveWholeFiles kills a writer at random moments; the writer is this test binary.
func TestD09KillsDuringWritesLeaveWholeFiles(t *testing.T) {
	if path := os.Getenv("WEFT_TEST_WRITE"); path != "" {
		for i := 0; ; i++ {
			if err := WriteFile(path, []byte(strings.Repeat(fmt.Sprint(i%10), 100000)), 0o644); err != nil {
				t.Fatal(err)
			}
		}
	}
	dir := t.TempDir()
	path := filepath.Join(dir, "subnet.env")
	for i := range 10 {
		writer := exec.Command(os.Args[0], "-test.run=^TestD09KillsDuringWritesLeaveWholeFiles$")
		writer.Env = append(os.Environ(), "WEFT_TEST_WRITE="+path)
		if err := writer.Start(); err != nil {
			t.Fatal(err)
		}
		started := time.Now()
		for { // until this round's writer has written, then a little on
			info, err := os.Stat(path)
			if err == nil && info.ModTime().After(started) || time.Since(started) > 20*time.Second {
				break
			}
			time.Sleep(time.Millisecond)
		}
		time.Sleep(time.Duration(i) * time.Millisecond)
		if err := writer.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		_ = writer.Wait() // killed is how it ends
		got, err := os.ReadFile(path)
		if err != nil || len(got) != 100000 || strings.Trim(string(got), string(got[:1])) != "" {
			t.Fatalf("round %d: %d bytes, %v", i, len(got), err)
		}
	}
	if err := WriteFile(path, []byte("done"), 0o644); err != nil {
		t.Fatal(err)
	}
	if entries, err := os.ReadDir(dir); err != nil || len(entries) != 1 {
		t.Errorf("left over: %v %v", entries, err)
	}
}

func wantFile(t *testing.T, path, content string, mode fs.FileMode) {
	t.Helper()
	got, err := os.ReadFile(path)
	if err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(path)
	if err != nil {
		t.Fatal(err)
	}
	if string(got) != content || info.Mode().Perm() != mode {
		t.Errorf("%s: %q %v, want %q %v", path, got, info.Mode().Perm(), content, mode)
	}
}
