package nstest

import (
	"encoding/binary"
	"fmt"
	"net/netip"
	"os"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Ping says what an echo stream looks like.
type Ping struct {
	Dst      netip.Addr
	Src      netip.Addr    // bound to, when valid
	Size     int           // bytes of the whole IP packet; 0 means 84, as ping(8) sends
	DF       bool          // never fragment, at the sender or on the way
	Interval time.Duration // 0 means 10 ms
}

// PingResult counts by sequence number.
type PingResult struct {
	Sent   int
	Lost   []int // sequence numbers, from 0, without an answer one second after the last send
	Errors []error
}

// String is one line for a test's log.
func (r PingResult) String() string {
	return fmt.Sprintf("%d sent, %d lost %v %v", r.Sent, len(r.Lost), r.Lost, r.Errors)
}

// Pinger is a running echo stream.
type Pinger struct {
	spec     Ping
	file     *os.File
	id       uint16
	stop     chan struct{}
	sender   sync.WaitGroup
	receiver sync.WaitGroup

	mu        sync.Mutex // guards what follows
	answered  map[int]bool
	result    PingResult
	abandoned bool
}

// grace is how long after the last send an answer still counts.
const grace = time.Second

// StartPing starts an echo stream from the namespace. Stop ends it; the end of the test does too.
func (n *NS) StartPing(spec Ping) *Pinger {
	n.t.Helper()
	if spec.Interval == 0 {
		spec.Interval = 10 * time.Millisecond
	}
	if spec.Size == 0 {
		spec.Size = 84
	}
	p := &Pinger{spec: spec, stop: make(chan struct{}), answered: map[int]bool{}}
	if err := n.Do(p.open); err != nil {
		n.t.Fatalf("in %s: open an echo socket: %v", n.Name, err)
	}
	p.receiver.Go(p.receive)
	p.sender.Go(p.send)
	n.t.Cleanup(func() { p.Stop() })
	return p
}

// Ping sends count echo requests and waits for the answers, one second at most after the last.
func (n *NS) Ping(spec Ping, count int) PingResult {
	n.t.Helper()
	p := n.StartPing(spec)
	for p.sent() < count {
		time.Sleep(time.Millisecond)
	}
	return p.Stop()
}

// CanPing reports whether dst answers one of the requests of a second, as a condition of Eventually. It returns with
// the first answer.
func (n *NS) CanPing(dst netip.Addr) error {
	n.t.Helper()
	p := n.StartPing(Ping{Dst: dst, Interval: 50 * time.Millisecond})
	defer p.Stop()
	for end := time.Now().Add(grace); time.Now().Before(end); {
		if p.heard() > 0 {
			p.abandon()
			return nil
		}
		time.Sleep(time.Millisecond)
	}
	p.abandon()
	return fmt.Errorf("%s does not answer %s: %s", dst, n.Name, p.Stop())
}

func (p *Pinger) heard() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return len(p.answered)
}

// abandon makes Stop not wait for answers.
func (p *Pinger) abandon() {
	p.mu.Lock()
	defer p.mu.Unlock()
	p.abandoned = true
}

func (p *Pinger) sent() int {
	p.mu.Lock()
	defer p.mu.Unlock()
	return p.result.Sent
}

// Stop ends the stream, waits until every request is answered or a second has passed, and returns the count.
func (p *Pinger) Stop() PingResult {
	select {
	case <-p.stop:
	default:
		close(p.stop)
		p.sender.Wait()
		for end := time.Now().Add(grace); time.Now().Before(end) && p.waits(); {
			time.Sleep(time.Millisecond)
		}
		p.file.Close()
	}
	p.receiver.Wait()
	r := p.result
	r.Lost = p.missing()
	return r
}

// waits reports whether answers may still come that matter.
func (p *Pinger) waits() bool {
	p.mu.Lock()
	defer p.mu.Unlock()
	return !p.abandoned && len(p.answered) < p.result.Sent
}

func (p *Pinger) missing() []int {
	p.mu.Lock()
	defer p.mu.Unlock()
	var lost []int
	for seq := range p.result.Sent {
		if !p.answered[seq] {
			lost = append(lost, seq)
		}
	}
	return lost
}

