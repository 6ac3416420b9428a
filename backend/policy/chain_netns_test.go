package policy_test

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"net"
	"net/netip"
	"os"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/oracle"
	"github.com/weft-cni/weft/tests/nstest"
)

// chain is a wire through both nodes of a cluster: what is put in at one end as a packet of some pod passes the forward hook
// of one node and of the other, and comes out unless one of them drops it.
type chain struct {
	t    *testing.T
	node [2]*nstest.NS
	in   wire
	out  wire
	tag  uint32
}

// wire is a packet socket on a device.
type wire struct {
	file *os.File
	mac  net.HardwareAddr
}

func newChain(t *testing.T) *chain {
	t.Helper()
	c := &chain{t: t}
	first, last := nstest.New(t), nstest.New(t)
	c.node = [2]*nstest.NS{nstest.New(t), nstest.New(t)}
	nstest.Veth(t, first, "eth0", c.node[0], "in")
	nstest.Veth(t, c.node[0], "out", c.node[1], "in")
	nstest.Veth(t, c.node[1], "out", last, "eth0")
	for i, n := range c.node {
		for name, value := range map[string]string{
			"net.ipv4.ip_forward": "1", "net.ipv6.conf.all.forwarding": "1", "net.ipv4.conf.all.rp_filter": "0",
			"net.ipv4.conf.in.rp_filter": "0", "net.netfilter.nf_conntrack_checksum": "0",
		} {
			n.SetSysctl(name, value)
		}
		next := mac(t, [2]*nstest.NS{c.node[1], last}[i], [2]string{"in", "eth0"}[i])
		for _, via := range []string{"100.64.0.2", "fd64::2"} {
			family := map[bool]string{true: "-6", false: "-4"}[strings.Contains(via, ":")]
			own := strings.TrimSuffix(via, "2") + "1"
			n.IP(fmt.Sprintf("%s addr add %s/%d dev out", family, own, map[string]int{"-4": 24, "-6": 64}[family]))
			n.IP(fmt.Sprintf("%s neigh replace %s lladdr %s dev out nud permanent", family, via, next))
			n.IP(fmt.Sprintf("%s route add default via %s dev out", family, via))
		}
	}
	c.in = openWire(t, first)
	c.in.mac = mac(t, c.node[0], "in")
	c.out = openWire(t, last)
	c.warmUp()
	return c
}

