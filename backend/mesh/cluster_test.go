package mesh_test

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
)

// cluster is a cluster in memory. Each node has its own view of what the nodes announce, which lags behind, and a kernel that
// is as its last plan said; what a kernel sends is delivered if the kernel it is sent to hears it.
type cluster struct {
	rand  *rand.Rand
	now   time.Time
	nodes []*node
	// announced is what the nodes announce, one list per version: the API server puts all writes into one order.
	announced [][]announcement
	mute      map[pair]bool      // no session of WireGuard comes up between them
	sessions  map[pair]bool      // of WireGuard, both ways
	sealed    map[direction]bool // a node that encrypts has sent by WireGuard to a peer
	first     map[pair]bool      // of the sessions of a node that came up just now, those that were not up yet: nothing went before
	loud      bool
	story     []string
}

type announcement struct {
	Kind string
	Also subnet.Kinds
}

// pair is two nodes, the lower first; direction is from one to the other.
type (
	pair      [2]int
	direction [2]int
)

func pairOf(a, b int) pair { return pair{min(a, b), max(a, b)} }

type node struct {
	i       int
	c       mesh.Config // its Kind is what net-conf.json says
	flannel bool        // it hears its kind, sends nothing, and never changes
	dead    bool
	view    int // the version that it has seen
	result  mesh.Result
	have    kernel.State
	last    mesh.Ways
	kept    mesh.Kept
	wrote   int       // the version that it wrote last
	at      time.Time // and when
}

// id is the number in the node's addresses.
func (n *node) id() byte { return byte(n.i + 1) }

// setting is what all nodes of a cluster share.
type setting struct {
	from, to         string
	directs          [2]bool // DirectRouting before and after
	mode             string  // of WireGuard
	families         []subnet.Family
	flannel, offLink bool            // a node of flannel, that stays; a node behind a router
	mute             bool            // between two nodes no session of WireGuard comes up
	death            bool            // a node dies on the way
	lacks            []subnet.Family // of the second node's, in namespaces
}

func (s setting) String() string {
	out := s.from + map[bool]string{true: "+direct"}[s.directs[0]] + " to " + s.to + map[bool]string{true: "+direct"}[s.directs[1]]
	for text, on := range map[string]bool{", with flannel": s.flannel, ", off link": s.offLink, ", mute": s.mute, ", with a death": s.death} {
		if on {
			out += text
		}
	}
	return fmt.Sprintf("%s, %s, %v", out, s.mode, s.families)
}

// newWalk makes a cluster that is at rest with the backend of before.
func newWalk(s setting, seed uint64, size int) *cluster {
	c := &cluster{rand: rand.New(rand.NewPCG(seed, 1)), now: noon(), mute: map[pair]bool{}, sessions: map[pair]bool{}, sealed: map[direction]bool{}, first: map[pair]bool{}}
	first := make([]announcement, size)
	for i := range size {
		n := &node{i: i, c: config(byte(i+1), s.from), have: kernel.New(), flannel: s.flannel && i == size-1}
		n.c.DirectRouting, n.c.WireGuard.Conf.Mode = s.directs[0], s.mode
		for _, f := range subnet.Families() {
			if !slices.Contains(s.families, f) {
				n.c.Ends[f] = mesh.End{}
			} else if s.offLink && i == 0 {
				n.c.Ends[f].ParentName = "far"
			}
		}
		c.nodes = append(c.nodes, n)
		first[i] = announcement{Kind: s.from}
	}
	c.announced = [][]announcement{first}
	c.mute[pairOf(0, 1)] = s.mute
	c.settle(4)
	return c
}

func (c *cluster) tell(format string, args ...any) {
	c.story = append(c.story, fmt.Sprintf(format, args...))
}

// snapshot is what a node has seen.
func (c *cluster) snapshot(n *node) subnet.Snapshot {
	var s subnet.Snapshot
	for j, a := range c.announced[n.view] {
		if j == n.i {
			s.Self = subnet.Self{BackendType: a.Kind, Also: a.Also}
			continue
		}
		p := peer(byte(j+1), a.Kind)
		p.Also = a.Also
		if c.nodes[j].flannel {
			p.Port = 0
		}
		for f := range p.Endpoints {
			if c.nodes[j].c.Ends[f].IsZero() {
				p.Endpoints[f] = subnet.Endpoint{}
			} else if !p.Speaks(subnet.VXLAN) {
				p.Endpoints[f].MAC = subnet.MAC{}
			}
		}
		if !p.Speaks(subnet.WireGuard) {
			p.Key, p.WGPorts = subnet.Key{}, [2]uint16{}
		}
		s.Peers = append(s.Peers, p)
	}
	return s
}

