package ipam

import (
	"context"
	"errors"
	"io/fs"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

var addr = netip.MustParseAddr

func put(t *testing.T, path, content string) {
	t.Helper()
	if err := os.MkdirAll(filepath.Dir(path), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.WriteFile(path, []byte(content), 0o600); err != nil {
		t.Fatal(err)
	}
}

func lines(t *testing.T, s Store) []string {
	t.Helper()
	all, err := s.List()
	if err != nil {
		t.Fatal(err)
	}
	out := []string{}
	for _, r := range all {
		word := r.Owner.String()
		if r.Broken {
			word = "broken"
		}
		out = append(out, r.Addr.String()+" "+word)
	}
	return out
}

func TestListReadsEveryFormOfReservation(t *testing.T) {
	s := Store{t.TempDir()}
	for name, content := range map[string]string{
		"10.244.1.2": "a\r\neth0", "10.244.1.3": "b\nnet1\n", "10.244.1.4": "old", "10.244.1.5": "", "10.244.1.6": "\x00\x00\x00",
		"10.244.1.7": "two words\r\neth0", "10.244.1.8": "c\r\nno/name", "10.244.1.9": strings.Repeat("x", 9000), "10.244.1.10": "z\r\neth0",
		"fd00::2": "a\r\neth0", "lock": "", "last_reserved_ip.0": "10.244.1.2", ".reserve.tmp": "a\r\neth0", "010.244.1.9": "a\r\neth0", "fd00::0002": "a", "notes": "a",
	} {
		put(t, filepath.Join(s.Dir, name), content)
	}
	if err := os.Mkdir(filepath.Join(s.Dir, "10.244.1.77"), 0o755); err != nil {
		t.Fatal(err)
	}
	if err := os.Symlink("/etc/passwd", filepath.Join(s.Dir, "10.244.1.78")); err != nil {
		t.Fatal(err)
	}
	want := []string{
		"10.244.1.2 a/eth0", "10.244.1.3 b/net1", "10.244.1.4 old/", "10.244.1.5 broken", "10.244.1.6 broken", "10.244.1.7 broken",
		"10.244.1.8 broken", "10.244.1.9 broken", "10.244.1.10 z/eth0", "fd00::2 a/eth0",
	}
	if d := cmp.Diff(want, lines(t, s)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	owned, err := s.OwnedBy(Owner{"a", "eth0"})
	if d := cmp.Diff([]string{"10.244.1.2", "fd00::2"}, texts(owned)); err != nil || d != "" {
		t.Errorf("%v, a's (-want +got):\n%s", err, d)
	}
	if _, ok := s.Get(addr("10.244.1.78")); ok {
		t.Error("a link was followed")
	}
}

func texts(in []netip.Addr) []string {
	var out []string
	for _, a := range in {
		out = append(out, a.String())
	}
	return out
}

func TestNoFolderMeansNoReservations(t *testing.T) {
	s := Store{"/nonexistent/cbr0"}
	if all, err := s.List(); len(all) != 0 || err != nil {
		t.Errorf("%v, %v", all, err)
	}
	put(t, filepath.Join(t.TempDir(), "x"), "")
	bad := Store{filepath.Join(t.TempDir(), "file")}
	put(t, bad.Dir, "")
	if _, err := bad.List(); err == nil {
		t.Error("a file for a folder: no error")
	}
	if _, err := bad.OwnedBy(Owner{}); err == nil {
		t.Error("a file for a folder: no error")
	}
	if err := bad.Update(context.Background(), func(Tx) error { return nil }); err == nil {
		t.Error("update in a file: no error")
	}
}

func TestUpdateFreesAndReservesUnderHostLocalsLock(t *testing.T) {
	s := Store{filepath.Join(t.TempDir(), "cbr0")}
	err := s.Update(context.Background(), func(tx Tx) error {
		for range 2 {
			done, err := tx.Reserve(addr("10.244.1.2"), Owner{"a", "eth0"})
			if err != nil {
				return err
			}
			t.Logf("reserved: %v", done)
		}
		if _, err := tx.Reserve(addr("10.244.1.3"), Owner{"no good", ""}); err == nil {
			t.Error("a bad owner was written")
		}
		if all, err := tx.List(); err != nil || len(all) != 1 {
			t.Errorf("%v, %v", all, err)
		}
		short, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		defer cancel()
		if err := s.Update(short, func(Tx) error { return nil }); !errors.Is(err, context.DeadlineExceeded) {
			t.Errorf("a second holder: %v", err)
		}
		return nil
	})
	if err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(s.Dir, "10.244.1.2"))
	if string(b) != "a\r\neth0" {
		t.Errorf("%q, %v", b, err)
	}
	for range 2 {
		if err := s.Update(context.Background(), func(tx Tx) error { return tx.Free(addr("10.244.1.2")) }); err != nil {
			t.Fatal(err)
		}
	}
	if d := cmp.Diff([]string{}, lines(t, s)); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	put(t, filepath.Join(s.Dir, "10.244.1.9", "x"), "")
	if err := s.Update(context.Background(), func(tx Tx) error { return tx.Free(addr("10.244.1.9")) }); err == nil {
		t.Error("a full folder was freed")
	}
}

func TestOwnersHaveTheFormOfTheSpecification(t *testing.T) {
	for o, want := range map[Owner]bool{
		{"a", "eth0"}: true, {"a.b-c_D9", ""}: true, {"", "eth0"}: false, {"-a", "eth0"}: false, {"a/b", "eth0"}: false, {"..", "eth0"}: false,
		{"a", "sixteen-letters-"}: false, {strings.Repeat("a", 300), "eth0"}: false, {"a\x00", "eth0"}: false,
	} {
		if o.Valid() != want {
			t.Errorf("%q: got %v, want %v", o, o.Valid(), want)
		}
	}
	if !Recovered().Valid() {
		t.Error("Recovered is no valid owner")
	}
	any, one := Owner{"a", ""}, Owner{"a", "net1"}
	if !any.Covers(one) || one.Covers(any) || !one.Covers(one) || any.Covers(Owner{"b", "net1"}) {
		t.Error("Covers")
	}
}

func TestRecordsAreWrittenReadAndRemoved(t *testing.T) {
	r := Records{filepath.Join(t.TempDir(), "flannel")}
	if all, err := r.List(); len(all) != 0 || err != nil {
		t.Errorf("no folder: %v, %v", all, err)
	}
	o, n := Owner{"a", "eth0"}, Owner{"a", "net1"}
	if _, err := r.Read(o); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("no record: %v", err)
	}
	raw := []byte(`{"name":"cbr0","type":"bridge","ipam":{"type":"host-local","dataDir":"/x"}}`)
	for _, w := range []Owner{o, n} {
		durable, err := r.Write(w, raw)
		if err != nil {
			t.Fatal(err)
		}
		if err := durable(); err != nil {
			t.Fatal(err)
		}
	}
	rec, err := r.Read(n)
	if d := cmp.Diff(Record{"cbr0", "bridge", IPAM{"host-local", "/x"}, raw}, rec); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
	if s, ok := rec.Store(); !ok || s.Dir != "/x/cbr0" {
		t.Errorf("%v, %v", s, ok)
	}
	put(t, filepath.Join(r.Dir, ".a.tmp1"), "")
	all, err := r.List()
	if err != nil || len(all) != 2 || all[0].Name != "a" || all[1].Name != "a-net1" {
		t.Errorf("%v, %v", all, err)
	}
	put(t, filepath.Join(r.Dir, ".a.tmp"), "left by a writer that was killed")
	for _, age := range []time.Duration{-time.Hour, time.Hour} {
		want := age < 0
		if err := r.RemoveTemps(time.Now().Add(age)); err != nil {
			t.Fatal(err)
		}
		if _, err := os.Stat(filepath.Join(r.Dir, ".a.tmp")); (err == nil) != want {
			t.Errorf("before %v: %v", age, err)
		}
	}
	if _, err := r.Read(o); err != nil {
		t.Error(err)
	}
	info, err := os.Stat(r.Dir)
	if err != nil || info.Mode().Perm() != 0o700 {
		t.Errorf("%v, %v", info.Mode(), err)
	}
	for range 2 {
		if err := r.Remove(n); err != nil {
			t.Fatal(err)
		}
	}
	if _, err := r.Read(n); !errors.Is(err, fs.ErrNotExist) {
		t.Errorf("removed: %v", err)
	}
	put(t, filepath.Join(r.Dir, "full", "x"), "")
	if _, err := r.Write(Owner{"full", "eth0"}, raw); err == nil {
		t.Error("a record took the place of a folder")
	}
	put(t, filepath.Join(r.Dir, "dir", "x"), "")
	if err := r.RemoveName("dir"); err == nil {
		t.Error("a folder was removed")
	}
}

func TestUselessRecordsAreBroken(t *testing.T) {
	r := Records{t.TempDir()}
	for name, content := range map[string]string{
		"empty": "", "cut": `{"name":"cbr0","ty`, "zeros": "\x00\x00", "list": "[]", "object": "{}", "typeless": `{"name":"cbr0"}`, "odd": `{"name":"cbr0","type":7}`,
		"huge": strings.Repeat(" ", 2<<20),
	} {
		put(t, filepath.Join(r.Dir, name), content)
		if _, err := r.ReadName(name); !errors.Is(err, ErrBroken) {
			t.Errorf("%s: %v", name, err)
		}
	}
	put(t, filepath.Join(r.Dir, "folder", "x"), "")
	if _, err := r.ReadName("folder"); !errors.Is(err, ErrBroken) {
		t.Errorf("folder: %v", err)
	}
	for _, rec := range []Record{{Network: "n", IPAM: IPAM{Type: "dhcp"}}, {Network: "../n", IPAM: IPAM{Type: "host-local"}}} {
		if s, ok := rec.Store(); ok {
			t.Errorf("%+v has %v", rec, s)
		}
	}
}

func TestLocksKeepOthersOffOneAttachmentOrAll(t *testing.T) {
	r := Records{filepath.Join(t.TempDir(), "flannel")}
	a, b := Owner{"a", "eth0"}, Owner{"b", "eth0"}
	if r.Busy(a) {
		t.Error("busy before anybody came")
	}
	soon := func() context.Context {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Millisecond)
		t.Cleanup(cancel)
		return ctx
	}
	take := func(f func(context.Context) (*Lock, error), want bool) *Lock {
		t.Helper()
		l, err := f(soon())
		if (err == nil) != want {
			t.Fatalf("got %v, want success %v", err, want)
		}
		return l
	}
	add := func(o Owner) func(context.Context) (*Lock, error) {
		return func(ctx context.Context) (*Lock, error) { return r.LockForAdd(ctx, o) }
	}
	one := func(o Owner) func(context.Context) (*Lock, error) {
		return func(ctx context.Context) (*Lock, error) { return r.LockOne(ctx, o) }
	}
	la := take(add(a), true)
	take(add(a), false)
	take(one(a), false)
	take(r.LockAll, false)
	lb := take(add(b), true)
	if !r.Busy(a) || r.Busy(Owner{"c", "eth0"}) {
		t.Error("Busy tells wrong")
	}
	lb.Close()
	la.Close()
	all := take(r.LockAll, true)
	take(add(a), false)
	take(one(a), true).Close()
	all.Close()
	take(add(a), true).Close()
	if r.Busy(a) {
		t.Error("busy after all left")
	}
	bad := Records{filepath.Join(t.TempDir(), "file")}
	put(t, bad.Dir, "")
	if _, err := bad.LockAll(soon()); err == nil {
		t.Error("a lock in a file")
	}
	if _, err := bad.Write(a, nil); err == nil {
		t.Error("a record in a file")
	}
}

