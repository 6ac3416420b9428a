package kernel

import (
	"context"
	"testing"
	"time"

	"github.com/weft-cni/weft/tests/nstest"
)

func TestNotificationsThatTheKernelDroppedCountAsAChangeOfEverything(t *testing.T) {
	host := nstest.NewFabric(t, 1).Nodes[0]
	conn, err := OpenAt(host.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	socket, err := conn.subscribe()
	if err != nil {
		t.Fatal(err)
	}
	if err := socket.SetReceiveBufferSize(1, true); err != nil { // the kernel's minimum: a handful of messages
		t.Fatal(err)
	}
	for range 20 { // all of the host, none of ours
		host.IP("addr add 192.168.50.77/24 dev eth0")
		host.IP("addr del 192.168.50.77/24 dev eth0")
	}
	ours, all := make(chan struct{}, 1), make(chan struct{}, 1)
	ctx, cancel := context.WithCancel(t.Context())
	done := make(chan struct{})
	go func() {
		conn.receive(ctx, socket, ours, all)
		close(done)
	}()
	for name, ch := range map[string]chan struct{}{"ours": ours, "the host's": all} {
		select {
		case <-ch:
		case <-time.After(5 * time.Second):
			t.Errorf("no change of %s is told", name)
		}
	}
	cancel()
	<-done
	again := conn.resubscribe(t.Context())
	if again == nil {
		t.Fatal("no new socket")
	}
	again.Close()
	if conn.resubscribe(ctx) != nil {
		t.Error("a new socket after the end")
	}
}
