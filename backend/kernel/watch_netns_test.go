package kernel

import (
	"context"
	"fmt"
	"strings"
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
		case <-time.After(20 * time.Second):
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

func TestOurDevicesAreReadWhileOtherLinksComeAndGo(t *testing.T) {
	host := nstest.NewFabric(t, 1).Nodes[0]
	conn, err := OpenAt(host.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	host.IP("link add flannel.1 type vxlan id 1 dstport 4789 dev eth0")
	host.IP("link add flannel.2 type bridge")
	links, err := conn.vxlans()
	if err != nil || len(links) != 1 || links[0].Attrs().Name != "flannel.1" {
		t.Fatalf("the VXLAN devices are %v, %v", links, err)
	}
	var script strings.Builder
	for i := range 200 {
		fmt.Fprintf(&script, "link add c%d group 7 type veth peer name d%d\n", i, i)
	}
	crowd, stop := context.WithCancel(t.Context())
	done := make(chan error, 1)
	go func() {
		for crowd.Err() == nil {
			if _, err := host.Input(script.String()+"link del group 7\n", "ip", "-batch", "-"); err != nil {
				done <- err
				return
			}
		}
		done <- nil
	}()
	for range 50 {
		s, err := conn.Dump(t.Context())
		if err != nil || s.Links["flannel.1"].VNI != 1 {
			t.Errorf("%v, %v", s, err)
			break
		}
	}
	stop()
	if err := <-done; err != nil {
		t.Error(err)
	}
}