func TestARecordsNameIsBusyForWhomeverItMayBelongTo(t *testing.T) {
	r := Records{t.TempDir()}
	for _, o := range []Owner{{"a-b", "net-1"}, {"a-b-net-1", "eth0"}, {"a", "b-net-1"}} {
		l, err := r.LockOne(context.Background(), o)
		if err != nil {
			t.Fatal(err)
		}
		if !r.BusyName("a-b-net-1") || r.BusyName("a-b") || r.BusyName("") || r.BusyName("-") {
			t.Errorf("while %s is in hand", o)
		}
		l.Close()
		if r.BusyName("a-b-net-1") {
			t.Errorf("after %s", o)
		}
	}
}

func TestALockStaysWithTheProcessThatInheritedIt(t *testing.T) {
	r := Records{t.TempDir()}
	a := Owner{"a", "eth0"}
	l, err := r.LockOne(context.Background(), a)
	if err != nil {
		t.Fatal(err)
	}
	heir, err := os.StartProcess("/bin/sleep", []string{"sleep", "60"}, &os.ProcAttr{Files: []*os.File{nil, nil, nil, l.File()}})
	if err != nil {
		t.Fatal(err)
	}
	l.Close()
	if !r.Busy(a) {
		t.Error("the lock went with its first holder")
	}
	if err := heir.Kill(); err != nil {
		t.Fatal(err)
	}
	if _, err := heir.Wait(); err != nil {
		t.Fatal(err)
	}
	if r.Busy(a) {
		t.Error("the lock outlived its last holder")
	}
}

