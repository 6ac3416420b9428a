package wgkey

import (
	"encoding/base64"
	"errors"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/weft-cni/weft/subnet"
)

// flannelKey is a private key as wg genkey prints it.
const flannelKey = "yAnz5TF+lXXJte14tji3zlMNq+hd2rYUIgJBgB3fBmk="

func scratch(t *testing.T) File {
	t.Helper()
	dir := t.TempDir()
	return File{Path: filepath.Join(dir, "weft", "wgkey"), Adopt: filepath.Join(dir, "flannel-wgkey")}
}

func put(t *testing.T, path, text string, perm fs.FileMode) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(text), perm); err != nil {
		t.Fatal(err)
	}
}

// load loads and checks what is true of every key that is given out.
func load(t *testing.T, f File, note string) subnet.Secret {
	t.Helper()
	key, said, err := f.Load()
	if err != nil {
		t.Fatal(err)
	}
	if (said == "") != (note == "") || !strings.Contains(said, note) {
		t.Errorf("note %q, want %q", said, note)
	}
	if key != clamp(key) || key.IsZero() {
		t.Error("the key is not one that the kernel would say")
	}
	info, err := os.Stat(f.Path)
	if err != nil || info.Mode().Perm()&0o077 != 0 {
		t.Errorf("%v, %v", info, err)
	}
	if text := base64.StdEncoding.EncodeToString(key[:]); strings.Contains(said, text) {
		t.Error("the note shows the key")
	}
	return key
}

func TestAKeyIsMadeOnceAndKept(t *testing.T) {
	f := scratch(t)
	key := load(t, f, "is made in")
	if again := load(t, f, ""); again != key {
		t.Error("another key after a restart")
	}
	if info, _ := os.Stat(f.Path); info.Mode().Perm() != 0o600 {
		t.Errorf("mode %v", info.Mode())
	}
	if other := load(t, scratch(t), "is made in"); other == key {
		t.Error("two nodes make one key")
	}
}

func TestFlannelsKeyIsAdoptedOnce(t *testing.T) {
	f := scratch(t)
	put(t, f.Adopt, flannelKey, 0o400)
	key := load(t, f, "is kept in "+f.Path)
	if base64.StdEncoding.EncodeToString(key[:]) != flannelKey {
		t.Error("the identity changed")
	}
	put(t, f.Adopt+".new", base64.StdEncoding.EncodeToString(make([]byte, 32)), 0o400)
	if err := os.Remove(f.Adopt); err != nil { // as a reboot does
		t.Fatal(err)
	}
	if load(t, f, "") != key {
		t.Error("the identity changed at the reboot")
	}
}

// Our image under flannel's manifest: the state is in the container and goes with it, and /run/flannel is the host's.
func TestTheKeyOutlivesAPodThatHasNoPlaceOfItsOwn(t *testing.T) {
	f := scratch(t)
	key := load(t, f, "is made in")
	for range 2 {
		if err := os.Remove(f.Path); err != nil {
			t.Fatal(err)
		}
		if load(t, f, "is kept in "+f.Path) != key {
			t.Error("the identity changed with the pod")
		}
		var err error
		if key, err = f.Renew(); err != nil { // as a clone does
			t.Fatal(err)
		}
	}
	if info, err := os.Stat(f.Adopt); err != nil || info.Mode().Perm() != 0o400 {
		t.Errorf("%v, %v", info, err)
	}
}

func TestAFileWithoutAKeyIsReplaced(t *testing.T) {
	for name, text := range map[string]string{
		"12.16 empty after a crash": "", "blank": " \n", "cut": flannelKey[:20], "rubbish": "\x00\xff", "zero": strings.Repeat("A", 43) + "=",
		"long": strings.Repeat("A", 1<<20), "two keys": flannelKey + "\n" + flannelKey,
	} {
		t.Run(name, func(t *testing.T) {
			f := scratch(t)
			put(t, f.Path, text, 0o444)
			put(t, f.Adopt, flannelKey, 0o400) // was adopted long ago, if ever
			key := load(t, f, "cannot be used, a new one takes its place")
			if load(t, f, "") != key {
				t.Error("another key after a restart")
			}
		})
	}
}

func TestABadKeyToAdoptIsPassedOver(t *testing.T) {
	f := scratch(t)
	put(t, f.Adopt, "x", 0o400)
	load(t, f, "is made in")
}

func TestTheModeOfAnOpenKeyIsTightened(t *testing.T) {
	f := scratch(t)
	put(t, f.Path, flannelKey+"\n", 0o644)
	load(t, f, "other users could read")
	load(t, f, "")
}

