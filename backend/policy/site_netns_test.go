package policy_test

import (
	"context"
	"encoding/binary"
	"fmt"
	"io"
	"net"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/tests/nstest"
)

// site is a node with three pods on its bridge and a host outside, and a Manager that works there.
type site struct {
	t       *testing.T
	node    *nstest.NS
	outside *nstest.NS
	pods    map[string]*nstest.NS
	world   policy.World
	m       *policy.Manager
	host    netfilter.Host
}

var podsOfSite = []string{"a", "b", "c"}

func podAddr(name string) netip.Addr {
	return netip.AddrFrom4([4]byte{10, 244, 1, byte(5 + slices.Index(podsOfSite, name))})
}

func podAddrLong(name string) netip.Addr {
	return netip.MustParseAddr(fmt.Sprintf("fd00:244:0:1::%d", 5+slices.Index(podsOfSite, name)))
}

const (
	outsideAddr  = "192.168.7.2"
	outsideLong  = "fd07::2"
	nodeAddr     = "192.168.7.1"
	nodeLong     = "fd07::1"
	clusterAddr  = "10.96.0.10"
	clusterLong  = "fd00:96::10"
	servicesPort = 80
)

func newSite(t *testing.T) *site {
	t.Helper()
	s := &site{t: t, node: nstest.New(t), outside: nstest.New(t), pods: map[string]*nstest.NS{}}
	s.world.Namespaces = []*policy.Namespace{{Name: "x", Labels: policy.LabelsOf(map[string]string{"ns": "x"})}}
	for _, name := range podsOfSite {
		s.pods[name] = s.node.Pod(1500, netip.PrefixFrom(podAddr(name), 24), netip.PrefixFrom(podAddrLong(name), 64))
		s.world.Pods = append(s.world.Pods, &policy.Pod{
			Namespace: "x", Name: name, UID: name, Local: true, Phase: policy.Running,
			Labels: policy.LabelsOf(map[string]string{"pod": name}), Addrs: [2]netip.Addr{podAddr(name), podAddrLong(name)},
		})
	}
	nstest.Veth(t, s.outside, "eth0", s.node, "uplink")
	s.node.IP("addr add 192.168.7.1/24 dev uplink")
	s.node.IP("addr add fd07::1/64 dev uplink nodad")
	s.outside.IP("addr add 192.168.7.2/24 dev eth0")
	s.outside.IP("addr add fd07::2/64 dev eth0 nodad")
	s.outside.IP("route add default via 192.168.7.1")
	s.outside.IP("-6 route add default via fd07::1")
	for _, name := range []string{"net.ipv4.ip_forward", "net.ipv6.conf.all.forwarding", "net.bridge.bridge-nf-call-iptables", "net.bridge.bridge-nf-call-ip6tables"} {
		s.node.SetSysctl(name, "1")
	}
	s.host = netfilter.Host{NetNS: s.node.Path()}
	s.m = policy.NewGuarded(s.host)
	t.Cleanup(func() { s.m.Close() })
	return s
}

// sync brings policies into force.
func (s *site) sync(policies ...*policy.NetworkPolicy) policy.Result {
	s.t.Helper()
	return s.syncWith(policy.Config{}, policies...)
}

func (s *site) syncWith(c policy.Config, policies ...*policy.NetworkPolicy) policy.Result {
	s.t.Helper()
	slices.SortFunc(policies, func(a, b *policy.NetworkPolicy) int { return strings.Compare(a.Name, b.Name) })
	s.world.Policies = policies
	res, err := s.m.Sync(context.Background(), s.world, c)
	if err != nil || res.Unguarded != nil {
		s.t.Fatalf("sync: %v %v", err, res.Unguarded)
	}
	return res
}

// restart lets a new agent follow the one that is there.
func (s *site) restart() {
	s.m.Close()
	s.m = policy.NewGuarded(s.host)
}

// named is a selector for the pods of some names.
func named(names ...string) policy.Selector {
	return policy.Selector{All: []policy.Requirement{{Key: "pod", Op: policy.In, Values: names}}}
}

// isolate is a policy that isolates pods in one direction, with some rules.
func isolate(d policy.Direction, pod string, rules ...policy.Rule) *policy.NetworkPolicy {
	np := &policy.NetworkPolicy{Namespace: "x", Name: "isolate-" + pod + "-" + d.String(), Pods: named(pod)}
	np.Isolates[d] = true
	np.Rules[d] = rules
	return np
}

// with allows pods as the other end, on all ports or on some of a protocol.
func with(peers []string, ports ...policy.Port) policy.Rule {
	return policy.Rule{Peers: []policy.Peer{{Namespace: "x", Pods: named(peers...)}}, AllPorts: len(ports) == 0, Ports: ports}
}

func port(proto policy.Proto, n uint16) policy.Port {
	return policy.Port{Proto: proto, First: n, Last: n}
}

// service lets a Service address lead to a pod, as kube-proxy does; hairpin is masqueraded.
func (s *site) service(pod string) {
	s.node.SetNFT(fmt.Sprintf(`table inet proxy {
	chain pre { type nat hook prerouting priority dstnat
		ip daddr %s dnat ip to %s
		ip6 daddr %s dnat ip6 to %s
	}
	chain post { type nat hook postrouting priority srcnat
		ip saddr %s ip daddr %s masquerade
	}
}`, clusterAddr, podAddr(pod), clusterLong, podAddrLong(pod), podAddr(pod), podAddr(pod)))
}

