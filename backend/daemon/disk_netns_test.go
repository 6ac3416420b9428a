package daemon

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/install"
	"github.com/weft-cni/weft/tests/apiserver"
	"github.com/weft-cni/weft/tests/nstest"
)

// withOwnMounts runs the test once more as a process that has a mount namespace of its own, and reports its result. It
// returns true inside of that process.
func withOwnMounts(t *testing.T) bool {
	t.Helper()
	nstest.NeedRoot(t)
	const inside = "WEFT_TEST_OWN_MOUNTS"
	if os.Getenv(inside) != "" {
		return true
	}
	cmd := exec.Command(os.Args[0], "-test.run=^"+t.Name()+"$", "-test.v")
	cmd.Env = append(os.Environ(), inside+"=1")
	cmd.SysProcAttr = &syscall.SysProcAttr{Unshareflags: syscall.CLONE_NEWNS, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	t.Logf("%s", out)
	if err != nil {
		t.Error(err)
	}
	if strings.Contains(string(out), "--- SKIP") {
		t.Skip("the same test in a mount namespace of its own skipped, and says why above")
	}
	return false
}

func TestD09AWholeAgentOnDisksThatFailIsNoCrashLoopAndNamesThem(t *testing.T) {
	t.Parallel()
	if !withOwnMounts(t) {
		return
	}
	api := apiserver.Start(t)
	t.Run("a disk that refuses is named, and followed once it is good again", func(t *testing.T) { meetsADiskThatRefuses(t, api) })
	t.Run("a start among broken files on broken disks", func(t *testing.T) { startsAmongBrokenFiles(t, api) })
}

// diskFault is one way in which a directory can refuse a write.
type diskFault struct {
	name string
	cure string // words of the agent's line
	do   func(dir, file string) error
	undo func(dir, file string) error
}

func diskFaults() []diskFault {
	return []diskFault{
		{name: "full", cure: "is full: make room", do: fill, undo: func(dir, _ string) error { return os.Remove(filepath.Join(dir, "filler")) }},
		{name: "inodes used up", cure: "has no inodes left", do: useInodes, undo: func(dir, _ string) error { return os.RemoveAll(filepath.Join(dir, "many")) }},
		{
			name: "read-only", cure: "is read-only",
			do:   func(dir, _ string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT|unix.MS_RDONLY, "") },
			undo: func(dir, _ string) error { return unix.Mount("", dir, "", unix.MS_REMOUNT, "") },
		},
		{
			name: "a directory in its place", cure: "a directory is in the place of this file",
			do: func(_, file string) error {
				return errors.Join(os.Remove(file), os.MkdirAll(filepath.Join(file, "x"), 0o755))
			},
			undo: func(_, file string) error { return os.RemoveAll(file) },
		},
		{
			name: "immutable", cure: "chattr -i",
			do:   func(_, file string) error { return setImmutable(file, true) },
			undo: func(_, file string) error { return setImmutable(file, false) },
		},
		{
			name: "directory of another user", cure: "chown root",
			do:   func(dir, _ string) error { return os.Chown(dir, 1000, 1000) },
			undo: func(dir, _ string) error { return os.Chown(dir, 0, 0) },
		},
	}
}

