package kernel_test

import (
	"errors"
	"runtime"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

func TestX06NetAdminAloneIsEnoughForTheDataPlane(t *testing.T) {
	host := nstest.NewFabric(t, 1).Nodes[0]
	parent := index(t, host, "eth0")
	want := node(2, 3)
	want.Links[dev] = with(link(parent), func(l *kernel.Link) { l.SoftChecksum = true })
	withNetAdmin(t, host, want)
}

func TestX06NetAdminAloneIsEnoughForWireGuardAndTunnels(t *testing.T) {
	host, conn, _ := realHost(t)
	needKinds(t, conn, kernel.KindWireGuard, kernel.KindIPIP, kernel.KindIP6Tnl)
	want := wgNode(2)
	put(want, linkAdd(tun, tunLink(subnet.IPv4)), linkAdd(tun6, tunLink(subnet.IPv6)),
		hop(kernel.RouteSet, tun, "10.244.3.0/24", "192.168.50.3", true), hop(kernel.RouteSet, tun6, "fd00:244:3::/64", "fd00:50::3", false))
	withNetAdmin(t, host, want)
}

// withNetAdmin brings a state about with that capability alone.
func withNetAdmin(t *testing.T, host *nstest.NS, want kernel.State) {
	t.Helper()
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread with fewer rights ends with the goroutine
		done <- errors.Join(unix.Setns(host.FD(), unix.CLONE_NEWNET), onlyNetAdmin(), planeOnce(t, want))
	}()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

// onlyNetAdmin leaves the calling thread with CAP_NET_ADMIN alone.
func onlyNetAdmin() error {
	header := unix.CapUserHeader{Version: unix.LINUX_CAPABILITY_VERSION_3}
	mask := uint32(1) << unix.CAP_NET_ADMIN
	data := [2]unix.CapUserData{{Effective: mask, Permitted: mask}}
	return unix.Capset(&header, &data[0])
}

// planeOnce does all that the agent does with the kernel, on the calling thread.
func planeOnce(t *testing.T, want kernel.State) error {
	conn, err := kernel.Open()
	if err != nil {
		return err
	}
	defer conn.Close()
	changes, err := conn.Watch(t.Context())
	if err != nil {
		return err
	}
	have, err := conn.Dump(t.Context())
	if err != nil {
		return err
	}
	for _, op := range kernel.Diff(have, want) {
		if err := conn.Apply(t.Context(), op); err != nil {
			return err
		}
	}
	select {
	case <-changes.Ours:
	case <-time.After(20 * time.Second):
		return errors.New("the watch is silent")
	}
	have, err = conn.Dump(t.Context())
	if err != nil {
		return err
	}
	if ops := kernel.Diff(have, want); len(ops) > 0 {
		return errors.New("still to do: " + ops[0].String())
	}
	for _, f := range conn.Probe(t.Context()) {
		if f.Support != kernel.Supported {
			return errors.Join(errors.New("probe of "+f.Name), f.Err)
		}
	}
	_, err = conn.Host(t.Context())
	return err
}
