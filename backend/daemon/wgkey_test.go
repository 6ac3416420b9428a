package daemon

import (
	"log/slog"
	"path/filepath"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
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
