package daemon

import (
	"errors"
	"log/slog"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

func quiet() *slog.Logger { return slog.New(slog.DiscardHandler) }

func TestTheBoardIsReadyOnlyWhenEveryPartIs(t *testing.T) {
	b := newBoard(quiet(), "device", "rules")
	if diff := cmp.Diff([]string{"device: starting", "rules: starting"}, b.verdict().Reasons); diff != "" {
		t.Error(diff)
	}
	b.set("device", nil)
	b.set("rules", errors.New("nft is missing\nreally"))
	if diff := cmp.Diff("rules: nft is missing; really", b.verdict().String()); diff != "" {
		t.Error(diff)
	}
	if v := b.verdictBut("rules"); !v.Ready {
		t.Errorf("without rules: %v", v)
	}
	b.set("rules", nil)
	if !b.verdict().Ready {
		t.Errorf("all is well, yet %v", b.verdict())
	}
	b.set("device", errors.New("gone"))
	if b.verdict().Ready {
		t.Error("ready without a device")
	}
}

func TestTheBoardPokesItsReadersOnlyOnAChange(t *testing.T) {
	b := newBoard(quiet(), "device")
	c := b.changed(t.Context())
	poked := func() bool {
		select {
		case <-c:
			return true
		default:
			return false
		}
	}
	b.set("device", errors.New("x"))
	if !poked() {
		t.Error("no poke on a new reason")
	}
	b.set("device", errors.New("x"))
	if poked() {
		t.Error("a poke although nothing changed")
	}
	b.setStale(time.Unix(1, 0))
	if !poked() {
		t.Error("no poke on stale")
	}
	b.set("device", nil)
	if !poked() {
		t.Error("no poke on recovery")
	}
}
