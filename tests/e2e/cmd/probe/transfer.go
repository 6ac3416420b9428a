package main

import (
	"bufio"
	"crypto/sha256"
	"encoding/hex"
	"fmt"
	"hash"
	"io"
	"math/rand"
	"net"
	"time"
)

// The transfer protocol: the client sends one line, "put N" or "get N", then N bytes flow one way. After a put the server
// answers with one line: the SHA-256 of what it got. The bytes are those of a seeded generator, so both ends know them.

// transferResult describes one transfer.
type transferResult struct {
	Bytes   int64   `json:"bytes"`
	Seconds float64 `json:"seconds"`
	Mbit    float64 `json:"mbitPerSecond"`
	Intact  bool    `json:"intact"`
}

func content(n int64) io.Reader { return io.LimitReader(rand.New(rand.NewSource(n)), n) }

func sumOf(n int64) string {
	sum := sha256.New()
	_, _ = io.Copy(sum, content(n)) // memory to memory
	return text(sum)
}

func text(h hash.Hash) string { return hex.EncodeToString(h.Sum(nil)) }

func serveTransfer(c net.Conn) {
	in := bufio.NewReader(c)
	var verb string
	var n int64
	if _, err := fmt.Fscanf(in, "%s %d\n", &verb, &n); err != nil {
		return
	}
	if verb == "get" {
		_, _ = io.Copy(c, content(n)) // the client counts
		return
	}
	sum := sha256.New()
	if _, err := io.CopyN(sum, in, n); err != nil {
		return
	}
	fmt.Fprintln(c, text(sum))
}

// send transfers bytes to the server and waits for it to confirm the whole.
func send(o options) (any, error) {
	return transfer(o, "put", func(c net.Conn) (string, error) {
		if _, err := io.Copy(c, content(o.bytes)); err != nil {
			return "", err
		}
		var sum string
		_, err := fmt.Fscanln(c, &sum)
		return sum, err
	})
}

// receive transfers bytes from the server.
func receive(o options) (any, error) {
	return transfer(o, "get", func(c net.Conn) (string, error) {
		sum := sha256.New()
		_, err := io.CopyN(sum, c, o.bytes)
		return text(sum), err
	})
}

func transfer(o options, verb string, move func(net.Conn) (string, error)) (any, error) {
	want := sumOf(o.bytes)
	conn, err := net.DialTimeout("tcp", o.target, 5*time.Second)
	if err != nil {
		return nil, fmt.Errorf("connect: %w", err)
	}
	defer conn.Close()
	if err := conn.SetDeadline(time.Now().Add(o.limit)); err != nil {
		return nil, fmt.Errorf("limit the transfer: %w", err)
	}
	if _, err := fmt.Fprintf(conn, "%s %d\n", verb, o.bytes); err != nil {
		return nil, fmt.Errorf("ask for a transfer: %w", err)
	}
	start := time.Now()
	sum, err := move(conn)
	if err != nil {
		return nil, fmt.Errorf("transfer: %w", err)
	}
	took := time.Since(start).Seconds()
	return transferResult{Bytes: o.bytes, Seconds: took, Mbit: float64(o.bytes) * 8 / 1e6 / took, Intact: sum == want}, nil
}
