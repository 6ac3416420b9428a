package nstest

import (
	"fmt"
	"net"
	"net/netip"
	"os"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// Capture collects the frames that pass a device, both ways, as tcpdump sees them. A goroutine empties the socket, so
// that a long capture loses none; who asks for the frames empties it first, so that none that has passed is missing.
type Capture struct {
	file   *os.File
	mu     sync.Mutex // guards frames and the reading of file
	frames [][]byte
}

// Capture starts to collect frames of a device, with their link-layer header. It ends with the test.
func (n *NS) Capture(device string) *Capture {
	n.t.Helper()
	c := &Capture{}
	if err := n.Do(func() error { return c.open(device) }); err != nil {
		n.t.Fatalf("in %s: capture on %s: %v", n.Name, device, err)
	}
	done := make(chan struct{})
	go func() {
		defer close(done)
		c.receive()
	}()
	n.t.Cleanup(func() {
		c.file.Close()
		<-done
	})
	return c
}

// Frames returns what has passed up to now.
func (c *Capture) Frames() [][]byte {
	if raw, err := c.file.SyscallConn(); err == nil {
		_ = raw.Control(func(fd uintptr) { c.drain(fd) }) // fails when the capture is over, and then all is read
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	return append([][]byte(nil), c.frames...)
}

// Stop ends it before the test ends.
func (c *Capture) Stop() { c.file.Close() }

// Count counts the collected frames that match.
func (c *Capture) Count(match func(frame []byte) bool) int {
	count := 0
	for _, f := range c.Frames() {
		if match(f) {
			count++
		}
	}
	return count
}

// Wait waits until a frame that matches was collected, and ends the test when none was within the given time.
func (c *Capture) Wait(t testing.TB, within time.Duration, match func(frame []byte) bool) {
	t.Helper()
	Eventually(t, within, func() error {
		if c.Count(match) == 0 {
			return fmt.Errorf("none of %d captured frames matches", len(c.Frames()))
		}
		return nil
	})
}

func (c *Capture) open(device string) error {
	iface, err := net.InterfaceByName(device)
	if err != nil {
		return err
	}
	proto := uint16(unix.ETH_P_ALL>>8 | unix.ETH_P_ALL&0xff<<8) // network byte order
	// Without a protocol it hears nothing until it is bound: with one it would hear all devices, those of tunnels among them.
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return err
	}
	c.file = os.NewFile(uintptr(fd), "capture")
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
	return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: iface.Index})
}

func (c *Capture) receive() {
	raw, err := c.file.SyscallConn()
	for err == nil {
		err = raw.Read(func(fd uintptr) bool { return c.drain(fd) > 0 }) // none: wait until there is one
	}
}

// drain takes what the socket holds, and returns how many frames that were.
func (c *Capture) drain(fd uintptr) int {
	c.mu.Lock()
	defer c.mu.Unlock()
	buf := make([]byte, 1<<17)
	for count := 0; ; {
		n, err := unix.Read(int(fd), buf)
		switch err {
		case nil:
			c.frames = append(c.frames, append([]byte(nil), buf[:n]...))
			count++
		case unix.EAGAIN:
			return count
		default: // the device went down: frames come again when it is up
		}
	}
}

// VXLAN reads a captured Ethernet frame as VXLAN: the outer destination, UDP destination port, VNI and inner frame. It reports
// false for everything else.
func VXLAN(frame []byte) (dst netip.Addr, port uint16, vni uint32, inner []byte, ok bool) {
	dst, udp := outer(frame)
	if len(udp) < 16 || udp[8]&8 == 0 {
		return netip.Addr{}, 0, 0, nil, false
	}
	port = uint16(udp[2])<<8 | uint16(udp[3])
	vni = uint32(udp[12])<<16 | uint32(udp[13])<<8 | uint32(udp[14])
	return dst, port, vni, udp[16:], true
}

// outer is the destination of a frame's UDP packet, and what follows the IP header; nothing for other packets.
func outer(frame []byte) (netip.Addr, []byte) {
	if len(frame) < 14+20+8+8 {
		return netip.Addr{}, nil
	}
	ip := frame[14:]
	switch kind := uint16(frame[12])<<8 | uint16(frame[13]); {
	case kind == unix.ETH_P_IP && ip[9] == unix.IPPROTO_UDP:
		return netip.AddrFrom4([4]byte(ip[16:20])), ip[int(ip[0]&0xf)*4:]
	case kind == unix.ETH_P_IPV6 && ip[6] == unix.IPPROTO_UDP && len(ip) >= 40:
		return netip.AddrFrom16([16]byte(ip[24:40])), ip[40:]
	}
	return netip.Addr{}, nil
}
