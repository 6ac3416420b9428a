package daemon

import (
	"os"
	"path/filepath"
	"strings"
	"testing"

	"golang.org/x/sys/unix"
)

// C-13, K-08: `rm -r /opt/cni/bin`, or /etc/cni/net.d as kubeadm advises, takes the directory itself, and a container goes on
// seeing what has no name any more.
func TestC13ADirectoryThatIsRemovedOnTheHostIsAReasonToStartAnew(t *testing.T) {
	if !withOwnMounts(t) {
		return
	}
	for name, remove := range map[string]func(host, seen string) error{
		"removed":                            func(host, _ string) error { return os.Remove(host) },
		"removed and made again":             func(host, _ string) error { return remade(host) },
		"unmounted, as by systemd's sandbox": func(_, seen string) error { return unix.Unmount(seen, unix.MNT_DETACH) },
	} {
		t.Run(name, func(t *testing.T) {
			host, seen, plain := t.TempDir(), filepath.Join(t.TempDir(), "net.d"), filepath.Join(t.TempDir(), "plain")
			for _, dir := range []string{seen, plain} {
				if err := os.Mkdir(dir, 0o755); err != nil {
					t.Fatal(err)
				}
			}
			if err := unix.Mount(host, seen, "", unix.MS_BIND, ""); err != nil {
				t.Fatal(err)
			}
			t.Cleanup(func() { _ = unix.Unmount(seen, unix.MNT_DETACH) })
			m := newMounts([]string{seen, plain, "/does/not/exist"})
			if err := os.WriteFile(filepath.Join(seen, "file"), nil, 0o600); err != nil {
				t.Fatal(err)
			}
			if err := os.Remove(filepath.Join(seen, "file")); err != nil {
				t.Fatal(err)
			}
			if err := remade(plain); err != nil { // where nothing is mounted, whoever writes there finds the new one
				t.Fatal(err)
			}
			if err := m.lost(); err != nil {
				t.Fatalf("nothing happened: %v", err)
			}
			if err := remove(host, seen); err != nil {
				t.Fatal(err)
			}
			if err := m.lost(); err == nil || !strings.Contains(err.Error(), seen+" was removed") {
				t.Fatalf("got %v", err)
			}
			if err := m.watch(t.Context()); err == nil {
				t.Error("the watch ended without a reason")
			}
			if again := newMounts([]string{seen}).lost(); again != nil {
				t.Errorf("an agent that is started like that again would end again: %v", again)
			}
		})
	}
}

func remade(dir string) error {
	if err := os.Remove(dir); err != nil {
		return err
	}
	return os.Mkdir(dir, 0o755)
}