func TestAKeyThatNobodyClampedIsTheSameKey(t *testing.T) {
	f := scratch(t)
	raw := [32]byte{0: 0xff, 31: 0xff}
	put(t, f.Path, base64.StdEncoding.EncodeToString(raw[:]), 0o600)
	if key := load(t, f, ""); key[0] != 0xf8 || key[31] != 0x7f {
		t.Error("not clamped")
	}
}

func TestWhatCannotBeReadStaysAsItIs(t *testing.T) {
	f := scratch(t)
	if err := os.MkdirAll(f.Path, 0o755); err != nil {
		t.Fatal(err)
	}
	if _, _, err := f.Load(); err == nil || !strings.Contains(err.Error(), "rm -r "+f.Path) {
		t.Errorf("%v", err)
	}
}

func TestRenewMakesAnother(t *testing.T) {
	f := scratch(t)
	old := load(t, f, "is made in")
	key, err := f.Renew()
	if err != nil || key == old || load(t, f, "") != key {
		t.Errorf("%v", err)
	}
}

// brokenDisk fails at one of its steps.
type brokenDisk struct {
	subnet.OSDisk
	step string
}

var errBroken = errors.New("the disk is broken")

func (d brokenDisk) Create(dir, pattern string, perm fs.FileMode) (subnet.DiskFile, error) {
	if d.step == "create" {
		return nil, errBroken
	}
	return d.OSDisk.Create(dir, pattern, perm)
}

func (d brokenDisk) Rename(from, to string) error {
	if d.step == "rename" {
		return errBroken
	}
	return d.OSDisk.Rename(from, to)
}

func TestNoKeyIsGivenOutThatIsNotOnTheDisk(t *testing.T) {
	for _, step := range []string{"create", "rename"} {
		f := scratch(t)
		f.Writer.Disk = brokenDisk{step: step}
		if key, _, err := f.Load(); !errors.Is(err, errBroken) || !key.IsZero() {
			t.Errorf("%s: %v, %v", step, key, err)
		}
		f.Writer.Disk = nil
		load(t, f, "is made in")
	}
}

func TestAnOperatorsOwnFileTakesThePlaceOfBoth(t *testing.T) {
	if got, want := In("/var/lib/weft", "/run/flannel", ""), (File{Path: "/var/lib/weft/wgkey", Adopt: "/run/flannel/wgkey"}); got != want {
		t.Errorf("%+v", got)
	}
	if got := In("/var/lib/weft", "/run/flannel", "/etc/wg.key"); got != (File{Path: "/etc/wg.key"}) {
		t.Errorf("%+v", got)
	}
}

func TestFlannelGetsTheKeyBackAsItWritesIt(t *testing.T) {
	state, run := t.TempDir(), filepath.Join(t.TempDir(), "run", "flannel")
	f := In(state, run, "")
	given, err := f.HandBack()
	if _, statErr := os.Stat(f.Adopt); given || err != nil || statErr == nil {
		t.Fatalf("without a key: %v, %v, %v", given, err, statErr)
	}
	key, _, err := f.Load() // of a node that had none before, as after a reboot under weft
	if err != nil {
		t.Fatal(err)
	}
	for there, perm := range map[string]os.FileMode{"": 0, "of an earlier flannel": 0o400, "of a careless one": 0o644} {
		if there != "" {
			_ = os.Remove(f.Adopt) // of the row before, if that was not the first
			put(t, f.Adopt, there, perm)
		}
		given, err := f.HandBack()
		text, readErr := os.ReadFile(f.Adopt)
		info, statErr := os.Stat(f.Adopt)
		if err := errors.Join(err, readErr, statErr); err != nil || !given {
			t.Fatal(given, err)
		}
		if want := base64.StdEncoding.EncodeToString(key[:]); string(text) != want || info.Mode().Perm() != 0o400 {
			t.Errorf("%q: flannel finds %d bytes, mode %v, want %d and 0400", there, len(text), info.Mode(), len(want))
		}
	}
	if err := os.RemoveAll(state); err != nil {
		t.Fatal(err)
	}
	if given, err := f.HandBack(); given || err != nil {
		t.Errorf("again, when ours is gone: %v, %v", given, err)
	}
	if back, _, err := f.Load(); err != nil || back != key {
		t.Errorf("to weft again: another key, %v", err)
	}
	own := In(state, run, filepath.Join(state, "own"))
	if _, _, err := own.Load(); err != nil {
		t.Fatal(err)
	}
	if given, err := own.HandBack(); given || err != nil {
		t.Errorf("a key of the operator's own is where it is for both: %v, %v", given, err)
	}
}
