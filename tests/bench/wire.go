package bench

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"math"
	"net"
	"net/netip"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/tests/nstest"
)

const (
	echoPort, sinkPort, datagramPort = 7000, 7001, 7002

	mostLoss  = 0.03 // of throughput and of requests
	mostFirst = 20 * time.Microsecond
)

// arm is what is measured of the wire with the rules in the path, or without.
type arm struct {
	bits     []float64 // a second
	requests []float64 // a second
	first    []time.Duration
	connects []time.Duration
}

// wire measures what a packet pays: from one client to the server behind the rules, and to another's on a node that is the same
// but for them. The agents go on, for a part of the rules goes with its agent.
func (w *town) wire(c crowd, rounds int) []Figure {
	w.t.Helper()
	w.serve(w.on)
	w.serve(w.plain)
	var arms [2]arm // without, with
	for i := range rounds {
		for k := range 2 {
			on := (k + i) % 2 // each is first as often
			w.must(arms[on].measure(w.off.Pod, []*home{w.plain, w.on}[on].PodAddrs()[0]))
		}
	}
	title := fmt.Sprintf("between pods of two nodes; %d policies, %d of them select the server", c.policies, c.selecting)
	rate := func(what, unit string, pick func(arm) []float64) Figure {
		var shares []float64 // of neighbours in time, so that others' load hits both
		a, b := pick(arms[0]), pick(arms[1])
		for i := range a {
			shares = append(shares, b[i]/a[i]-1)
		}
		loss := -quantile(shares, 0.5)
		// Where the median of many more rounds would be, 19 times in 20: so many places around the middle.
		off := 0.98 / math.Sqrt(float64(len(shares)))
		low, high := quantile(shares, max(0.5-off, 0)), quantile(shares, min(0.5+off, 1))
		return Figure{
			What: what + ", " + title, Got: spread(b, unit), Beside: "`--network-policy=off`", Base: spread(a, unit),
			Difference: fmt.Sprintf("%+.1f %% (%+.1f to %+.1f)", -100*loss, 100*low, 100*high), Limit: "within 3 %", Kept: loss < mostLoss,
		}
	}
	first := func(what string, pick func(arm) []time.Duration) Figure {
		a, b := pick(arms[0]), pick(arms[1])
		d := quantile(b, 0.5) - quantile(a, 0.5)
		words := func(all []time.Duration) string {
			return fmt.Sprintf("%s (%s to %s)", short(quantile(all, 0.5)), short(quantile(all, 0.25)), short(quantile(all, 0.75)))
		}
		return Figure{What: what + ", " + title, Got: words(b), Beside: "`--network-policy=off`", Base: words(a), Difference: short(d), Limit: "< 20 µs", Kept: d < mostFirst}
	}
	return []Figure{
		rate("TCP throughput", "Gbit/s", func(a arm) []float64 { return a.bits }),
		rate("TCP requests one after the other", "a second", func(a arm) []float64 { return a.requests }),
		first("first datagram of a flow, there and back", func(a arm) []time.Duration { return a.first }),
		first("TCP connection set up", func(a arm) []time.Duration { return a.connects }),
	}
}

// spread is a median between its quartiles.
func spread(all []float64, unit string) string {
	return fmt.Sprintf("%.4g (%.4g to %.4g) %s", quantile(all, 0.5), quantile(all, 0.25), quantile(all, 0.75), unit)
}

// serve makes a node's pod answer.
func (w *town) serve(h *home) {
	w.t.Helper()
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(h.PodAddrs()[0], port) }
	h.Pod.TCPEcho(at(echoPort))
	h.Pod.UDPEcho(at(datagramPort))
	l := h.Pod.Listen(at(sinkPort))
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() {
				defer conn.Close()
				buf, total := make([]byte, 1<<18), uint64(0)
				for {
					n, err := conn.Read(buf)
					total += uint64(n)
					if err != nil {
						break
					}
				}
				_, _ = conn.Write(binary.BigEndian.AppendUint64(nil, total)) // whoever sent may have gone
			}()
		}
	}()
}

// slice is how long one thing is measured in one round: short, since two neighbours in time meet the same load.
const slice = 300 * time.Millisecond

