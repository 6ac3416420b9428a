package install

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"syscall"
	"testing"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// program is a stand-in for a CNI plugin: it says its release when asked by hand, and its protocol versions to VERSION.
type program struct {
	release  string
	versions []string
}

var everyVersion = []string{"0.1.0", "0.2.0", "0.3.0", "0.3.1", "0.4.0", "1.0.0", "1.1.0"}

func (p program) text(name string) string {
	list, _ := json.Marshal(p.versions)
	return fmt.Sprintf("#!/bin/sh\n"+
		"if [ -z \"$CNI_COMMAND\" ]; then echo 'CNI %s plugin %s' >&2; exit 0; fi\n"+
		"cat >/dev/null; echo '{\"cniVersion\":\"1.1.0\",\"supportedVersions\":%s}'\n", name, p.release, list)
}

// shelf is a directory of plugins.
type shelf struct {
	t   *testing.T
	dir string
}

func newShelf(t *testing.T) shelf { return shelf{t: t, dir: t.TempDir()} }

func (s shelf) put(name string, p program) { s.write(name, p.text(name), 0o755) }

func (s shelf) write(name, text string, mode fs.FileMode) {
	s.t.Helper()
	if err := os.WriteFile(filepath.Join(s.dir, name), []byte(text), mode); err != nil {
		s.t.Fatal(err)
	}
}

func (s shelf) read(name string) string {
	data, err := os.ReadFile(filepath.Join(s.dir, name))
	if err != nil {
		return err.Error()
	}
	return string(data)
}

// chain is a shelf with all that the built-in conflist starts.
func chain(t *testing.T) shelf {
	s := newShelf(t)
	for _, name := range []string{Shim, "bridge", "host-local", "portmap", "bandwidth"} {
		s.put(name, program{"v1.10.0", everyVersion})
	}
	return s
}

func TestStandardPluginsAreReplacedOnlyWhenMissingOrOlder(t *testing.T) {
	src, dst := newShelf(t), newShelf(t)
	for _, name := range []string{"bandwidth", "bridge", "firewall", "flannel", "host-local", "loopback", "portmap", "tuning"} {
		src.put(name, program{"v1.10.0", everyVersion})
	}
	dst.put("bridge", program{"v1.9.1", everyVersion})                           // older
	dst.put("host-local", program{"v1.11.0", everyVersion})                      // newer
	dst.write("loopback", "", 0o755)                                             // what a power cut leaves
	dst.put("portmap", program{"version unknown", everyVersion[:6]})             // a distribution's build, older protocol
	dst.put("tuning", program{"version unknown", everyVersion})                  // a distribution's build, as good as ours
	dst.put("flannel", program{"v1.9.1-flannel3", everyVersion})                 // flannel's own shim: ours takes over
	dst.write("firewall", "#!/no/such/interpreter\n", 0o755)                     // does not start in this container
	dst.write("bandwidth", program{"v9.0.0", nil}.text("bandwidth"), 0o644)      // newer, but nobody may execute it
	dst.write("macvlan", program{"v1.0.0", everyVersion}.text("macvlan"), 0o755) // none of our business

	report, err := InstallPlugins(context.Background(), src.dir, dst.dir)
	if err != nil {
		t.Fatal(err)
	}
	want := Report{
		Installed: []Change{
			{"bandwidth", "was no program"},
			{"bridge", "is v1.9.1, ours is v1.10.0"},
			{"flannel", "was another build"},
			{"loopback", "was no program"},
			{"portmap", "speaks CNI 1.0.0, ours 1.1.0"},
		},
		Kept: []Change{
			{"firewall", "cannot be asked for its version here: fork/exec " + filepath.Join(dst.dir, "firewall") + ": no such file or directory"},
			{"host-local", "is v1.11.0, ours is v1.10.0"},
			{"tuning", "speaks CNI 1.1.0, ours 1.1.0"},
		},
	}
	if d := cmp.Diff(want, report); d != "" {
		t.Errorf("report (-want +got):\n%s", d)
	}
	for _, c := range want.Installed {
		if d := cmp.Diff(src.read(c.Name), dst.read(c.Name)); d != "" {
			t.Errorf("%s was not installed:\n%s", c.Name, d)
		}
		if !executable(filepath.Join(dst.dir, c.Name)) {
			t.Errorf("%s is not executable", c.Name)
		}
	}
	if d := cmp.Diff(program{"v1.11.0", everyVersion}.text("host-local"), dst.read("host-local")); d != "" {
		t.Errorf("a newer host-local was touched:\n%s", d)
	}
	left, _ := filepath.Glob(filepath.Join(dst.dir, ".*"))
	if len(left) > 0 {
		t.Errorf("temporary files stay behind: %v", left)
	}
}