// reaches tells whether a UDP echo answers. One that should gets many tries on a busy machine, one that should not gets two.
func (s *site) reaches(from *nstest.NS, to string, tries int) bool {
	s.t.Helper()
	for range tries {
		if _, err := from.Seen("udp", netip.AddrPortFrom(netip.MustParseAddr(to), servicesPort), 250*time.Millisecond); err == nil {
			return true
		}
	}
	return false
}

// expect checks who reaches whom.
func (s *site) expect(what string, want bool, from *nstest.NS, to ...string) {
	s.t.Helper()
	for _, a := range to {
		if got := s.reaches(from, a, map[bool]int{true: 40, false: 2}[want]); got != want {
			s.t.Errorf("%s: from %s to %s passes: %v, want %v\n%s", what, from.Name, a, got, want, s.node.NFT())
		}
	}
}

// talk is a connection over which both ends send numbered messages all the time.
type talk struct {
	name  string
	mu    sync.Mutex // guards the numbers, which both ends' goroutines write
	sent  [2]int
	heard [2]int // the highest number that each end has heard
}

// talk starts a conversation from one pod to an address of another, and waits until both ends hear each other.
func (s *site) talk(network string, client, server *nstest.NS, to netip.Addr, at netip.AddrPort) *talk {
	s.t.Helper()
	tk := &talk{name: fmt.Sprintf("%s to %s", network, to)}
	accepted := make(chan io.ReadWriter, 1)
	if network == "tcp" {
		l := server.Listen(at)
		go func() {
			if conn, err := l.Accept(); err == nil {
				s.t.Cleanup(func() { conn.Close() })
				accepted <- conn
			}
		}()
	} else {
		accepted <- s.datagrams(server, at)
	}
	var conn net.Conn
	nstest.Eventually(s.t, 10*time.Second, func() (err error) {
		conn, err = client.Dial(network, netip.AddrPortFrom(to, at.Port()), time.Second)
		return err
	})
	done := make(chan struct{})
	s.t.Cleanup(func() { close(done) })
	go tk.run(0, conn, done)
	go tk.run(1, <-accepted, done)
	nstest.Eventually(s.t, 10*time.Second, func() error {
		if _, heard := tk.numbers(); heard[0] == 0 || heard[1] == 0 {
			return fmt.Errorf("%s: heard %v", tk.name, heard)
		}
		return nil
	})
	return tk
}

// peer is a UDP server that talks to whoever spoke to it last.
type peer struct {
	net.PacketConn
	mu sync.Mutex // guards to
	to net.Addr
}

func (s *site) datagrams(n *nstest.NS, at netip.AddrPort) *peer {
	s.t.Helper()
	p := &peer{}
	if err := n.Do(func() (err error) {
		p.PacketConn, err = net.ListenPacket("udp", at.String())
		return err
	}); err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() { p.Close() })
	return p
}

func (p *peer) Read(b []byte) (int, error) {
	n, from, err := p.ReadFrom(b)
	if err == nil {
		p.mu.Lock()
		p.to = from
		p.mu.Unlock()
	}
	return n, err
}

func (p *peer) Write(b []byte) (int, error) {
	p.mu.Lock()
	to := p.to
	p.mu.Unlock()
	if to == nil {
		return len(b), nil
	}
	return p.WriteTo(b, to)
}

// run is one end: 0 is the client.
func (t *talk) run(end int, conn io.ReadWriter, done chan struct{}) {
	go func() {
		buf := make([]byte, 4)
		for {
			if _, err := io.ReadFull(conn, buf); err != nil {
				select {
				case <-done:
					return
				case <-time.After(time.Millisecond):
				}
				if _, lasting := conn.(*net.TCPConn); lasting {
					return
				}
				continue
			}
			t.mu.Lock()
			t.heard[end] = max(t.heard[end], int(binary.BigEndian.Uint32(buf)))
			t.mu.Unlock()
		}
	}()
	tick := time.NewTicker(10 * time.Millisecond)
	defer tick.Stop()
	for {
		select {
		case <-done:
			return
		case <-tick.C:
		}
		t.mu.Lock()
		t.sent[end]++
		n := t.sent[end]
		t.mu.Unlock()
		if tcp, ok := conn.(*net.TCPConn); ok { // with a full buffer it would wait for acknowledgements that never come
			_ = tcp.SetWriteDeadline(time.Now().Add(10 * time.Millisecond))
		}
		_, _ = conn.Write(binary.BigEndian.AppendUint32(nil, uint32(n)))
	}
}

func (t *talk) numbers() (sent, heard [2]int) {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.sent, t.heard
}

// goOn waits until both ends have sent some more messages after now, and tells how many of those each end has heard.
func goOn(t *testing.T, n int, talks ...*talk) (heard [][2]int) {
	t.Helper()
	var before [][2]int
	for _, tk := range talks {
		sent, _ := tk.numbers()
		before = append(before, sent)
	}
	for i, tk := range talks {
		nstest.Eventually(t, time.Minute, func() error {
			sent, _ := tk.numbers()
			if sent[0] < before[i][0]+n || sent[1] < before[i][1]+n {
				return fmt.Errorf("%s: sent %v, began at %v", tk.name, sent, before[i])
			}
			return nil
		})
		_, got := tk.numbers()
		heard = append(heard, [2]int{max(0, got[0]-before[i][1]), max(0, got[1]-before[i][0])})
	}
	return heard
}
