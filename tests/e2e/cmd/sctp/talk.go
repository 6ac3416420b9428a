package main

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"net"
	"os"
	"slices"
	"strconv"
	"time"
)

// again is the time between two INITs, which may get lost.
const again = 500 * time.Millisecond

// associate sends INITs to host:port until an INIT ACK comes back or the time is over.
func associate(target string, limit time.Duration) error {
	host, number, err := net.SplitHostPort(target)
	if err != nil {
		return fmt.Errorf("UNKNOWN: %w", err)
	}
	port, err := strconv.ParseUint(number, 10, 16)
	if err != nil {
		return fmt.Errorf("UNKNOWN: %w", err)
	}
	addr, err := net.ResolveIPAddr("ip", host)
	if err != nil {
		return fmt.Errorf("DNS: %w", err)
	}
	conn, err := net.DialIP("ip:132", nil, addr)
	if err != nil {
		return fmt.Errorf("OTHER: %w", err)
	}
	defer conn.Close()
	init := packet{from: uint16(32768 + rand.IntN(28000)), to: uint16(port), kind: chunkInit, own: rand.Uint32() | 1}
	for end := time.Now().Add(limit); time.Now().Before(end); {
		if _, err := conn.Write(init.bytes()); err != nil {
			return fmt.Errorf("OTHER: %w", err)
		}
		if err := await(conn, init, min(again, time.Until(end))); !errors.Is(err, os.ErrDeadlineExceeded) {
			return err
		}
	}
	return errTimeout
}

// await waits for the answer to an INIT.
func await(conn *net.IPConn, init packet, limit time.Duration) error {
	if err := conn.SetReadDeadline(time.Now().Add(limit)); err != nil {
		return fmt.Errorf("OTHER: %w", err)
	}
	buffer := make([]byte, 1500)
	for {
		n, _, err := conn.ReadFrom(buffer)
		if err != nil {
			return fmt.Errorf("OTHER: %w", err)
		}
		if got, ok := parse(buffer[:n]); ok && got.kind == chunkInitAck && got.to == init.from && got.from == init.to && got.tag == init.own {
			return nil
		}
	}
}

// serve answers INITs to these ports, of both families, until it is killed.
func serve(numbers []string) error {
	var ports []uint16
	for _, number := range numbers {
		port, err := strconv.ParseUint(number, 10, 16)
		if err != nil {
			return fmt.Errorf("read a port: %w", err)
		}
		ports = append(ports, uint16(port))
	}
	failed := make(chan error)
	for network, any := range map[string]string{"ip4:132": "0.0.0.0", "ip6:132": "::"} {
		conn, err := net.ListenPacket(network, any)
		if err != nil {
			return fmt.Errorf("open a raw socket: %w", err)
		}
		go func() { failed <- answer(conn, ports) }()
	}
	return <-failed
}

func answer(conn net.PacketConn, ports []uint16) error {
	buffer := make([]byte, 1500)
	for {
		n, from, err := conn.ReadFrom(buffer)
		if err != nil {
			return fmt.Errorf("read from a raw socket: %w", err)
		}
		got, ok := parse(buffer[:n])
		if !ok || got.kind != chunkInit || !slices.Contains(ports, got.to) {
			continue
		}
		ack := packet{from: got.to, to: got.from, tag: got.own, kind: chunkInitAck, own: rand.Uint32() | 1}
		_, _ = conn.WriteTo(ack.bytes(), from) // one that is lost is asked for again
	}
}
