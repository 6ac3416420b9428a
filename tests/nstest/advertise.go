package nstest

import (
	"encoding/binary"
	"net"
	"net/netip"
	"os"
	"time"

	"golang.org/x/sys/unix"
)

// Advertise makes the namespace a router on a device: it announces itself as the way to everywhere, several times within the
// lifetime that it gives, until stop is called or the test ends.
func (n *NS) Advertise(device string, lifetime time.Duration) (stop func()) {
	n.t.Helper()
	var file *os.File
	if err := n.Do(func() (err error) {
		file, err = routerSocket(device)
		return err
	}); err != nil {
		n.t.Fatalf("in %s: open a router's socket on %s: %v", n.Name, device, err)
	}
	done, ended := make(chan struct{}), make(chan struct{})
	go func() {
		defer close(ended)
		tick := time.NewTicker(lifetime / 10)
		defer tick.Stop()
		for {
			_, _ = file.Write(advertisement(lifetime)) // a device that is down is up again later
			select {
			case <-done:
				return
			case <-tick.C:
			}
		}
	}()
	stopped := false
	stop = func() {
		if !stopped {
			stopped = true
			close(done)
			<-ended
			file.Close()
		}
	}
	n.t.Cleanup(stop)
	return stop
}

// routerSocket sends to all nodes on a device, as routers have to: with a hop limit that no router on the way has lowered.
func routerSocket(device string) (*os.File, error) {
	iface, err := net.InterfaceByName(device)
	if err != nil {
		return nil, err
	}
	fd, err := unix.Socket(unix.AF_INET6, unix.SOCK_RAW|unix.SOCK_CLOEXEC, unix.IPPROTO_ICMPV6)
	if err != nil {
		return nil, err
	}
	file := os.NewFile(uintptr(fd), "router")
	all := unix.SockaddrInet6{Addr: netip.MustParseAddr("ff02::1").As16(), ZoneId: uint32(iface.Index)}
	for _, set := range []func() error{
		func() error { return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_HOPS, 255) },
		func() error { return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MULTICAST_IF, iface.Index) },
		func() error { return unix.Connect(fd, &all) },
	} {
		if err := set(); err != nil {
			file.Close()
			return nil, err
		}
	}
	return file, nil
}

// advertisement is a router advertisement without options (RFC 4861, section 4.2). The kernel fills in the checksum.
func advertisement(lifetime time.Duration) []byte {
	b := make([]byte, 16)
	b[0], b[4] = 134, 64 // type, and the hop limit for hosts to use
	binary.BigEndian.PutUint16(b[6:], uint16(lifetime/time.Second))
	return b
}