// fill leaves no room. What is freed meanwhile, as by a file that is replaced, is taken too.
func fill(dir, _ string) error {
	f, err := os.Create(filepath.Join(dir, "filler"))
	if err != nil {
		return err
	}
	defer f.Close()
	for block := make([]byte, 4096); err == nil; {
		_, err = f.Write(block)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return nil
}

func useInodes(dir, _ string) error {
	many := filepath.Join(dir, "many")
	err := os.Mkdir(many, 0o755)
	for i := 0; err == nil; i++ {
		err = os.WriteFile(filepath.Join(many, fmt.Sprint(i)), nil, 0o600)
	}
	if !errors.Is(err, syscall.ENOSPC) {
		return err
	}
	return nil
}

func setImmutable(file string, on bool) error {
	f, err := os.Open(file)
	if err != nil {
		return err
	}
	defer f.Close()
	const immutable = 0x10 // FS_IMMUTABLE_FL of linux/fs.h
	flags := 0
	if on {
		flags = immutable
	}
	return unix.IoctlSetPointerInt(int(f.Fd()), unix.FS_IOC_SETFLAGS, flags)
}

// kept are the files that the agent keeps while it runs, and contents that are whole and not what they should be.
func (w *crashWorld) kept() map[string]string {
	p := w.cfg.Paths
	return map[string]string{
		p.SubnetFile:     "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1400\nFLANNEL_IPMASQ=true\n",
		p.StatusFile():   `{"device":"flannel.1","ready":false,"reason":"somebody else","time":"2026-01-01T00:00:00Z"}`,
		p.SnapshotFile(): `{"Version":1}`,
		filepath.Join(p.CNIConf, install.ConflistName): `{"name":"cbr0","cniVersion":"1.0.0","plugins":[{"type":"flannel"}]}`,
		filepath.Join(p.CNIBin, "flannel"):             "#!/bin/sh\n",
	}
}

// ownDisks puts each directory that the agent writes to on a file system of its own, with little room.
func (w *crashWorld) ownDisks() {
	w.t.Helper()
	p := w.cfg.Paths
	for _, dir := range []string{filepath.Dir(p.SubnetFile), p.StateDir, p.CNIConf, p.CNIBin} {
		if err := unix.Mount("tmpfs", dir, "tmpfs", 0, "size=256k,nr_inodes=64,mode=755"); err != nil {
			w.t.Fatal(err)
		}
		w.t.Cleanup(func() { _ = unix.Unmount(dir, unix.MNT_DETACH) }) // the namespace would end it too, but later
	}
}

// meetsADiskThatRefuses plays every fault of a disk with each file that the agent keeps, on a whole agent with no more rights than its
// container has: it says what is wrong and goes on, and the file is right soon after the disk is.
func meetsADiskThatRefuses(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	w.ownDisks()
	a := w.start(0)
	if !w.through(a) {
		t.Fatalf("the agent died:\n%s", a.log)
	}
	from, to := w.meet()
	nstest.Eventually(t, crashPatience, func() error { return from.CanPing(to) })
	right := map[string]string{}
	for file := range w.kept() {
		text, err := os.ReadFile(file)
		if err != nil {
			t.Fatal(err)
		}
		right[file] = string(text)
	}
	ping := from.StartPing(nstest.Ping{Dst: to, Interval: 20 * time.Millisecond})
	var heals []string
	for _, fault := range diskFaults() {
		for file, wrong := range w.kept() {
			took := w.refuse(a, fault, refusal{file: file, wrong: wrong, right: right[file]})
			heals = append(heals, fmt.Sprintf("%-26s %-20s %s", fault.name, filepath.Base(file), took.Round(time.Millisecond)))
		}
	}
	if result := ping.Stop(); len(result.Lost) > 0 {
		t.Errorf("packets were lost: %s", result)
	}
	t.Logf("healed within:\n%s", strings.Join(heals, "\n"))
	if left := w.temps(); len(left) > 0 {
		t.Errorf("left over: %v", left)
	}
	w.stop(a)
	if lines := strings.Count(a.log.String(), "\n"); lines > 600 {
		t.Errorf("%d lines in the log", lines)
	}
}

// refusal is one file, with a content that the agent has to replace and cannot.
type refusal struct{ file, wrong, right string }

// refuse plays one fault with one file and returns how long after its end the file was right.
func (w *crashWorld) refuse(a *crashAgent, fault diskFault, r refusal) time.Duration {
	w.t.Helper()
	dir := filepath.Dir(r.file)
	said := a.log.Len()
	// The agent mends the file as soon as it is wrong, so the wrong content and the fault have to come together: the agent
	// is stopped meanwhile.
	pid := a.cmd.Process.Pid
	if err := syscall.Kill(pid, syscall.SIGSTOP); err != nil {
		w.t.Fatal(err)
	}
	info, err := os.Stat(r.file)
	if err != nil {
		w.t.Fatal(err)
	}
	w.write(r.file, r.wrong)
	err = errors.Join(os.Chmod(r.file, info.Mode()), fault.do(dir, r.file))
	if cerr := syscall.Kill(pid, syscall.SIGCONT); err != nil || cerr != nil {
		w.t.Fatalf("%s, %s: %v, %v", fault.name, r.file, err, cerr)
	}
	nstest.Eventually(w.t, crashPatience, func() error {
		select {
		case <-a.ended:
			w.t.Fatalf("%s, %s: the agent ended: %v\n%s", fault.name, r.file, a.err, a.log)
		default:
		}
		for line := range strings.Lines(a.log.From(said)) {
			if strings.Contains(line, r.file) && strings.Contains(line, fault.cure) {
				return nil
			}
		}
		return fmt.Errorf("%s, %s: no line with the path and %q:\n%s", fault.name, r.file, fault.cure, a.log.From(said))
	})
	if fault.name == "read-only" { // one of them is enough
		w.calm(fault.name + ", " + r.file)
	}
	if text, err := os.ReadFile(r.file); err == nil && string(text) != r.wrong {
		w.t.Errorf("%s, %s: refused and yet %q", fault.name, r.file, text)
	}
	if err := fault.undo(dir, r.file); err != nil {
		w.t.Fatal(err)
	}
	return nstest.Eventually(w.t, crashPatience, func() error {
		text, err := os.ReadFile(r.file)
		if err != nil || !same(r, string(text)) {
			return fmt.Errorf("%s, %s: healed, and still %q (%s)\n%s", fault.name, r.file, text, fmt.Sprint(err), a.log.From(said))
		}
		return w.done()
	})
}

// calm holds the loops to what they may do while something fails: about one round a second, whatever pokes them.
func (w *crashWorld) calm(what string) {
	w.t.Helper()
	const long, most = 2 * time.Second, 8
	before := w.rounds()
	time.Sleep(long) // how much is done in a given time is the question
	for loop, n := range w.rounds() {
		if n -= before[loop]; n > most {
			w.t.Errorf("%s: loop %q turned %d times in %s", what, loop, n, long)
		}
	}
}

// same compares what the file holds with what it should; the moment in weft.json is another one.
func same(r refusal, text string) bool {
	if filepath.Base(r.file) == "weft.json" {
		return strings.Contains(text, `"ready":true`)
	}
	return revision.ReplaceAllString(text, "") == revision.ReplaceAllString(r.right, "")
}

// startsAmongBrokenFiles is about a start: whatever lies there, and whatever the disks refuse, the agent stays, and is ready once it can be.
func startsAmongBrokenFiles(t *testing.T, api *apiserver.API) {
	w := newCrashWorld(t, api)
	w.ownDisks()
	whole := w.start(0)
	if !w.through(whole) {
		t.Fatalf("the agent died:\n%s", whole.log)
	}
	w.stop(whole)
	want := w.picture()
	p := w.cfg.Paths
	files := append((&daemon{cfg: w.cfg}).written(), p.CollectFile())
	for _, content := range []string{"", "{", "FLANNEL_NETWORK", "\x00\xff\x00\xff garbage", `{"Version":1,"Snapshot":{}}`, "half"} {
		for _, file := range files {
			text := content
			if content == "half" {
				good, err := os.ReadFile(file)
				if err != nil {
					t.Fatal(err)
				}
				text = string(good[:len(good)/2])
			}
			w.write(file, text)
		}
		a := w.start(0)
		if !w.through(a) {
			t.Fatalf("%q: the agent died:\n%s", content, a.log)
		}
		nstest.Eventually(t, crashPatience, func() error {
			if got := w.picture(); got != want {
				return fmt.Errorf("%q: want, got: %s\n%s", content, cmp.Diff(want, got), a.log)
			}
			return nil
		})
		w.stop(a)
	}
	dirs := []string{filepath.Dir(p.SubnetFile), p.StateDir, p.CNIConf, p.CNIBin}
	for _, fault := range diskFaults()[:3] {
		w.wipe()
		for _, dir := range dirs {
			if err := fault.do(dir, ""); err != nil {
				t.Fatal(err)
			}
		}
		a := w.start(0)
		// The data plane does not need the disk: the device comes up, with every peer.
		nstest.Eventually(t, crashPatience, func() error {
			state, err := w.conn.Dump(t.Context())
			if err == nil && len(state.Routes) != 3 {
				err = fmt.Errorf("%s: %s\n%s", fault.name, state, a.log)
			}
			return err
		})
		nstest.Eventually(t, crashPatience, func() error {
			if err := w.readyz(); err == nil || !strings.Contains(err.Error(), fault.cure) || !strings.Contains(err.Error(), filepath.Dir(p.SubnetFile)) {
				return fmt.Errorf("%s: /readyz says %s", fault.name, fmt.Sprint(err))
			}
			return nil
		})
		for _, dir := range dirs {
			if err := fault.undo(dir, ""); err != nil {
				t.Fatal(err)
			}
		}
		if !w.through(a) {
			t.Fatalf("%s: the agent died:\n%s", fault.name, a.log)
		}
		w.stop(a)
	}
}