// measure does each thing once.
func (a *arm) measure(client *nstest.NS, server netip.Addr) error {
	at := func(port uint16) netip.AddrPort { return netip.AddrPortFrom(server, port) }
	bits, err1 := throughput(client, at(sinkPort))
	requests, err2 := requests(client, at(echoPort))
	a.bits, a.requests = append(a.bits, bits), append(a.requests, requests)
	const times = 100
	first, err3 := many(client, times, func() (time.Duration, error) { return firstPacket(at(datagramPort)) })
	connects, err4 := many(client, times, func() (time.Duration, error) { return connect(at(echoPort)) })
	a.first, a.connects = append(a.first, first...), append(a.connects, connects...)
	return errors.Join(err1, err2, err3, err4)
}

// throughput sends as much as goes in, and counts what has come out.
func throughput(client *nstest.NS, to netip.AddrPort) (float64, error) {
	conn, err := client.Dial("tcp", to, patience)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	buf := make([]byte, 1<<18)
	began := time.Now()
	for time.Since(began) < slice {
		if _, err := conn.Write(buf); err != nil {
			return 0, err
		}
	}
	if err := conn.(*net.TCPConn).CloseWrite(); err != nil {
		return 0, err
	}
	var total [8]byte
	if _, err := io.ReadFull(conn, total[:]); err != nil {
		return 0, err
	}
	return float64(binary.BigEndian.Uint64(total[:])) * 8 / 1e9 / time.Since(began).Seconds(), nil
}

// requests asks for a byte, again and again.
func requests(client *nstest.NS, to netip.AddrPort) (float64, error) {
	conn, err := client.Dial("tcp", to, patience)
	if err != nil {
		return 0, err
	}
	defer conn.Close()
	buf := make([]byte, 256)
	if _, err := conn.Read(buf); err != nil { // the greeting
		return 0, err
	}
	began, n := time.Now(), 0
	for ; time.Since(began) < slice; n++ {
		if _, err := conn.Write(buf[:1]); err != nil {
			return 0, err
		}
		if _, err := conn.Read(buf[:1]); err != nil {
			return 0, err
		}
	}
	return float64(n) / time.Since(began).Seconds(), nil
}

// many does something so often inside a namespace.
func many(ns *nstest.NS, n int, do func() (time.Duration, error)) (out []time.Duration, err error) {
	err = ns.Do(func() error {
		for range n {
			took, err := do()
			if err != nil {
				return err
			}
			out = append(out, took)
		}
		return nil
	})
	return out, err
}

// socket opens one that blocks, so that nothing but the kernel is between a packet and its time.
func socket(kind int, to netip.AddrPort) (fd int, at unix.Sockaddr, err error) {
	family := unix.AF_INET6
	at = &unix.SockaddrInet6{Port: int(to.Port()), Addr: to.Addr().As16()}
	if to.Addr().Is4() {
		family, at = unix.AF_INET, &unix.SockaddrInet4{Port: int(to.Port()), Addr: to.Addr().As4()}
	}
	fd, err = unix.Socket(family, kind|unix.SOCK_CLOEXEC, 0)
	if err == nil {
		err = unix.SetsockoptTimeval(fd, unix.SOL_SOCKET, unix.SO_RCVTIMEO, &unix.Timeval{Sec: 5})
	}
	return fd, at, err
}

// firstPacket is the time that the first datagram of a flow and its answer take.
func firstPacket(to netip.AddrPort) (time.Duration, error) {
	fd, at, err := socket(unix.SOCK_DGRAM, to)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	if err := unix.Connect(fd, at); err != nil {
		return 0, err
	}
	buf := make([]byte, 256)
	began := time.Now()
	if _, err := unix.Write(fd, buf[:1]); err != nil {
		return 0, err
	}
	_, err = unix.Read(fd, buf)
	return time.Since(began), err
}

// connect is the time that a connection takes.
func connect(to netip.AddrPort) (time.Duration, error) {
	fd, at, err := socket(unix.SOCK_STREAM, to)
	if err != nil {
		return 0, err
	}
	defer unix.Close(fd)
	began := time.Now()
	err = unix.Connect(fd, at)
	return time.Since(began), err
}
