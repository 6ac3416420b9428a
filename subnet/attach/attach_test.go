package attach_test

import (
	"context"
	"errors"
	"net"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet/attach"
)

func note(id string, addrs ...string) attach.Note {
	n := attach.Note{ContainerID: id, IfName: "eth0", Namespace: "shop", Pod: "web-1", UID: "6f9c", At: 7}
	for _, a := range addrs {
		n.Addrs = append(n.Addrs, netip.MustParseAddr(a))
	}
	return n
}

func TestNoteOfReadsTheArgumentsOfARuntime(t *testing.T) {
	for args, want := range map[string]attach.Note{
		"IgnoreUnknown=1;K8S_POD_NAMESPACE=shop;K8S_POD_NAME=web-1;K8S_POD_INFRA_CONTAINER_ID=c1;K8S_POD_UID=6f9c": {ContainerID: "c1", IfName: "eth0", Namespace: "shop", Pod: "web-1", UID: "6f9c"},
		"K8S_POD_NAME=web-1;K8S_POD_NAMESPACE=shop":                                                                {ContainerID: "c1", IfName: "eth0", Namespace: "shop", Pod: "web-1"},
	} {
		if n, ok := attach.NoteOf("c1", "eth0", args); !ok || !n.Equal(want) {
			t.Errorf("%s: %t %s", args, ok, cmp.Diff(want, n, cmp.Comparer(netip.Addr.Compare)))
		}
	}
	for _, args := range []string{"", "IgnoreUnknown=1", "K8S_POD_NAME=web-1", "K8S_POD_NAMESPACE=shop", ";;=;"} {
		if n, ok := attach.NoteOf("c1", "eth0", args); ok {
			t.Errorf("%q names %+v", args, n)
		}
	}
}

func TestNotesAreWrittenWholeReadBackAndRemoved(t *testing.T) {
	notes := attach.Notes{Dir: filepath.Join(t.TempDir(), "pods")}
	if there, err := notes.Write(note("c1", "10.244.1.2")); there || err != nil {
		t.Errorf("without a folder: %t, %v", there, err)
	}
	if err := notes.Make(); err != nil {
		t.Fatal(err)
	}
	want := note("c1", "10.244.1.2", "fd00::2")
	for range 2 {
		if there, err := notes.Write(want); !there || err != nil {
			t.Fatalf("%t, %v", there, err)
		}
	}
	names, err := notes.Names()
	if d := cmp.Diff([]string{want.Name()}, names); d != "" || err != nil {
		t.Errorf("names (-want +got): %s %v", d, err)
	}
	if got, err := notes.Read(want.Name()); err != nil || !got.Equal(want) {
		t.Errorf("read %+v, %v", got, err)
	}
	if got, err := notes.Remove("c1", "eth0"); err != nil || !got.Equal(want) {
		t.Errorf("removed %+v, %v", got, err)
	}
	if got, err := notes.Remove("c1", "eth0"); err != nil || got.Pod != "" {
		t.Errorf("removed again %+v, %v", got, err)
	}
	if names, _ := notes.Names(); len(names) > 0 {
		t.Errorf("left: %v", names)
	}
}

