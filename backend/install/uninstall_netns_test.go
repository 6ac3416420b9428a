package install

import (
	"os"
	"path/filepath"
	"runtime"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"
)

// K-07: in a container the state directory is a mount point, which cannot be removed but must be empty afterwards, and must
// not keep the uninstall from being done.
func TestK07AMountPointIsEmptiedAndIsNoError(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("mounting needs root")
	}
	dir := t.TempDir()
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread() // and never unlocked: the thread and its mount namespace end with this goroutine
		if err := unix.Unshare(unix.CLONE_FS | unix.CLONE_NEWNS); err != nil {
			t.Errorf("unshare: %v", err)
			return
		}
		if err := unix.Mount("", "/", "", unix.MS_REC|unix.MS_PRIVATE, ""); err != nil {
			t.Errorf("make mounts private: %v", err)
			return
		}
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, ""); err != nil {
			t.Errorf("mount: %v", err)
			return
		}
		if err := os.MkdirAll(filepath.Join(dir, "deep", "er"), 0o755); err != nil {
			t.Error(err)
			return
		}
		for _, want := range [][]string{{dir}, nil} {
			got, err := Uninstall(Traces{ConfDir: t.TempDir(), Dirs: []string{dir}})
			if err != nil {
				t.Error(err)
			}
			if d := cmp.Diff(want, got); d != "" {
				t.Errorf("removed (-want +got):\n%s", d)
			}
		}
		if left, err := os.ReadDir(dir); err != nil || len(left) > 0 {
			t.Errorf("left: %v, %v", left, err)
		}
	}()
	<-done
}
