package install

import (
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// K-07: what is ours goes, and nothing else does.
func TestK07UninstallRemovesOurFilesAndNoOthers(t *testing.T) {
	top := newShelf(t)
	dir := func(name string) shelf {
		s := shelf{t: t, dir: filepath.Join(top.dir, name)}
		if err := os.MkdirAll(s.dir, 0o755); err != nil {
			t.Fatal(err)
		}
		return s
	}
	conf, bin, src, run, state := dir("net.d"), dir("bin"), dir("src"), dir("run"), dir("state")
	conf.write(ConflistName, Builtin, 0o644)
	conf.write("99-loopback.conf", `{"type":"loopback"}`, 0o644)
	src.write(Shim, "ours", 0o755)
	bin.write(Shim, "ours", 0o755)
	bin.write("bridge", "everybody's", 0o755)
	run.write("subnet.env", "", 0o644)
	state.write("snapshot.json", "{}", 0o644)
	traces := Traces{
		ConfDir: conf.dir, BinDir: bin.dir, SourceDir: src.dir,
		Files: []string{filepath.Join(run.dir, "subnet.env"), filepath.Join(run.dir, "weft.json")},
		Dirs:  []string{state.dir, filepath.Join(top.dir, "none")},
	}
	want := [][]string{
		{filepath.Join(conf.dir, ConflistName), filepath.Join(run.dir, "subnet.env"), state.dir, filepath.Join(bin.dir, Shim)},
		nil, // a second time there is nothing left to do
	}
	for i := range want {
		got, err := Uninstall(traces)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(want[i], got); d != "" {
			t.Errorf("pass %d removed (-want +got):\n%s", i, d)
		}
	}
	for _, kept := range []string{"net.d/99-loopback.conf", "bin/bridge", "src/flannel"} {
		if _, err := os.Stat(filepath.Join(top.dir, kept)); err != nil {
			t.Errorf("%s is gone: %v", kept, err)
		}
	}
}

func TestUninstallLeavesFlannelsOwnShim(t *testing.T) {
	bin, src := newShelf(t), newShelf(t)
	bin.write(Shim, "flannel's", 0o755)
	traces := Traces{ConfDir: t.TempDir(), BinDir: bin.dir, SourceDir: src.dir}
	for _, ours := range []string{"", "ours"} { // outside the image, and inside
		if ours != "" {
			src.write(Shim, ours, 0o755)
		}
		got, err := Uninstall(traces)
		if err != nil || got != nil {
			t.Errorf("removed %v, error %v", got, err)
		}
	}
}

func TestUninstallGoesOnAfterAnError(t *testing.T) {
	top := newShelf(t)
	top.write("last", "", 0o644)
	inUse := filepath.Join(top.dir, "dir")
	if err := os.MkdirAll(filepath.Join(inUse, "child"), 0o755); err != nil {
		t.Fatal(err)
	}
	got, err := Uninstall(Traces{ConfDir: top.dir, Files: []string{inUse, filepath.Join(top.dir, "last")}})
	if err == nil {
		t.Error("a file that is a full directory is no error")
	}
	if d := cmp.Diff([]string{filepath.Join(top.dir, "last")}, got); d != "" {
		t.Errorf("removed (-want +got):\n%s", d)
	}
}
