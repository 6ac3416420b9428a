package reliability

import (
	"encoding/binary"
	"errors"
	"net"
	"net/netip"
	"sync"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
)

// datagrams are numbered UDP packets from each pod to each other, one way each, so that a number says which way was broken.
type datagrams struct {
	family  subnet.Family
	tally   *Tally
	pods    []*mouth
	readers sync.WaitGroup
}

// mouth is the socket of a pod.
type mouth struct {
	name string
	addr netip.AddrPort
	conn *net.UDPConn
	busy atomic.Bool // the reader holds a datagram that is not counted yet
}

const datagramPort = 5000

func openDatagrams(b *Bench, f subnet.Family, tally *Tally) (part, error) {
	d := &datagrams{family: f, tally: tally}
	for _, n := range b.Nodes {
		m := &mouth{name: n.Name, addr: netip.AddrPortFrom(n.PodIPs[f], datagramPort)}
		err := n.Pod.Do(func() (err error) {
			m.conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(m.addr))
			return err
		})
		if err != nil {
			d.close()
			return nil, err
		}
		if raw, err := m.conn.SyscallConn(); err == nil {
			_ = raw.Control(func(fd uintptr) { _ = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 8<<20) })
		}
		d.pods = append(d.pods, m)
	}
	for i, m := range d.pods {
		d.readers.Go(func() { d.read(i, m) })
	}
	return d, nil
}

// run implements part: one packet to each other pod, each 10 ms.
func (d *datagrams) run(stop <-chan struct{}) {
	every(10*time.Millisecond, stop, func() {
		for i, from := range d.pods {
			for j, to := range d.pods {
				if i == j {
					continue
				}
				number := d.tally.sent(d.way(from, to))
				packet := binary.BigEndian.AppendUint32(nil, uint32(i))
				packet = binary.BigEndian.AppendUint32(packet, uint32(number))
				if _, err := from.conn.WriteToUDPAddrPort(packet, to.addr); err != nil {
					d.tally.remark("%s number %d: %v", d.way(from, to), number, err)
				}
			}
		}
	})
}

func (d *datagrams) way(from, to *mouth) flow {
	return flow{d.family, "udp " + from.name + " to " + to.name}
}

func (d *datagrams) read(self int, m *mouth) {
	packet := make([]byte, 64)
	for {
		m.busy.Store(false)
		n, from, err := m.conn.ReadFromUDPAddrPort(packet)
		m.busy.Store(true)
		if errors.Is(err, net.ErrClosed) {
			return
		}
		if err != nil || n != 8 {
			continue
		}
		i := int(binary.BigEndian.Uint32(packet))
		if i >= len(d.pods) || i == self {
			continue
		}
		d.tally.came(d.way(d.pods[i], m), int(binary.BigEndian.Uint32(packet[4:])))
		if real := netip.AddrPortFrom(from.Addr().Unmap(), from.Port()); real != d.pods[i].addr {
			d.tally.mistake(d.family, 1, "%s came from %s", d.way(d.pods[i], m), real)
		}
	}
}

// settled implements part.
func (d *datagrams) settled() bool {
	for _, m := range d.pods {
		raw, err := m.conn.SyscallConn()
		if err != nil {
			continue
		}
		queued := 0
		_ = raw.Control(func(fd uintptr) { queued, _ = unix.IoctlGetInt(int(fd), unix.SIOCINQ) })
		if queued > 0 || m.busy.Load() {
			return false
		}
	}
	return true
}

// close implements part.
func (d *datagrams) close() {
	for _, m := range d.pods {
		m.conn.Close()
	}
	d.readers.Wait()
}