func TestANoteThatCannotBeWrittenIsNamedWithItsCure(t *testing.T) {
	notes := attach.Notes{Dir: filepath.Join(t.TempDir(), "pods")}
	if err := os.WriteFile(notes.Dir, nil, 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := notes.Write(note("c1", "10.244.1.2"))
	for _, err := range []error{err, notes.Make()} {
		if err == nil || !strings.Contains(err.Error(), "remove it") || !strings.Contains(err.Error(), notes.Dir) {
			t.Error(err)
		}
	}
}

func TestNotesThatAreBrokenOrOfAnotherNameAreRefused(t *testing.T) {
	notes := attach.Notes{Dir: t.TempDir()}
	for name, text := range map[string]string{
		"c1@eth0": "", "c2@eth0": "{", "c3@eth0": `{"containerID":"c9","ifName":"eth0","namespace":"a","pod":"b","addrs":["10.0.0.1"]}`,
		"c4@eth0": `{"containerID":"c4","ifName":"eth0","namespace":"a","pod":"b","addrs":[]}`,
		"c5@eth0": `{"containerID":"c5","ifName":"eth0","namespace":"a","pod":"b","addrs":[""]}`,
		"c6@eth0": `{"containerID":"c6","ifName":"eth0","namespace":"../a","pod":"b","addrs":["10.0.0.1"]}`,
		"c7@eth0": strings.Repeat(" ", 5000),
		"c8@eth0": `{"containerID":"c8","ifName":"a/b","namespace":"a","pod":"b","addrs":["fe80::1%eth0"]}`,
	} {
		if err := os.WriteFile(filepath.Join(notes.Dir, name), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := notes.Read(name); err == nil {
			t.Errorf("%s: %+v", name, n)
		}
		if _, err := notes.Remove(name[:2], "eth0"); err != nil {
			t.Errorf("remove %s: %v", name, err)
		}
	}
	if names, err := notes.Names(); len(names) > 0 || err != nil {
		t.Errorf("left: %v, %v", names, err)
	}
}

func FuzzParseNote(f *testing.F) {
	f.Add([]byte(`{"containerID":"c1","ifName":"eth0","namespace":"shop","pod":"web-1","uid":"6f9c","addrs":["10.0.0.1","::ffff:10.0.0.2"],"at":7}`))
	f.Fuzz(func(t *testing.T, data []byte) {
		n, err := attach.ParseNote(data)
		if err != nil {
			return
		}
		if strings.ContainsAny(n.Name(), "/\x00") || n.Name()[0] == '.' {
			t.Errorf("file name %q", n.Name())
		}
		dir := attach.Notes{Dir: t.TempDir()}
		if len(n.Name()) > 200 {
			return // longer than a file name may be; Write says so
		}
		if _, err := dir.Write(n); err != nil {
			t.Fatal(err)
		}
		if got, err := dir.Read(n.Name()); err != nil || !got.Equal(n) {
			t.Errorf("read back %+v, %v", got, err)
		}
	})
}

// agent answers questions as judge says.
func agent(t *testing.T, judge func(context.Context, attach.Note) error) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "s")
	l, err := net.Listen("unix", path)
	if err != nil {
		t.Fatal(err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			c, err := l.Accept()
			if err != nil {
				return
			}
			_ = attach.Serve(t.Context(), c, judge)
		}
	}()
	t.Cleanup(func() { _ = l.Close(); <-done })
	return path
}

func TestAskWaitsForTheAgentAndTellsWhyNot(t *testing.T) {
	var asked attach.Note
	socket := agent(t, func(_ context.Context, n attach.Note) error { asked = n; return nil })
	if err := attach.Ask(t.Context(), socket, note("c1", "10.244.1.2")); err != nil || !asked.Equal(note("c1", "10.244.1.2")) {
		t.Errorf("asked %+v: %v", asked, err)
	}
	socket = agent(t, func(context.Context, attach.Note) error { return errors.New("nft says no") })
	err := attach.Ask(t.Context(), socket, note("c1", "10.244.1.2"))
	if !errors.Is(err, attach.ErrNotJudged) || !strings.Contains(err.Error(), "nft says no") {
		t.Errorf("refused: %v", err)
	}
}

func TestAskGivesUpOnAnAgentThatIsAwayDeadOrSilent(t *testing.T) {
	dead := filepath.Join(t.TempDir(), "dead")
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: dead, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	_ = l.Close()
	silent := agent(t, func(ctx context.Context, _ attach.Note) error { <-ctx.Done(); return ctx.Err() })
	for name, socket := range map[string]string{"away": filepath.Join(t.TempDir(), "none"), "dead": dead, "silent": silent} {
		err := attach.Ask(t.Context(), socket, note("c1", "10.244.1.2"))
		if !errors.Is(err, attach.ErrNotJudged) {
			t.Errorf("%s: %v", name, err)
		}
		if waited := errors.Is(err, context.DeadlineExceeded); waited != (name == "silent") {
			t.Errorf("%s: waited to the end: %t (%v)", name, waited, err)
		}
	}
}
