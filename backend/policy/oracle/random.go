package oracle

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/policy"
)

// Cluster is a small random cluster of two nodes, with the packets that are worth asking about.
type Cluster struct {
	World   policy.World // as node 0 sees it
	Packets []Packet

	Node map[string]int // which node a pod is on, by UID
}

// draw makes random parts of a cluster.
type draw struct{ *rand.Rand }

// Random makes the cluster of a seed. Size is how much of everything there is; 1 is the smallest that has two of each.
func Random(seed uint64, size int) Cluster {
	d := draw{rand.New(rand.NewPCG(seed, 4))}
	c := Cluster{Node: map[string]int{}}
	for i := range 1 + d.IntN(2+size) {
		c.World.Namespaces = append(c.World.Namespaces, &policy.Namespace{Name: fmt.Sprintf("ns%d", i), Labels: d.labels()})
	}
	for i := range 2 {
		c.World.Nodes = append(c.World.Nodes, &policy.Node{Name: fmt.Sprintf("node%d", i), Labels: d.labels(), Addrs: nodeAddrs(i)})
	}
	for i := range 2 + d.IntN(3+3*size) {
		p := d.pod(i, c.World.Namespaces)
		c.Node[p.UID] = d.IntN(2)
		c.World.Pods = append(c.World.Pods, p)
	}
	for i := range d.IntN(2 + 2*size) {
		c.World.Policies = append(c.World.Policies, d.networkPolicy(i, c.World.Namespaces))
	}
	for i := range max(0, d.IntN(3+size)-1) {
		c.World.Cluster = append(c.World.Cluster, d.clusterPolicy(i))
	}
	if d.chance(20) {
		c.World.Gated = append(c.World.Gated, podAddrs(d.IntN(len(c.World.Pods)))[0])
	}
	c.sort()
	c.Packets = d.packets(c, 30+20*size)
	c.World = c.View(0)
	return c
}

// View is the World as a node sees it: the pods that are on it are local.
func (c Cluster) View(node int) policy.World {
	w := c.World
	w.Pods = nil
	for _, p := range c.World.Pods {
		q := *p
		q.Local = c.Node[p.UID] == node
		w.Pods = append(w.Pods, &q)
	}
	return w
}

// sort puts everything in the World's order.
func (c Cluster) sort() {
	slices.SortFunc(c.World.Pods, func(a, b *policy.Pod) int {
		return strings.Compare(a.Namespace+"\x00"+a.Name+"\x00"+a.UID, b.Namespace+"\x00"+b.Name+"\x00"+b.UID)
	})
	slices.SortFunc(c.World.Policies, func(a, b *policy.NetworkPolicy) int {
		return strings.Compare(a.Namespace+"\x00"+a.Name, b.Namespace+"\x00"+b.Name)
	})
	slices.SortFunc(c.World.Cluster, func(a, b *policy.ClusterPolicy) int { return strings.Compare(a.Name, b.Name) })
}

func (d draw) chance(percent int) bool { return d.IntN(100) < percent }

func pick[T any](d draw, list ...T) T { return list[d.IntN(len(list))] }

// labels draws from few keys and values, so that selectors often hit.
func (d draw) labels() policy.Labels {
	m := map[string]string{}
	for _, k := range []string{"app", "tier"} {
		if d.chance(70) {
			m[k] = pick(d, "a", "b", "c")
		}
	}
	return policy.LabelsOf(m)
}

func nodeAddrs(i int) []netip.Addr {
	return []netip.Addr{netip.AddrFrom4([4]byte{192, 168, 0, byte(i + 1)}), addr16(0xfd, 0xee, i+1)}
}

// podAddrs are all inside 10.244.0.0/28 and its counterpart: prefixes of /29 to /31 cut them apart.
func podAddrs(i int) [2]netip.Addr {
	return [2]netip.Addr{netip.AddrFrom4([4]byte{10, 244, 0, byte(i + 1)}), addr16(0xfd, 0x00, i+1)}
}

