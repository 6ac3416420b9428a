package kernel_test

import (
	"testing"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/tests/nstest"
)

func TestTheBridgeGoesOnlyWithItsLastPod(t *testing.T) {
	ns := nstest.New(t)
	conn, err := kernel.OpenAt(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(conn.Close)
	drop := func() bool {
		t.Helper()
		dropped, err := conn.DropBridge("cni0")
		if err != nil {
			t.Fatal(err)
		}
		return dropped
	}
	if drop() {
		t.Error("dropped a bridge that is not there")
	}
	ns.IP("link add cni0 type bridge")
	ns.IP("link add veth1 type veth peer name veth2")
	ns.IP("link set veth1 master cni0")
	if drop() {
		t.Error("dropped the bridge under a pod")
	}
	ns.IP("link del veth1")
	if !drop() {
		t.Error("an empty bridge stays")
	}
}
