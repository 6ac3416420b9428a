package main

import (
	"fmt"
	"io"
	"net"
	"net/http"
	"os"
	"strings"
)

// The ports of `probe serve`.
const (
	httpPort     = ":8080" // GET /clientip, /hostname
	echoPort     = ":9000" // TCP and UDP: what comes in goes back
	sourcePort   = ":9001" // TCP: says under which address the client is seen
	transferPort = ":9002" // TCP: see transfer.go
)

// serve answers on all ports until it is killed.
func serve(options) (any, error) {
	echo, err := net.Listen("tcp", echoPort)
	if err != nil {
		return nil, err
	}
	source, err := net.Listen("tcp", sourcePort)
	if err != nil {
		return nil, err
	}
	transfer, err := net.Listen("tcp", transferPort)
	if err != nil {
		return nil, err
	}
	datagrams, err := net.ListenPacket("udp", echoPort)
	if err != nil {
		return nil, err
	}
	go accept(echo, func(c net.Conn) { _, _ = io.Copy(c, c) })
	go accept(source, func(c net.Conn) {
		host, _, _ := net.SplitHostPort(c.RemoteAddr().String()) // an address of the system's always splits
		fmt.Fprintln(c, strings.TrimPrefix(host, "::ffff:"))
	})
	go accept(transfer, serveTransfer)
	go echoDatagrams(datagrams)
	http.HandleFunc("/clientip", func(w http.ResponseWriter, r *http.Request) {
		host, _, _ := net.SplitHostPort(r.RemoteAddr)
		fmt.Fprint(w, strings.TrimPrefix(host, "::ffff:"))
	})
	http.HandleFunc("/hostname", func(w http.ResponseWriter, _ *http.Request) {
		name, _ := os.Hostname()
		fmt.Fprint(w, name)
	})
	return nil, http.ListenAndServe(httpPort, nil)
}

func accept(l net.Listener, handle func(net.Conn)) {
	for {
		c, err := l.Accept()
		if err != nil {
			return
		}
		go func() {
			defer c.Close()
			handle(c)
		}()
	}
}

func echoDatagrams(c net.PacketConn) {
	buffer := make([]byte, 64<<10)
	for {
		n, from, err := c.ReadFrom(buffer)
		if err != nil {
			return
		}
		_, _ = c.WriteTo(buffer[:n], from)
	}
}