func addr16(a, b byte, last int) netip.Addr {
	return netip.AddrFrom16([16]byte{0: a, 1: b, 15: byte(last)})
}

func (d draw) pod(i int, spaces []*policy.Namespace) *policy.Pod {
	p := &policy.Pod{
		Namespace: pick(d, spaces...).Name, Name: fmt.Sprintf("pod%d", i), UID: fmt.Sprintf("uid%d", i),
		Labels: d.labels(), Created: int64(i), Phase: policy.Running, Addrs: podAddrs(i),
	}
	switch {
	case d.chance(8):
		p.Phase = policy.Finished
	case d.chance(8):
		p.HostNetwork = true
		copy(p.Addrs[:], nodeAddrs(d.IntN(2)))
	case d.chance(8):
		p.Phase = policy.Pending
	}
	p.Terminating = d.chance(10)
	if i > 0 && d.chance(10) && !p.HostNetwork {
		p.Addrs = podAddrs(i - 1) // the address has been used before, or is claimed twice
	}
	if d.chance(20) {
		p.Addrs[1] = netip.Addr{}
	}
	for _, name := range []string{"http", "dns"} {
		for range d.IntN(3) {
			p.Ports = append(p.Ports, policy.NamedPort{Name: name, Proto: d.proto(), Port: d.port()})
		}
	}
	return p
}

func (d draw) proto() policy.Proto { return pick(d, policy.TCP, policy.TCP, policy.UDP, policy.SCTP) }

func (d draw) port() uint16 { return pick[uint16](d, 53, 80, 81, 82, 8080) }

func (d draw) selector() policy.Selector {
	var s policy.Selector
	for range d.IntN(3) {
		r := policy.Requirement{Key: pick(d, "app", "tier", "none"), Op: pick(d, policy.In, policy.In, policy.NotIn, policy.Exists, policy.DoesNotExist)}
		if r.Op == policy.In || r.Op == policy.NotIn {
			r.Values = pick(d, []string{"a"}, []string{"b"}, []string{"a", "b"}, []string{"b", "c"})
		}
		s.All = append(s.All, r)
	}
	return s
}

func (d draw) networkPolicy(i int, spaces []*policy.Namespace) *policy.NetworkPolicy {
	np := &policy.NetworkPolicy{Namespace: pick(d, spaces...).Name, Name: fmt.Sprintf("np%d", i), Pods: d.selector()}
	np.Isolates = pick(d, [2]bool{true, false}, [2]bool{false, true}, [2]bool{true, true})
	for dir := range np.Rules {
		for range d.IntN(3) {
			np.Rules[dir] = append(np.Rules[dir], d.rule(func() policy.Peer {
				switch d.IntN(4) {
				case 0:
					return policy.Peer{Networks: []policy.Network{d.network()}}
				case 1:
					return policy.Peer{Namespace: np.Namespace, Pods: d.selector()}
				}
				s := d.selector()
				return policy.Peer{Namespaces: &s, Pods: d.selector()}
			}))
		}
	}
	return np
}

func (d draw) clusterPolicy(i int) *policy.ClusterPolicy {
	s := d.selector()
	cp := &policy.ClusterPolicy{
		Name: fmt.Sprintf("cnp%d", i), Tier: pick(d, policy.Admin, policy.Baseline), Priority: int32(d.IntN(3)),
		Subject: policy.Peer{Namespaces: &s, Pods: d.selector()},
	}
	for dir := range cp.Rules {
		for range d.IntN(3) {
			r := d.rule(func() policy.Peer {
				s := d.selector()
				switch {
				case policy.Direction(dir) == policy.Ingress || d.chance(50):
					return policy.Peer{Namespaces: &s, Pods: d.selector()}
				case d.chance(50):
					return policy.Peer{Nodes: &s}
				}
				return policy.Peer{Networks: []policy.Network{{CIDR: d.network().CIDR}}}
			})
			r.Action, r.Name = pick(d, policy.Accept, policy.Deny, policy.Pass), pick(d, "", `it's "free" text; } flush`)
			cp.Rules[dir] = append(cp.Rules[dir], r)
		}
	}
	return cp
}

