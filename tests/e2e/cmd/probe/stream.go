package main

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"net"
	"time"
)

// streamResult describes one long TCP connection to the echo port.
type streamResult struct {
	Sent     int     `json:"sent"`
	Received int     `json:"received"`
	MaxStall float64 `json:"maxStallSeconds"` // the longest time without an answer
	Error    string  `json:"error"`
}

// stream keeps one TCP connection busy and checks that every number comes back in order.
func stream(o options) (any, error) {
	conn, err := net.DialTimeout("tcp", o.target, 5*time.Second)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	var r streamResult
	done := make(chan streamResult)
	go func() { done <- readStream(o, conn) }()
	r.Sent = pace(o, func(seq int) {
		var number [8]byte
		binary.BigEndian.PutUint64(number[:], uint64(seq))
		if _, err := conn.Write(number[:]); err != nil && r.Error == "" {
			r.Error = err.Error()
		}
	})
	if err := errors.Join(conn.(*net.TCPConn).CloseWrite(), conn.SetReadDeadline(time.Now().Add(30*time.Second))); err != nil && r.Error == "" {
		r.Error = err.Error()
	}
	read := <-done
	r.Received, r.MaxStall = read.Received, read.MaxStall
	if r.Error == "" {
		r.Error = read.Error
	}
	return r, nil
}

func readStream(o options, conn net.Conn) streamResult {
	var r streamResult
	var number [8]byte
	last := time.Now()
	for {
		if _, err := io.ReadFull(conn, number[:]); err != nil {
			if err != io.EOF {
				r.Error = err.Error()
			}
			return r
		}
		r.MaxStall = max(r.MaxStall, time.Since(last).Seconds())
		last = time.Now()
		if got := int(binary.BigEndian.Uint64(number[:])); got != r.Received {
			r.Error = fmt.Sprintf("got %d where %d was due", got, r.Received)
			return r
		}
		r.Received++
		o.answered()
	}
}

// udpEcho sends count numbered datagrams to the echo port and counts the answers, copies included.
func udpEcho(o options) (any, error) {
	conn, err := net.Dial("udp", o.target)
	if err != nil {
		return nil, fmt.Errorf("open a UDP socket: %w", err)
	}
	defer conn.Close()
	var answers tally
	go func() {
		buffer := make([]byte, 1500)
		for {
			n, err := conn.Read(buffer)
			if errors.Is(err, net.ErrClosed) {
				return
			}
			if err == nil && n == 8 { // other errors are ICMP's, e.g. while no pod listens; the next datagram may pass
				answers.saw(int(binary.BigEndian.Uint64(buffer)))
			}
		}
	}()
	for seq := range o.count {
		var number [8]byte
		binary.BigEndian.PutUint64(number[:], uint64(seq))
		_, _ = conn.Write(number[:]) // a datagram that could not be sent shows up as lost
		time.Sleep(o.every)
	}
	time.Sleep(time.Second)
	return answers.result(o.count), nil
}

// connectResult counts connections.
type connectResult struct {
	Tried  int      `json:"tried"`
	OK     int      `json:"ok"`
	Wrong  int      `json:"wrong"` // those that the other end saw under another address than wanted
	Errors []string `json:"errors"`
}

// connectMany opens connections one after another, is told under which address it is seen, and closes them, until it is told
// to stop.
func connectMany(o options) (any, error) {
	r := connectResult{Errors: []string{}}
	pace(o, func(int) {
		r.Tried++
		seen, err := seenAs(o.target)
		if err == nil && seen != o.source {
			r.Wrong++
			err = fmt.Errorf("seen as %s", seen)
		}
		if err != nil {
			if len(r.Errors) < 10 {
				r.Errors = append(r.Errors, time.Now().Format(time.TimeOnly)+" "+err.Error())
			}
			return
		}
		r.OK++
		o.answered()
	})
	return r, nil
}

// seenAs asks the other end for the address it sees. The limit leaves room for three retransmissions of the first packet: what
// takes that long on a machine that does too much at once is late, and not lost.
func seenAs(target string) (string, error) {
	const limit = 15 * time.Second
	conn, err := net.DialTimeout("tcp", target, limit)
	if err != nil {
		return "", err
	}
	defer conn.Close()
	if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return "", err
	}
	var seen string
	if _, err := fmt.Fscanln(conn, &seen); err != nil {
		return "", fmt.Errorf("read the answer: %w", err)
	}
	return seen, nil
}
