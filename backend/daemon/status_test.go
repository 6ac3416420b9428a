package daemon

import (
	"errors"
	"os"
	"path/filepath"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
)

func readStatus(t *testing.T, file string) subnet.Status {
	t.Helper()
	data, err := os.ReadFile(file)
	if err != nil {
		t.Fatal(err)
	}
	s, err := subnet.ParseStatus(data)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// one is what a node needs.
func one(devices ...string) func() []string { return func() []string { return devices } }

func TestThePluginReadsReadinessAndReasonFromTheStatusFile(t *testing.T) {
	b := newBoard(quiet(), partPlane, partAnnounce, partConf)
	s := &status{file: filepath.Join(t.TempDir(), "flannel", "weft.json"), board: b, devices: one("flannel.1"), started: time.Now()}
	if err := s.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := readStatus(t, s.file); got.Ready || got.Reason != "announce: starting; data plane: starting; net-conf: starting" {
		t.Errorf("got %+v", got)
	}
	b.set(partPlane, nil)
	b.set(partAnnounce, errors.New("the API server is away"))
	b.set(partConf, errors.New("Network is missing"))
	if err := s.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if got := readStatus(t, s.file); !got.Ready || got.Device != "flannel.1" {
		t.Errorf("pods can be connected without the API server and with a typo in net-conf.json, yet %+v", got)
	}
}

func TestARestartLetsTheGoodWordOfThePredecessorStand(t *testing.T) {
	file := filepath.Join(t.TempDir(), "weft.json")
	b := newBoard(quiet(), partPlane)
	before := &status{file: file, board: newBoard(quiet()), devices: one("flannel.1"), started: time.Now()}
	if err := before.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	now := &status{file: file, board: b, devices: one(), started: time.Now()}
	if err := now.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if !readStatus(t, file).Ready {
		t.Error("the node went not ready at a restart")
	}
	now.started = now.started.Add(-2 * startGrace)
	if err := now.sync(t.Context()); err != nil {
		t.Fatal(err)
	}
	if readStatus(t, file).Ready {
		t.Error("the predecessor's word outlived the grace")
	}
}

func TestOneFailedRoundDoesNotReachTheKubeletAndALastingFaultDoes(t *testing.T) {
	b := newBoard(quiet())
	s := &status{file: filepath.Join(t.TempDir(), "weft.json"), board: b, devices: one("flannel.1"), started: time.Now()}
	sync := func() subnet.Status {
		t.Helper()
		if err := s.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		return readStatus(t, s.file)
	}
	if !sync().Ready {
		t.Fatal("not ready at first")
	}
	b.set(partRules, errors.New("nft: try again"))
	if !sync().Ready {
		t.Error("one failed round is passed on at once")
	}
	s.bad = s.bad.Add(-flapGrace)
	if got := sync(); got.Ready || got.Reason != "rules: nft: try again" {
		t.Errorf("a fault that lasts is not passed on: %+v", got)
	}
	b.set(partRules, nil)
	if !sync().Ready {
		t.Error("recovery is not passed on at once")
	}
}

func TestWhatSomebodyElseWritesIntoTheStatusFileIsOverwritten(t *testing.T) {
	s := &status{file: filepath.Join(t.TempDir(), "weft.json"), board: newBoard(quiet()), devices: one("flannel.1"), started: time.Now()}
	for _, foreign := range []string{"", `{"device":"","ready":false,"reason":"lock: another agent","time":"2026-01-01T00:00:00Z"}`, "{"} {
		if foreign != "" {
			if err := os.WriteFile(s.file, []byte(foreign), 0o644); err != nil {
				t.Fatal(err)
			}
		}
		if err := s.sync(t.Context()); err != nil {
			t.Fatal(err)
		}
		if !readStatus(t, s.file).Ready {
			t.Errorf("%q stands", foreign)
		}
	}
}