// C-13: a package of the host removes or replaces /opt/cni/bin while we run.
func TestC13WhatAPackageUpgradeRemovesComesBack(t *testing.T) {
	src, dst := newShelf(t), newShelf(t)
	src.put("flannel", program{"v0.1.0", everyVersion})
	src.put("bridge", program{"v1.10.0", everyVersion})
	keeper := NewKeeper(src.dir, dst.dir)
	sync := func() Report {
		t.Helper()
		r, err := keeper.Sync(context.Background())
		if err != nil {
			t.Fatal(err)
		}
		return r
	}
	sync()
	if r := sync(); len(r.Installed)+len(r.Kept) > 0 {
		t.Errorf("a second pass over a good directory did something: %+v", r)
	}
	for _, damage := range []struct {
		name string
		do   func()
		want Report
	}{
		{"all removed", func() { _ = os.RemoveAll(dst.dir) }, Report{Installed: []Change{{"bridge", "was missing"}, {"flannel", "was missing"}}}},
		{"an older bridge", func() { dst.put("bridge", program{"v0.8.6", everyVersion}) }, Report{Installed: []Change{{"bridge", "is v0.8.6, ours is v1.10.0"}}}},
		{"a newer bridge", func() { dst.put("bridge", program{"v2.0.0", everyVersion}) }, Report{Kept: []Change{{"bridge", "is v2.0.0, ours is v1.10.0"}}}},
		{"flannel's shim", func() { dst.put("flannel", program{"v1.9.1", everyVersion}) }, Report{Installed: []Change{{"flannel", "was another build"}}}},
		{"no execute bit", func() { _ = os.Chmod(filepath.Join(dst.dir, "flannel"), 0o644) }, Report{Installed: []Change{{"flannel", "was another build"}}}},
	} {
		damage.do()
		if d := cmp.Diff(damage.want, sync()); d != "" {
			t.Errorf("%s (-want +got):\n%s", damage.name, d)
		}
		if r := sync(); len(r.Installed)+len(r.Kept) > 0 {
			t.Errorf("%s: the pass after the repair did something: %+v", damage.name, r)
		}
	}
}

func TestWithoutASourceNothingIsInstalledAndTheErrorSaysSo(t *testing.T) {
	_, err := InstallPlugins(context.Background(), filepath.Join(t.TempDir(), "none"), t.TempDir())
	if !errors.Is(err, ErrNoSource) {
		t.Errorf("want ErrNoSource, got %v", err)
	}
}

// K-04: SELinux, an immutable file, a directory of another user. Root without CAP_DAC_OVERRIDE is what the container is; a
// thread whose file-system user is nobody meets the same refusal.
func TestK04ARefusedWriteNamesThePathAndSELinux(t *testing.T) {
	if os.Getuid() != 0 {
		t.Skip("only root can become somebody else")
	}
	dir := t.TempDir()
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	if _, err := unix.SetfsuidRetUid(65534); err != nil {
		t.Fatal(err)
	}
	_, err := WriteConflist(subnet.Writer{}, dir, []byte(Builtin))
	if _, back := unix.SetfsuidRetUid(0); back != nil {
		t.Fatal(back)
	}
	if err == nil || !errors.Is(err, fs.ErrPermission) {
		t.Fatalf("want a permission error, got %v", err)
	}
	for _, word := range []string{filepath.Join(dir, ConflistName), "permission denied – SELinux?"} {
		if !strings.Contains(err.Error(), word) {
			t.Errorf("%q does not say %q", err, word)
		}
	}
	if err := subnet.Cure("/etc/cni/net.d/x", &fs.PathError{Op: "open", Path: "/etc/cni/net.d/x", Err: syscall.EROFS}); !strings.Contains(err.Error(), "writable") {
		t.Errorf("%q does not say what to do about a read-only mount", err)
	}
}

// K-04: the install step is idempotent over an existing read-only file.
func TestK04AReadOnlyFileIsReplaced(t *testing.T) {
	s := newShelf(t)
	s.write(ConflistName, "{}", 0o444)
	for i, want := range []bool{true, false} {
		changed, err := WriteConflist(subnet.Writer{}, s.dir, []byte(Builtin))
		if err != nil || changed != want {
			t.Errorf("pass %d: changed %t, error %v; want %t", i, changed, err, want)
		}
	}
	if d := cmp.Diff(Builtin, s.read(ConflistName)); d != "" {
		t.Error(d)
	}
}

func TestInstallConfCopiesAsFlannelsManifestExpects(t *testing.T) {
	src, dst := newShelf(t), newShelf(t)
	src.write("data", Builtin, 0o640)
	if err := os.Symlink("data", filepath.Join(src.dir, "cni-conf.json")); err != nil { // a ConfigMap's files are links
		t.Fatal(err)
	}
	from, to := filepath.Join(src.dir, "cni-conf.json"), filepath.Join(dst.dir, ConflistName)
	if err := Conf([]string{from, to}); err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(Builtin, dst.read(ConflistName)); d != "" {
		t.Error(d)
	}
	if info, err := os.Lstat(to); err != nil || info.Mode() != 0o640 {
		t.Errorf("want a regular file of mode 0640, got %v, %v", info.Mode(), err)
	}
	for want, args := range map[string][]string{
		"usage: install-conf SRC DEST (got 1 arguments)": {from},
		`install "/no/file": stat /no/file: no such`:     {"/no/file", to},
		"not a regular file":                             {src.dir, to},
		"is a directory; name the file":                  {from, dst.dir},
	} {
		if err := Conf(args); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("Conf(%q) = %v; want %q", args, err, want)
		}
	}
}