func (p *Pinger) open() error {
	family, proto := unix.AF_INET, unix.IPPROTO_ICMP
	if p.spec.Dst.Is6() {
		family, proto = unix.AF_INET6, unix.IPPROTO_ICMPV6
	}
	fd, err := unix.Socket(family, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, proto)
	if err != nil {
		return err
	}
	p.file = os.NewFile(uintptr(fd), "icmp")
	p.id = uint16(time.Now().UnixNano())
	if err := p.options(fd); err != nil {
		return err
	}
	return unix.Connect(fd, sockaddr(p.spec.Dst))
}

func (p *Pinger) options(fd int) error {
	_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 4<<20)
	if p.spec.Src.IsValid() {
		if err := unix.Bind(fd, sockaddr(p.spec.Src)); err != nil {
			return fmt.Errorf("bind to %s: %w", p.spec.Src, err)
		}
	}
	if p.spec.Dst.Is6() {
		mode := unix.IPV6_PMTUDISC_DONT
		if p.spec.DF {
			mode = unix.IPV6_PMTUDISC_PROBE
		}
		return unix.SetsockoptInt(fd, unix.IPPROTO_IPV6, unix.IPV6_MTU_DISCOVER, mode)
	}
	mode := unix.IP_PMTUDISC_DONT
	if p.spec.DF {
		mode = unix.IP_PMTUDISC_PROBE // sets DF and ignores what was learned, so each packet is judged by the path
	}
	return unix.SetsockoptInt(fd, unix.IPPROTO_IP, unix.IP_MTU_DISCOVER, mode)
}

func sockaddr(a netip.Addr) unix.Sockaddr {
	if a.Is4() {
		return &unix.SockaddrInet4{Addr: a.As4()}
	}
	return &unix.SockaddrInet6{Addr: a.As16()}
}

func (p *Pinger) send() {
	tick := time.NewTicker(p.spec.Interval)
	defer tick.Stop()
	for seq := 0; ; seq++ {
		_, err := p.file.Write(p.request(seq))
		p.mu.Lock()
		p.result.Sent++
		if err != nil && len(p.result.Errors) < 5 {
			p.result.Errors = append(p.result.Errors, err)
		}
		p.mu.Unlock()
		select {
		case <-p.stop:
			return
		case <-tick.C:
		}
	}
}

// request is an ICMP echo request. The high half of the sequence number is in the payload.
func (p *Pinger) request(seq int) []byte {
	header, echo := 20, byte(8)
	if p.spec.Dst.Is6() {
		header, echo = 40, 128
	}
	b := make([]byte, max(p.spec.Size-header, 12))
	b[0] = echo
	binary.BigEndian.PutUint16(b[4:], p.id)
	binary.BigEndian.PutUint16(b[6:], uint16(seq))
	binary.BigEndian.PutUint32(b[8:], uint32(seq))
	if !p.spec.Dst.Is6() { // the kernel fills in the checksum of ICMPv6
		binary.BigEndian.PutUint16(b[2:], checksum(b))
	}
	return b
}

func checksum(b []byte) uint16 {
	var sum uint32
	for pair := range slices.Chunk(b, 2) {
		sum += uint32(pair[0]) << 8
		if len(pair) == 2 {
			sum += uint32(pair[1])
		}
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return ^uint16(sum)
}

func (p *Pinger) receive() {
	buf := make([]byte, 1<<16)
	for {
		n, err := p.file.Read(buf)
		if isClosed(err) {
			return
		}
		if err != nil {
			continue // an ICMP error that came back for an earlier packet
		}
		p.note(buf[:n])
	}
}

func (p *Pinger) note(b []byte) {
	reply := byte(129)
	if !p.spec.Dst.Is6() {
		reply = 0
		if len(b) < 20 {
			return
		}
		b = b[int(b[0]&0xf)*4:] // a raw IPv4 socket delivers the IP header too
	}
	if len(b) < 12 || b[0] != reply || binary.BigEndian.Uint16(b[4:]) != p.id {
		return
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	p.answered[int(binary.BigEndian.Uint32(b[8:]))] = true
}
