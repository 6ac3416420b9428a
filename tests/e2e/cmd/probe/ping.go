package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"
	"os"
	"sync"
	"syscall"
	"time"

	"golang.org/x/sys/unix"
)

// lossResult says which of the numbered packets came back.
type lossResult struct {
	Sent       int   `json:"sent"`
	Received   int   `json:"received"`
	Duplicates int   `json:"duplicates"`
	Lost       []int `json:"lost"` // sequence numbers
}

// tally counts answers by sequence number.
type tally struct {
	mu  sync.Mutex // the reader and the sender share seen
	got map[int]int
}

func (t *tally) saw(seq int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.got == nil {
		t.got = map[int]int{}
	}
	t.got[seq]++
}

func (t *tally) result(sent int) lossResult {
	t.mu.Lock()
	defer t.mu.Unlock()
	r := lossResult{Sent: sent, Lost: []int{}}
	for seq := range sent {
		switch n := t.got[seq]; {
		case n == 0:
			r.Lost = append(r.Lost, seq)
		default:
			r.Received++
			r.Duplicates += n - 1
		}
	}
	return r
}

// protocol is what differs between the two of ICMP: RFC 792 and RFC 4443.
type protocol struct {
	network         string // of a raw socket
	any             string // the address of all interfaces
	request, reply  byte   // types of the messages
	kernelsChecksum bool   // it covers the addresses, which the kernel knows
}

func protocolOf(target *net.IPAddr) protocol {
	if target.IP.To4() != nil {
		return protocol{network: "ip4:icmp", any: "0.0.0.0", request: 8, reply: 0}
	}
	return protocol{network: "ip6:ipv6-icmp", any: "::", request: 128, reply: 129, kernelsChecksum: true}
}

// ping sends ICMP echo requests at a steady rate and counts the answers until one second after the last request. The
// number is 32 bits in the payload, since ICMP's own has 16 and would wrap.
func ping(o options) (any, error) {
	target, err := net.ResolveIPAddr("ip", o.target)
	if err != nil {
		return nil, fmt.Errorf("find the target: %w", err)
	}
	proto := protocolOf(target)
	conn, err := net.ListenPacket(proto.network, proto.any)
	if err != nil {
		return nil, fmt.Errorf("open an ICMP socket: %w", err)
	}
	defer conn.Close()
	if err := roomFor(conn.(*net.IPConn)); err != nil {
		return nil, err
	}
	id := uint16(os.Getpid())
	var answers tally
	go func(o options) {
		buffer := make([]byte, 1500)
		for {
			n, _, err := conn.ReadFrom(buffer)
			if err != nil {
				return
			}
			if n >= 12 && buffer[0] == proto.reply && binary.BigEndian.Uint16(buffer[4:]) == id {
				answers.saw(int(binary.BigEndian.Uint32(buffer[8:])))
				o.answered()
			}
		}
	}(o)
	sent := pace(o, func(seq int) {
		_, _ = conn.WriteTo(proto.echoRequest(id, seq), target) // one that could not be sent shows up as lost
	})
	time.Sleep(time.Second)
	return answers.result(sent), nil
}

// answersKept is how many bytes of answers the kernel keeps while a busy machine leaves this process without a processor: each
// raw socket of a pod is given every ICMP message, and with the default of 208 KiB three seconds of them were thrown away.
const answersKept = 16 << 20

// roomFor gives a socket that room, also beyond the limit of net.core.rmem_max.
func roomFor(conn syscall.Conn) error {
	raw, err := conn.SyscallConn()
	if err != nil {
		return fmt.Errorf("reach the ICMP socket: %w", err)
	}
	var setErr error
	if err := raw.Control(func(fd uintptr) {
		setErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, answersKept)
		if errors.Is(setErr, unix.EPERM) { // a pod without NET_ADMIN gets what the node's limit allows
			setErr = unix.SetsockoptInt(int(fd), unix.SOL_SOCKET, unix.SO_RCVBUF, answersKept)
		}
	}); err != nil {
		return fmt.Errorf("reach the ICMP socket: %w", err)
	}
	if setErr != nil {
		return fmt.Errorf("make room for answers: %w", setErr)
	}
	return nil
}

// pace calls send for 0, 1, 2, ... at the wanted rate; it does not fall behind when one call is late.
func pace(o options, send func(seq int)) int {
	start := time.Now()
	seq := 0
	for ; !o.over(start); seq++ {
		time.Sleep(time.Until(start.Add(time.Duration(seq) * o.every)))
		send(seq)
	}
	return seq
}

// echoRequest is an ICMP echo request with seq in its payload.
func (p protocol) echoRequest(id uint16, seq int) []byte {
	m := make([]byte, 64)
	m[0] = p.request
	binary.BigEndian.PutUint16(m[4:], id)
	binary.BigEndian.PutUint16(m[6:], uint16(seq))
	binary.BigEndian.PutUint32(m[8:], uint32(seq))
	if p.kernelsChecksum {
		return m
	}
	var sum uint32
	for i := 0; i < len(m); i += 2 {
		sum += uint32(binary.BigEndian.Uint16(m[i:]))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	binary.BigEndian.PutUint16(m[2:], ^uint16(sum))
	return m
}
