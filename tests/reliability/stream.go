package reliability

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"net/netip"
	"sync"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// stream is one TCP connection from the first node's pod to the last one's, through the address of a Service. Each number
// that it sends has to come back, and it has to stay the same connection: one that breaks counts as a loss.
type stream struct {
	bench    *Bench
	flow     flow
	service  netip.AddrPort
	tally    *Tally
	listener net.Listener
	serving  sync.WaitGroup
	conns    connections // of the server

	mu      sync.Mutex // guards what follows
	conn    net.Conn
	readers sync.WaitGroup
}

const (
	streamPort = 7000
	// stall is how long a connection that does not break may be without an answer: TCP tries again less and less often.
	stall = 10 * time.Second
)

// serviceTable is what kube-proxy does for a Service with one endpoint.
const serviceTable = `table %[1]s bench-service
delete table %[1]s bench-service
table %[1]s bench-service {
	chain prerouting {
		type nat hook prerouting priority dstnat
		%[1]s daddr %[2]s tcp dport 80 dnat to %[3]s
	}
}
`

func openStream(b *Bench, f subnet.Family, tally *Tally) (part, error) {
	first, last, w := b.Nodes[0], b.Nodes[len(b.Nodes)-1], wordsFor(f)
	s := &stream{
		bench: b, tally: tally, flow: flow{f, "tcp through the Service"}, service: netip.AddrPortFrom(netip.MustParseAddr(w.service), 80),
	}
	at := netip.AddrPortFrom(last.PodIPs[f], streamPort)
	err := last.Pod.Do(func() (err error) {
		s.listener, err = net.Listen("tcp", at.String())
		return err
	})
	if err != nil {
		return nil, err
	}
	s.serving.Go(s.serve)
	if _, err := first.NS.Input(fmt.Sprintf(serviceTable, w.nft, w.service, at), "nft", "-f", "-"); err != nil {
		s.close()
		return nil, err
	}
	if err := s.connect(); err != nil {
		s.close()
		return nil, err
	}
	return s, nil
}

func (s *stream) serve() {
	for {
		conn, err := s.listener.Accept()
		if err != nil {
			return
		}
		s.conns.add(conn)
		s.serving.Go(func() {
			defer conn.Close()
			_, _ = io.Copy(conn, conn) // the client sees how it ends
		})
	}
}

func (s *stream) connect() error {
	var conn net.Conn
	err := s.bench.Nodes[0].Pod.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", s.service.String(), 5*time.Second)
		return err
	})
	if err != nil {
		return err
	}
	s.mu.Lock()
	s.conn = conn
	s.mu.Unlock()
	s.readers.Go(func() {
		var number [4]byte
		for {
			if _, err := io.ReadFull(conn, number[:]); err != nil {
				return
			}
			s.tally.came(s.flow, int(binary.BigEndian.Uint32(number[:])))
		}
	})
	return nil
}

// run implements part.
func (s *stream) run(stop <-chan struct{}) {
	every(10*time.Millisecond, stop, func() {
		number := s.tally.sent(s.flow)
		err := s.write(number)
		if err == nil {
			return
		}
		s.tally.remark("the stream broke: %v", err)
		s.hangUp()
		if err := s.connect(); err != nil && !errors.Is(err, net.ErrClosed) {
			s.tally.remark("the stream does not come back: %v", err)
		}
	})
}

func (s *stream) write(number int) error {
	s.mu.Lock()
	conn := s.conn
	s.mu.Unlock()
	if conn == nil {
		return errors.New("no connection")
	}
	if err := conn.SetWriteDeadline(time.Now().Add(stall)); err != nil {
		return err
	}
	_, err := conn.Write(binary.BigEndian.AppendUint32(nil, uint32(number)))
	return err
}

func (s *stream) hangUp() {
	s.mu.Lock()
	defer s.mu.Unlock()
	if s.conn != nil {
		s.conn.Close()
		s.conn = nil
	}
}

// settled implements part: TCP has to bring what it took, however late.
func (s *stream) settled() bool {
	_, err := await(func() error {
		if !s.tally.arrived(s.flow) {
			return errNotYet
		}
		return nil
	}, stall)
	if err != nil {
		s.tally.remark("the stream has not brought everything within %v", stall)
	}
	return true
}

// close implements part.
func (s *stream) close() {
	s.hangUp()
	s.listener.Close()
	s.conns.close()
	s.readers.Wait()
	s.serving.Wait()
}

// connections are open ones, to be closed together.
type connections struct {
	mu   sync.Mutex // guards list
	list []net.Conn
}

func (c *connections) add(conn net.Conn) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.list = append(c.list, conn)
}

func (c *connections) close() {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, conn := range c.list {
		conn.Close()
	}
}
