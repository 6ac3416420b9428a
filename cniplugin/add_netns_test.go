package main

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestAddConnectsAPodAndDelLeavesNothing(t *testing.T) {
	w := newWorld(t)
	p := w.pod("one")
	addrs := w.add(p)
	if d := cmp.Diff([]string{"10.244.1.2 one/eth0"}, w.reserved()); d != "" || len(addrs) != 1 {
		t.Errorf("%v, reserved (-want +got):\n%s", addrs, d)
	}
	if d := cmp.Diff([]string{"one"}, w.recorded()); d != "" {
		t.Errorf("records (-want +got):\n%s", d)
	}
	w.run("ip", "netns", "exec", "one", "ping", "-c1", "-W2", "10.244.1.1")
	w.del(p)
	w.empty()
	w.del(p)
	w.empty()
}