// round is one round of a node's data plane.
func (c *cluster) round(n *node) {
	if n.flannel {
		n.have = plannedFor(n.c)
		return
	}
	s := c.snapshot(n)
	conf := n.c
	conf.Former = formerOf(conf.Kind, s.Self, n.have)
	r, err := mesh.Plan(mesh.Input{Config: conf, Snapshot: s, Host: c.host(n), Have: n.have, Last: n.last, Kept: n.kept, Now: c.now})
	if err != nil {
		panic(err)
	}
	hs := n.have.Handshakes
	n.result, n.last, n.kept, n.have = r, r.Ways, r.Kept, r.Want
	n.have.Handshakes = hs
	c.dropSessions()
}

// plannedFor is the kernel of a flannel node: it hears its kind.
func plannedFor(c mesh.Config) kernel.State {
	r, err := mesh.Plan(input(c))
	if err != nil {
		panic(err)
	}
	return r.Want
}

// formerOf is what the daemon knows of the time before: by announcement, and by devices.
func formerOf(kind string, self subnet.Self, have kernel.State) subnet.Kinds {
	k := subnet.KindsOf(self.BackendType) | self.Also
	for _, l := range have.Links {
		k |= subnet.KindsOf(map[string]string{
			kernel.KindVXLAN: subnet.VXLAN, kernel.KindWireGuard: subnet.WireGuard, kernel.KindIPIP: subnet.IPIP, kernel.KindIP6Tnl: subnet.IPIP,
		}[l.Kind])
	}
	return k &^ subnet.KindsOf(kind, subnet.Alloc)
}

func (c *cluster) host(n *node) kernel.Host {
	h := lan()
	for _, other := range c.nodes {
		if c.isOffLink(other) == c.isOffLink(n) {
			continue
		}
		for _, f := range subnet.Families() {
			a := public(f, other.id())
			h.Routes = append(h.Routes, kernel.HostRoute{Dst: netip.PrefixFrom(a, a.BitLen()), Type: "unicast",
				Hops: []kernel.Hop{{Index: 2, Via: public(f, 254)}}})
		}
	}
	return h
}

// isOffLink: the nodes of the far side have numbers from 100, which no cluster of these tests has unless it is asked for.
func (c *cluster) isOffLink(n *node) bool {
	return n.c.Ends[subnet.IPv4].ParentName == "far" || n.c.Ends[subnet.IPv6].ParentName == "far"
}

// publish writes what a node says after its last round.
func (c *cluster) publish(n *node) {
	if n.flannel || n.result.Ways == nil {
		return
	}
	current := c.announced[len(c.announced)-1]
	next := announcement{Kind: n.c.Kind, Also: n.result.Also}
	if current[n.i] == next {
		return
	}
	list := slices.Clone(current)
	list[n.i] = next
	c.announced = append(c.announced, list)
	n.wrote, n.at = len(c.announced)-1, c.now
	c.tell("%d announces %s also %q", n.i, next.Kind, next.Also)
}

// wgKeys are how two nodes name each other in a family.
func (c *cluster) knows(a, b *node) bool {
	for k := range a.have.Peers {
		if k.Key == peer(b.id(), "").Key {
			return true
		}
	}
	return false
}

func (c *cluster) dropSessions() {
	for p := range c.sessions {
		if a, b := c.nodes[p[0]], c.nodes[p[1]]; !c.knows(a, b) || !c.knows(b, a) {
			delete(c.sessions, p)
		}
	}
}

// shake brings a session up, or renews it, and lets one end or both notice.
func (c *cluster) shake(a, b *node, both bool) {
	if c.mute[pairOf(a.i, b.i)] || a.dead || b.dead || !c.knows(a, b) || !c.knows(b, a) {
		return
	}
	c.sessions[pairOf(a.i, b.i)] = true
	delete(c.first, pairOf(a.i, b.i))
	c.notice(a, b)
	if both {
		c.notice(b, a)
	}
}

func (c *cluster) notice(a, b *node) {
	for k := range a.have.Peers {
		if k.Key == peer(b.id(), "").Key {
			a.have.Handshakes[k] = c.now
		}
	}
}

// reboot takes away what a kernel holds, and the sessions with it. They come up again at once.
func (c *cluster) reboot(n *node) {
	n.have = kernel.New()
	c.restart(n)
	c.dropSessions()
	c.round(n)
	c.tell("%d reboots: %v", n.i, describe(n))
	for _, other := range c.nodes {
		if other != n {
			c.first[pairOf(n.i, other.i)] = true
			c.shake(n, other, true)
		}
	}
}

