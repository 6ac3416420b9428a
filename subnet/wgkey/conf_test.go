package wgkey

import (
	"os"
	"testing"
	"time"

	"github.com/weft-cni/weft/subnet"
)

func TestTheConfigurationOutlivesTheBootForRootAlone(t *testing.T) {
	want := subnet.WireGuardConf{Ports: [2]uint16{4500, 4501}, PSK: subnet.Secret{1, 2, 31: 3}, Keepalive: 25 * time.Second, Mode: subnet.ModeSeparate}
	dir := t.TempDir()
	c := ConfIn(dir, subnet.Writer{})
	if _, ok, err := c.Load(); ok || err != nil {
		t.Errorf("before the first: %t, %v", ok, err)
	}
	if err := c.Keep(want); err != nil {
		t.Fatal(err)
	}
	info, err := os.Stat(c.Path)
	if err != nil || info.Mode().Perm() != 0o600 {
		t.Errorf("%v, %v", info, err)
	}
	again := ConfIn(dir, subnet.Writer{})
	if got, ok, err := again.Load(); got != want || !ok || err != nil {
		t.Errorf("got %+v, %t, %v", got, ok, err)
	}
	if err := again.Keep(want); err != nil {
		t.Error(err)
	}
	if now, _ := os.Stat(c.Path); !os.SameFile(info, now) {
		t.Error("written again, and it was the same")
	}
	want.PSK, want.Mode, want.Ports[1] = subnet.Secret{}, subnet.ModeAuto, 0
	if err := again.Keep(want); err != nil {
		t.Error(err)
	}
	if got, ok, _ := c.Load(); got != want || !ok {
		t.Errorf("after a change: %+v, %t", got, ok)
	}
}

func TestAConfigurationThatACrashHasLeftIsNone(t *testing.T) {
	for _, text := range []string{"", "{", `{"Ports":[0,0]}`, `{"Ports":[1,2],"PSK":"x"}`, `{"Ports":[1,2],"PSK":"QQ=="}`} {
		c := ConfIn(t.TempDir(), subnet.Writer{})
		put(t, c.Path, text, 0o600)
		if _, ok, err := c.Load(); ok || err != nil {
			t.Errorf("%q: %t, %v", text, ok, err)
		}
	}
}
