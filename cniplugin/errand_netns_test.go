package main

import (
	"os"
	"path/filepath"
	"strings"
	"testing"
)

func TestADelegateThatFailsBeforeItAsksLeavesNoAddress(t *testing.T) {
	w := newWorld(t)
	w.shut()
	w.replace("bridge", `[ "$CNI_COMMAND" = DEL ] && exec "$REAL"; echo '{"code":7,"msg":"no cable"}'; exit 1`)
	out, err := w.named("ADD", w.pod("c1"), w.conf())
	if err == nil || !strings.Contains(err.Error(), "no cable") {
		t.Fatalf("%s, %v", out, err)
	}
	w.empty()
}

// A runtime adds twice by mistake, and the first pod's reservation is lost: the delegate finds the pod's interface and fails.
func TestASecondAddThatFailsReservesNothingBesideTheFirst(t *testing.T) {
	w := newWorld(t)
	w.shut()
	p := w.pod("c1")
	if _, err := w.named("ADD", p, w.conf()); err != nil {
		t.Fatal(err)
	}
	for _, r := range w.reservations() {
		w.must(os.Remove(filepath.Join(w.store().Dir, r.Addr.String())))
	}
	if out, err := w.named("ADD", p, w.conf()); err == nil {
		t.Fatal(out)
	}
	if have := w.reserved(); len(have) > 0 {
		t.Errorf("reserved: %q", have)
	}
	if have := w.recorded(); len(have) != 1 {
		t.Errorf("recorded: %q", have)
	}
}

func TestTheErrandOfAnAddressTellsWhyThereIsNone(t *testing.T) {
	w := newWorld(t)
	w.shut()
	w.replace("host-local", `[ "$CNI_COMMAND" = DEL ] && exec "$REAL"; echo '{"code":11,"msg":"all are taken"}'; exit 1`)
	out, err := w.named("ADD", w.pod("c1"), w.conf())
	if err == nil || !strings.Contains(err.Error(), "all are taken") {
		t.Fatalf("%s, %v", out, err)
	}
	w.empty()
}

func TestNobodyWaitsForAnErrandWhosePluginIsGone(t *testing.T) {
	e, err := newErrand(stage{}, nil)
	if err != nil {
		t.Fatal(err)
	}
	defer e.close()
	e.hangUp() // as the kernel does when a process ends
	if out, err := fetch(e.stage.Answer); err == nil {
		t.Errorf("an answer out of nowhere: %s", out)
	}
}