func (d draw) rule(peer func() policy.Peer) policy.Rule {
	r := policy.Rule{AllPeers: d.chance(25), AllPorts: d.chance(40)}
	for range d.IntN(3) {
		if !r.AllPeers {
			r.Peers = append(r.Peers, peer())
		}
	}
	for range d.IntN(4) {
		if !r.AllPorts {
			r.Ports = append(r.Ports, d.portTerm())
		}
	}
	return r
}

func (d draw) portTerm() policy.Port {
	switch d.IntN(6) {
	case 0, 1:
		return policy.Port{Name: pick(d, "http", "dns"), Proto: pick(d, policy.AnyProto, policy.TCP, policy.UDP)}
	case 2:
		return policy.Port{Proto: d.proto()}
	case 3:
		return policy.Port{Proto: d.proto(), First: pick[uint16](d, 1, 80, 81), Last: pick[uint16](d, 81, 8080, 65535)}
	}
	port := d.port()
	return policy.Port{Proto: d.proto(), First: port, Last: port}
}

func (d draw) network() policy.Network {
	a := podAddrs(d.IntN(8))
	f := d.IntN(2)
	prefix := func(least int) netip.Prefix {
		bits := least + d.IntN(5)
		if d.chance(15) {
			bits = 0
		}
		return netip.PrefixFrom(podAddrs(d.IntN(8))[f], bits)
	}
	least := []int{28, 124}[f]
	n := policy.Network{CIDR: netip.PrefixFrom(a[f], prefix(least).Bits())}
	for range d.IntN(3) {
		n.Except = append(n.Except, prefix(least+1))
	}
	return n
}

// packets draws pairs of pods, nodes and strangers.
func (d draw) packets(c Cluster, n int) []Packet {
	w := c.World
	var ends [2][]netip.Addr
	for _, p := range w.Pods {
		if p.HostNetwork {
			continue
		}
		for f, a := range p.Addrs {
			if a.IsValid() {
				ends[f] = append(ends[f], a)
			}
		}
	}
	pods := [2]int{len(ends[0]), len(ends[1])}
	for f := range ends {
		ends[f] = append(ends[f], nodeAddrs(0)[f], nodeAddrs(1)[f], []netip.Addr{netip.MustParseAddr("203.0.113.9"), addr16(0x20, 0x01, 9)}[f])
	}
	var out []Packet
	for range n {
		f := d.IntN(2)
		i, k := d.IntN(len(ends[f])), d.IntN(len(ends[f]))
		if i >= pods[f] && k >= pods[f] {
			continue // no pod has a part in it
		}
		p := Packet{Src: ends[f][i], Dst: ends[f][k], Proto: d.proto(), Port: d.port()}
		switch to := podAt(w, p.Dst); {
		case d.chance(10):
			p.Proto, p.Port = []policy.Proto{1, 58}[f], 0
		case to != nil && len(to.Ports) > 0 && d.chance(40):
			named := pick(d, to.Ports...)
			p.Proto, p.Port = named.Proto, named.Port
		}
		if from, ok := c.nodeOf(p.Src); ok && p.Dst == nodeAddrs(from)[f] {
			p.OwnNode = true
		}
		if to, ok := c.nodeOf(p.Dst); ok && p.Src == nodeAddrs(to)[f] {
			continue // always allowed
		}
		out = append(out, p)
	}
	return out
}

// nodeOf is the node of the pod that has an address.
func (c Cluster) nodeOf(a netip.Addr) (int, bool) {
	p := podAt(c.World, a)
	if p == nil {
		return 0, false
	}
	return c.Node[p.UID], true
}