func mac(t *testing.T, n *nstest.NS, device string) net.HardwareAddr {
	t.Helper()
	var hw net.HardwareAddr
	err := n.Do(func() error {
		i, err := net.InterfaceByName(device)
		if err == nil {
			hw = i.HardwareAddr
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return hw
}

func openWire(t *testing.T, n *nstest.NS) wire {
	t.Helper()
	var w wire
	err := n.Do(func() error {
		i, err := net.InterfaceByName("eth0")
		if err != nil {
			return err
		}
		proto := uint16(unix.ETH_P_ALL<<8 | unix.ETH_P_ALL>>8)
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, int(proto))
		if err != nil {
			return err
		}
		_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20)
		w.file = os.NewFile(uintptr(fd), "wire")
		return unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: i.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { w.file.Close() })
	return w
}

const tagText = "weft#"

// send puts a packet in and returns its tag.
func (c *chain) send(p oracle.Packet) uint32 {
	c.t.Helper()
	c.tag++
	return c.inject(p, datagram(p, transport(p, uint16(20000+c.tag%40000), c.payload())))
}

// payload is what the packet of the tag in hand is known by.
func (c *chain) payload() []byte { return binary.BigEndian.AppendUint32([]byte(tagText), c.tag) }

// inject puts an IP packet in, with the tag in hand.
func (c *chain) inject(p oracle.Packet, ip []byte) uint32 {
	c.t.Helper()
	frame := append([]byte{}, c.in.mac...)
	frame = append(frame, 2, 0, 0, 0, 0, 9)
	frame = append(frame, [][]byte{{0x08, 0x00}, {0x86, 0xdd}}[map[bool]int{true: 0, false: 1}[p.Src.Is4()]]...)
	if _, err := c.in.file.Write(append(frame, ip...)); err != nil {
		c.t.Fatal(err)
	}
	return c.tag
}

// transport is a TCP SYN, a datagram, an SCTP INIT or an ICMP echo request. Nobody looks at checksums on the way.
func transport(p oracle.Packet, sport uint16, payload []byte) []byte {
	ports := binary.BigEndian.AppendUint16(binary.BigEndian.AppendUint16(nil, sport), p.Port)
	switch p.Proto {
	case policy.TCP:
		return append(append(ports, 0, 0, 0, 1, 0, 0, 0, 0, 5<<4, 0x02, 0xff, 0xff, 0, 0, 0, 0), payload...)
	case policy.UDP:
		return append(append(ports, 0, byte(8+len(payload)), 0, 0), payload...)
	case policy.SCTP:
		chunk := make([]byte, 20)
		chunk[0], chunk[3], chunk[7] = 1, 20, 1
		return append(append(append(ports, make([]byte, 8)...), chunk...), payload...)
	}
	kind := map[policy.Proto]byte{1: 8, 58: 128}[p.Proto]
	return append([]byte{kind, 0, 0, 0, byte(sport >> 8), byte(sport), 0, 1}, payload...)
}

// datagram puts an IP header before it.
func datagram(p oracle.Packet, rest []byte) []byte {
	if p.Src.Is6() {
		h := []byte{0x60, 0, 0, 0, 0, byte(len(rest)), byte(p.Proto), 64}
		return append(append(append(h, p.Src.AsSlice()...), p.Dst.AsSlice()...), rest...)
	}
	h := []byte{0x45, 0, 0, byte(20 + len(rest)), 0, 0, 0x40, 0, 64, byte(p.Proto), 0, 0}
	h = append(append(h, p.Src.AsSlice()...), p.Dst.AsSlice()...)
	var sum uint32
	for i := 0; i < len(h); i += 2 {
		sum += uint32(h[i])<<8 | uint32(h[i+1])
	}
	sum = sum>>16 + sum&0xffff
	sum += sum >> 16
	binary.BigEndian.PutUint16(h[10:], ^uint16(sum))
	return append(h, rest...)
}

// warmUp sends until something comes out. A device that has just been set up drops what it is given, until the kernel has looked
// at its carrier.
func (c *chain) warmUp() {
	c.t.Helper()
	for _, ends := range [][2]string{{"198.51.100.1", "203.0.113.200"}, {"2001:db8:1::1", "2001:db8:2::1"}} {
		p := oracle.Packet{Src: netip.MustParseAddr(ends[0]), Dst: netip.MustParseAddr(ends[1]), Proto: policy.UDP, Port: 9}
		nstest.Eventually(c.t, 30*time.Second, func() error {
			want := c.send(p)
			_ = c.out.file.SetReadDeadline(time.Now().Add(100 * time.Millisecond))
			for {
				tag, err := c.next()
				if tag == want || err != nil {
					return err
				}
			}
		})
	}
}

// next is the tag of the next packet that comes out.
func (c *chain) next() (uint32, error) {
	buf := make([]byte, 2048)
	for {
		n, err := c.out.file.Read(buf)
		if err != nil {
			return 0, fmt.Errorf("wait for a packet: %w", err)
		}
		if _, after, ok := bytes.Cut(buf[:n], []byte(tagText)); ok && len(after) >= 4 {
			return binary.BigEndian.Uint32(after), nil
		}
	}
}

// arrived tells which of the packets sent so far came out. A last packet, between strangers, shows that all have had their
// time: the wire keeps the order.
func (c *chain) arrived() map[uint32]bool {
	c.t.Helper()
	end := c.send(oracle.Packet{Src: netip.MustParseAddr("198.51.100.1"), Dst: netip.MustParseAddr("203.0.113.200"), Proto: policy.UDP, Port: 9})
	out := map[uint32]bool{}
	_ = c.out.file.SetReadDeadline(time.Now().Add(30 * time.Second))
	for {
		tag, err := c.next()
		if err != nil {
			c.t.Fatal(err)
		}
		out[tag] = true
		if tag == end {
			return out
		}
	}
}
