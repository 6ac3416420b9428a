package daemon

import (
	"log/slog"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// away is a Source whose API server has not answered; here is one that has.
type fixed struct {
	snap subnet.Snapshot
	ok   bool
}

func (f fixed) Snapshot() (subnet.Snapshot, bool) { return f.snap, f.ok }
func (f fixed) Changed() <-chan struct{}          { return nil }

func TestD04AStartWithoutTheAPIUsesTheStateOnDiskAfterAMoment(t *testing.T) {
	dir := t.TempDir()
	here := fixed{snap: subnet.Snapshot{Self: self("10.244.1.0/24"), Peers: []subnet.Peer{peer("b", 2)}}, ok: true}
	first := newView(filepath.Join(dir, "snapshot.json"), "a", quiet())
	first.source = here
	if err := first.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	synctest.Test(t, func(t *testing.T) {
		v := newView(filepath.Join(dir, "snapshot.json"), "a", quiet())
		v.source = fixed{}
		if _, s := v.now(); s.known {
			t.Error("the disk is used before the API server had its chance")
		}
		time.Sleep(apiPatience)
		snap, s := v.now()
		if !s.known || !s.stale || len(snap.Peers) != 1 {
			t.Errorf("state %+v, peers %v", s, snap.Peers)
		}
		v.source = here
		if _, s := v.now(); !s.known || s.stale {
			t.Errorf("the API server has answered, yet %+v", s)
		}
	})
}

func TestD04StateThatTheAPIServerRefutesIsNotUsedThoughItsListIsNotThereYet(t *testing.T) {
	kept := subnet.Snapshot{ClusterID: "c1", Self: self("10.244.1.0/24"), Peers: []subnet.Peer{peer("b", 2)}}
	for name, c := range map[string]struct {
		heard subnet.Snapshot
		want  bool
	}{
		"nothing heard":             {subnet.Snapshot{}, true},
		"the same node":             {subnet.Snapshot{ClusterID: "c1", Self: self("10.244.1.0/24")}, true},
		"K-08 another cluster":      {subnet.Snapshot{ClusterID: "c2"}, false},
		"another pod CIDR":          {subnet.Snapshot{ClusterID: "c1", Self: self("10.244.7.0/24")}, false},
		"the node is there no more": {subnet.Snapshot{ClusterID: "c1", Self: subnet.Self{Name: "a"}}, true},
	} {
		t.Run(name, func(t *testing.T) {
			synctest.Test(t, func(t *testing.T) {
				v := newView(filepath.Join(t.TempDir(), "snapshot.json"), "a", quiet())
				v.kept, v.source = kept, fixed{snap: c.heard}
				time.Sleep(apiPatience)
				if _, s := v.now(); s.known != c.want {
					t.Errorf("used: %v, want %v", s.known, c.want)
				}
			})
		})
	}
}

func TestStateOfAnotherNodeOrABrokenFileIsNotUsed(t *testing.T) {
	dir := t.TempDir()
	first := newView(filepath.Join(dir, "snapshot.json"), "a", quiet())
	first.source = fixed{snap: subnet.Snapshot{Self: self("10.244.1.0/24")}, ok: true}
	if err := first.keep(t.Context()); err != nil {
		t.Fatal(err)
	}
	if v := newView(filepath.Join(dir, "snapshot.json"), "z", quiet()); v.kept.Self.Exists {
		t.Error("another node's state is used")
	}
	good, err := os.ReadFile(filepath.Join(dir, "snapshot.json"))
	if err != nil {
		t.Fatal(err)
	}
	for name, text := range map[string]string{
		"empty": "", "cut off": string(good[:len(good)/2]), "garbage": "\x00\xff\x1b[2J", "zeros": strings.Repeat("\x00", 4096), "doubled": string(good) + string(good),
		"of a newer version":    strings.Replace(string(good), `"Version": 1`, `"Version": 2`, 1),
		"with an unknown field": strings.Replace(string(good), `"Version": 1`, `"Version": 1, "More": {}`, 1),
	} {
		if err := os.WriteFile(filepath.Join(dir, "snapshot.json"), []byte(text), 0o600); err != nil {
			t.Fatal(err)
		}
		var said strings.Builder
		v := newView(filepath.Join(dir, "snapshot.json"), "a", slog.New(slog.NewTextHandler(&said, nil)))
		if v.kept.Self.Exists {
			t.Errorf("a file that is %s is used", name)
		}
		if n := strings.Count(said.String(), "\n"); n != 1 || !strings.Contains(said.String(), "is not used") {
			t.Errorf("a file that is %s: %d lines: %s", name, n, said.String())
		}
	}
}

// The kubeconfig of a service may be broken after a power cut, too. It is waited for beside the data plane only where there is one to
// be had: a name and a kept state.
func TestD04AnUnusableKubeconfigIsWaitedForBesideTheDataPlaneThatTheDiskRemembers(t *testing.T) {
	dir := t.TempDir()
	d := &daemon{cfg: Config{Kube: Kube{NodeName: "a"}, Paths: Paths{StateDir: dir}}}
	if d.remembers() {
		t.Error("nothing is kept")
	}
	if err := os.WriteFile(d.cfg.Paths.SnapshotFile(), []byte("{}"), 0o600); err != nil {
		t.Fatal(err)
	}
	if !d.remembers() {
		t.Error("a state is kept")
	}
	if d.cfg.Kube.NodeName = ""; d.remembers() {
		t.Error("whose state it is can only the API server tell")
	}
}