func TestResultsOfLibcniAreReadAndRemoved(t *testing.T) {
	r := Results{filepath.Join(t.TempDir(), "results")}
	if all, bad, err := r.List(); len(all)+len(bad) != 0 || err != nil {
		t.Errorf("no folder: %v, %v, %v", all, bad, err)
	}
	put(t, filepath.Join(r.Dir, "cbr0-a-eth0"), `{"kind":"cniCacheV1","containerId":"a","ifName":"eth0","networkName":"cbr0","netns":"/run/netns/x","result":{"cniVersion":"1.0.0","ips":[{"address":"10.244.1.2/24"},{"address":"fd00::2/64"},{"address":"nix"}]}}`)
	put(t, filepath.Join(r.Dir, "cbr0-b-eth0"), ``)
	put(t, filepath.Join(r.Dir, "cbr0-c-eth0"), `{"cniVersion":"0.2.0","ip4":{"ip":"10.244.1.3/24"}}`) // of an old libcni
	put(t, filepath.Join(r.Dir, "cbr0-d-eth0"), `{"kind":"cniCacheV1","containerId":"../d","ifName":"eth0","networkName":"cbr0"}`)
	all, bad, err := r.List()
	if err != nil || len(all) != 1 {
		t.Fatalf("%v, %v", all, err)
	}
	all[0].ModTime = time.Time{}
	want := Result{File: "cbr0-a-eth0", Network: "cbr0", Owner: Owner{"a", "eth0"}, Netns: "/run/netns/x", Addrs: []netip.Addr{addr("10.244.1.2"), addr("fd00::2")}}
	if d := cmp.Diff(want, all[0], cmp.Comparer(func(a, b netip.Addr) bool { return a == b })); d != "" {
		t.Errorf("(-want +got):\n%s", d)
	}
	if d := cmp.Diff([]string{"cbr0-b-eth0", "cbr0-c-eth0", "cbr0-d-eth0"}, bad); d != "" {
		t.Errorf("unreadable (-want +got):\n%s", d)
	}
	for range 2 {
		if err := r.Remove("cbr0-b-eth0"); err != nil {
			t.Fatal(err)
		}
	}
	put(t, filepath.Join(r.Dir, "dir", "x"), "")
	if err := r.Remove("dir"); err == nil {
		t.Error("a folder was removed")
	}
	if d := cmp.Diff([]string{"10.244.1.3", "fd00::3"}, texts(ResultAddrs([]byte(`{"ip4":{"ip":"10.244.1.3/24"},"ip6":{"ip":"fd00::3/64"}}`)))); d != "" {
		t.Errorf("0.2.0 (-want +got):\n%s", d)
	}
	if got := ResultAddrs([]byte("{")); got != nil {
		t.Errorf("%v", got)
	}
}

func FuzzFiles(f *testing.F) {
	f.Add([]byte("a\r\neth0"))
	f.Add([]byte(`{"name":"cbr0","type":"bridge","ipam":{"type":"host-local"}}`))
	f.Add([]byte(`{"kind":"cniCacheV1","containerId":"a","ifName":"eth0","networkName":"cbr0","result":{"ips":[{"address":"10.1.1.1/24"}]}}`))
	f.Fuzz(func(t *testing.T, b []byte) {
		if o, ok := parseOwner(b); ok && !o.Valid() {
			t.Errorf("%q gives the owner %q", b, o)
		}
		if r, err := ParseRecord(b); err == nil && (r.Network == "" || r.Type == "") {
			t.Errorf("%q gives the record %+v", b, r)
		}
		if r, ok := parseResult(b); ok && (!r.Owner.Valid() || r.Network == "") {
			t.Errorf("%q gives the result %+v", b, r)
		}
	})
}