// settle runs everything until nothing has changed for some rounds of five seconds.
func (c *cluster) settle(calm int) {
	for quiet, rounds := 0, 0; quiet < calm; rounds++ {
		if rounds > 1000 {
			panic("the cluster does not come to rest")
		}
		before := len(c.announced)
		for _, n := range c.nodes {
			if n.dead {
				continue
			}
			n.view = len(c.announced) - 1
			c.round(n)
			c.publish(n)
			for _, other := range c.nodes {
				if other != n {
					c.shake(n, other, true)
				}
			}
		}
		c.now = c.now.Add(5 * time.Second)
		quiet++
		if len(c.announced) != before {
			quiet = 0
		}
	}
}

// check returns what is wrong at this moment.
func (c *cluster) check() error {
	for _, a := range c.nodes {
		for _, b := range c.nodes {
			if a == b || a.dead || b.dead || a.flannel {
				continue
			}
			for _, f := range subnet.Families() {
				if a.c.Ends[f].IsZero() || b.c.Ends[f].IsZero() {
					continue
				}
				if err := c.delivers(f, a, b); err != nil {
					return fmt.Errorf("%v from %d to %d: %w", f, a.i, b.i, err)
				}
			}
		}
	}
	return nil
}

// delivers sends a packet by the route that is there.
func (c *cluster) delivers(f subnet.Family, a, b *node) error {
	key := kernel.RouteKey{Dst: prefix(f, b.id()), Metric: kernel.RouteMetric(f)}
	r, ok := a.have.Routes[key]
	d := direction{a.i, b.i}
	if !ok {
		return fmt.Errorf("no route")
	}
	link := a.have.Links[r.Link]
	if link.Kind == kernel.KindWireGuard {
		c.sealed[d] = c.sealed[d] || a.c.Kind == subnet.WireGuard
		return c.deliversWireGuard(f, a, b, r.Link)
	}
	if c.sealed[d] && a.c.Kind == subnet.WireGuard && c.announced[a.view][b.i].speaks(subnet.WireGuard) {
		return fmt.Errorf("in the clear by %s after WireGuard", r.Link)
	}
	switch link.Kind {
	case kernel.KindVXLAN:
		to := a.have.Neighs[kernel.Neigh{Link: r.Link, IP: r.Via}]
		fdb := a.have.FDB[kernel.FDBKey{Link: r.Link, MAC: to}]
		heard := b.have.Links[r.Link]
		if heard.MAC != to || fdb.Dst != public(f, b.id()) || heard.Kind != link.Kind {
			return fmt.Errorf("VXLAN to %s at %s, where there is %v", to, fdb.Dst, heard)
		}
	case kernel.KindIPIP, kernel.KindIP6Tnl:
		if b.have.Links[r.Link].Kind != link.Kind || r.Via != public(f, b.id()) {
			return fmt.Errorf("IP in IP to %s, where there is no device", r.Via)
		}
	default:
		return c.deliversPlain(f, a, b, r)
	}
	return nil
}

func (a announcement) speaks(kind string) bool { return a.Kind == kind || a.Also.Has(kind) }

func (c *cluster) deliversWireGuard(f subnet.Family, a, b *node, link string) error {
	if c.mute[pairOf(a.i, b.i)] || c.first[pairOf(a.i, b.i)] {
		return nil // nothing can be done, and it must not go in the clear
	}
	there := b.have.Peers[kernel.WGKey{Link: link, Key: peer(a.id(), "").Key}]
	if !c.sessions[pairOf(a.i, b.i)] || there.Allowed[f] != prefix(f, a.id()) {
		return fmt.Errorf("by WireGuard without a session (%v), or the peer allows %v", c.sessions[pairOf(a.i, b.i)], there.Allowed)
	}
	return nil
}

// deliversPlain: the other end takes the packet if it does not insist on encryption, and if its strict check of sources
// (rp_filter) is off or finds that answers go the same way.
func (c *cluster) deliversPlain(f subnet.Family, a, b *node, r kernel.Route) error {
	back := b.have.Routes[kernel.RouteKey{Dst: prefix(f, a.id()), Metric: kernel.RouteMetric(f)}]
	switch {
	case r.Via != public(f, b.id()) || c.isOffLink(a) != c.isOffLink(b):
		return fmt.Errorf("plainly to %s, who is no neighbour", r.Via)
	case b.flannel:
		return nil
	case slices.Contains(b.result.Encrypted[f], prefix(f, a.id())):
		return fmt.Errorf("plainly to one who wants it encrypted")
	case back.Link != "eth0" && !slices.Contains(b.result.Plain, "eth0"):
		return fmt.Errorf("plainly to one whose rp_filter drops it: %v, %v", back, b.result.Plain)
	}
	return nil
}

// text is the story so far.
func (c *cluster) text() string { return strings.Join(c.story, "\n") }
