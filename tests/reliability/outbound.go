package reliability

import (
	"errors"
	"fmt"
	"net"
	"net/netip"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
)

// outbound are new TCP connections from the pods in turn to the host outside. That host counts what comes with another
// source address than a node's, packet by packet: an answer to such a one would find no way back, so no connection tells.
type outbound struct {
	bench    *Bench
	flow     flow
	tally    *Tally
	listener net.Listener
	serving  sync.WaitGroup
	dialling sync.WaitGroup
	turn     int
}

// watchTable counts at the host outside. It goes through the addresses of the nodes, for those are who may send, and by the
// port, which is another for each row: the last packets of an earlier row's connections may come late.
const watchTable = `table %[1]s bench-watch
delete table %[1]s bench-watch
table %[1]s bench-watch {
	chain input {
		type filter hook input priority 0
		%[1]s saddr { %[2]s } accept
		%[1]s saddr %[3]s tcp dport %[4]s counter
	}
}
`

func openOutbound(b *Bench, f subnet.Family, tally *Tally) (part, error) {
	o := &outbound{bench: b, tally: tally, flow: flow{f, "tcp to the outside"}}
	var nodes []string
	for _, n := range b.Nodes {
		nodes = append(nodes, n.Ends[f].IP.String())
	}
	err := b.Outside.Do(func() (err error) {
		o.listener, err = net.Listen("tcp", netip.AddrPortFrom(OutsideAddr(f), 0).String())
		return err
	})
	if err != nil {
		return nil, err
	}
	_, port, err := net.SplitHostPort(o.listener.Addr().String())
	if err == nil {
		rules := fmt.Sprintf(watchTable, wordsFor(f).nft, strings.Join(nodes, ", "), lane.Network(f), port)
		_, err = b.Outside.Input(rules, "nft", "-f", "-")
	}
	if err != nil {
		return nil, errors.Join(err, o.listener.Close())
	}
	o.serving.Go(func() {
		for {
			conn, err := o.listener.Accept()
			if err != nil {
				return
			}
			o.serving.Go(func() {
				defer conn.Close()
				_ = conn.SetReadDeadline(time.Now().Add(stall))
				_, _ = conn.Read(make([]byte, 1)) // the client closes first
			})
		}
	})
	return o, nil
}

// run implements part.
func (o *outbound) run(stop <-chan struct{}) {
	every(50*time.Millisecond, stop, func() {
		n := o.bench.Nodes[o.turn%len(o.bench.Nodes)]
		o.turn++
		number := o.tally.sent(o.flow)
		o.dialling.Go(func() {
			if err := o.dial(n); err != nil {
				o.tally.remark("%s number %d, from %s: %v", o.flow, number, n.Name, err)
				return
			}
			o.tally.came(o.flow, number)
		})
	})
}

// dial opens a connection and wants its first SYN answered: a second one says that the first was lost. That alone counts, and
// not how long a busy machine takes to hear of the answer.
func (o *outbound) dial(n *Node) error {
	var conn net.Conn
	err := n.Pod.Do(func() (err error) {
		conn, err = net.DialTimeout("tcp", o.listener.Addr().String(), patience/2)
		return err
	})
	if err != nil {
		return err
	}
	defer conn.Close()
	raw, err := conn.(*net.TCPConn).SyscallConn()
	if err != nil {
		return err
	}
	var info *unix.TCPInfo
	var ierr error
	if err := raw.Control(func(fd uintptr) { info, ierr = unix.GetsockoptTCPInfo(int(fd), unix.IPPROTO_TCP, unix.TCP_INFO) }); err != nil {
		return err
	}
	if ierr == nil && info.Total_retrans > 0 {
		return fmt.Errorf("connected by SYN number %d", info.Total_retrans+1)
	}
	return ierr
}

// settled implements part.
func (o *outbound) settled() bool {
	o.dialling.Wait()
	return true
}

// close implements part.
func (o *outbound) close() {
	o.dialling.Wait()
	o.listener.Close()
	o.serving.Wait()
	text, err := o.bench.Outside.Try("nft", "list", "chain", wordsFor(o.flow.family).nft, "bench-watch", "input")
	if err != nil {
		o.tally.mistake(o.flow.family, 1, "nobody watched the outside: %v", err)
		return
	}
	var packets int
	if _, rest, ok := strings.Cut(text, "counter packets "); ok {
		if _, err := fmt.Sscan(rest, &packets); err != nil {
			o.tally.mistake(o.flow.family, 1, "the outside's counter: %v", err)
		}
	}
	if packets > 0 {
		o.tally.mistake(o.flow.family, packets, "%d packets reached the outside with a pod's address", packets)
	}
}
