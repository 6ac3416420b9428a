package daemon

import (
	"io/fs"
	"log/slog"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/backend/wireguard"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
)

func TestANodeThatRebootsOnTheWayBackFromWireGuardStillKnowsItsPortAndPSK(t *testing.T) {
	dir := t.TempDir()
	paths := Paths{StateDir: filepath.Join(dir, "lib"), SubnetFile: filepath.Join(dir, "run", "subnet.env")}
	want := subnet.WireGuardConf{Ports: [2]uint16{4500, 4501}, PSK: subnet.Secret{1, 31: 2}, Keepalive: time.Second, Mode: subnet.ModeSeparate}
	round := func(a applied) applied { // of an agent that has just started, on a kernel without devices
		p := plane{log: slog.New(slog.DiscardHandler), keys: newKeys(paths, subnet.Writer{}, slog.New(slog.DiscardHandler))}
		if err := p.chooseWireGuard(&a, kernel.New()); err != nil {
			t.Fatal(err)
		}
		return a
	}
	before := applied{Net: mesh.Config{Kind: subnet.WireGuard}}
	before.Conf.Backend.WireGuard = want
	before = round(before)
	after := round(applied{Net: mesh.Config{Kind: subnet.VXLAN, Former: subnet.KindsOf(subnet.WireGuard)}})
	if after.Net.WireGuard.Conf != want || after.Net.WireGuard.Key != before.Net.WireGuard.Key {
		t.Errorf("after the reboot it has %+v", after.Net.WireGuard.Conf)
	}
	paths.StateDir = filepath.Join(dir, "another")
	if got := round(applied{Net: mesh.Config{Kind: subnet.VXLAN, Former: subnet.KindsOf(subnet.WireGuard)}}).Net.WireGuard.Conf; got.Ports != [2]uint16{51820, 51821} {
		t.Errorf("without a file: %+v", got)
	}
}

// fullDisk has no room for new files.
type fullDisk struct{ subnet.OSDisk }

func (fullDisk) Create(string, string, fs.FileMode) (subnet.DiskFile, error) {
	return nil, syscall.ENOSPC
}

func TestAKeyThatCannotBeKeptIsSaidWithItsPlaceAndItsCure(t *testing.T) {
	g := newGround(t, `{"Network": "10.244.0.0/16", "Backend": {"Type": "wireguard"}}`)
	dir := t.TempDir()
	g.keys = newKeys(Paths{StateDir: dir, SubnetFile: filepath.Join(dir, "run", "subnet.env")}, subnet.Writer{Disk: fullDisk{}}, quiet())
	own, _ := g.sync(t.Context(), g.in)
	if own == nil || !strings.Contains(own.Error(), filepath.Join(dir, "wgkey")) || !strings.Contains(own.Error(), "make room") {
		t.Errorf("error: %v", own)
	}
}

func TestAKeyFileThatSeveralNodesShareIsNamedWithTheOtherNode(t *testing.T) {
	g := newGround(t, `{"Network": "10.244.0.0/16", "Backend": {"Type": "wireguard"}}`)
	file := filepath.Join(t.TempDir(), "shared")
	paths := Paths{WireGuardKey: file}
	first := newKeys(paths, subnet.Writer{}, quiet())
	key, err := first.get(subnet.Snapshot{})
	if err != nil {
		t.Fatal(err)
	}
	g.keys = newKeys(paths, subnet.Writer{Disk: fullDisk{}}, quiet())
	g.in.snap.Problems = []subnet.Problem{{
		Node: "a", Reason: kube.ReasonKeyConflict, Yields: true, Value: wireguard.PublicKey(key).String(), Text: "WireGuard key k is also claimed by node b: and so on",
	}}
	own, _ := g.sync(t.Context(), g.in)
	for _, want := range []string{"also claimed by node b", file, "WIREGUARD_KEY_FILE", "a file of its own"} {
		if own == nil || !strings.Contains(own.Error(), want) {
			t.Errorf("%q is not said: %v", want, own)
		}
	}
}
