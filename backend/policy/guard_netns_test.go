package policy_test

import (
	"strings"
	"testing"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/oracle"
	"github.com/weft-cni/weft/subnet"
)

// again sends a packet of a connection that is known by its port.
func (c *chain) again(p oracle.Packet, sport uint16) uint32 {
	c.t.Helper()
	c.tag++
	return c.inject(p, datagram(p, transport(p, sport, c.payload())))
}

// Nobody answers a log that is sent by UDP, so the kernel calls each of its packets new. Where nobody translates addresses the
// guard brings the first chain of type nat, and that meets packets of connections that are older than itself.
func TestAStreamThatNobodyAnswersGoesOnWhenTheGuardComes(t *testing.T) { // N-15
	c := newChain(t)
	w := townOfTwo(t)
	for _, n := range c.node {
		n.SetNFT("table inet other { chain c { type filter hook forward priority 0; ct state invalid drop; }; }")
	}
	var streams []oracle.Packet
	for _, f := range subnet.Families() {
		streams = append(streams, oracle.Packet{Src: w.pod("x/c").Addrs[f], Dst: w.pod("x/b").Addrs[f], Proto: policy.UDP, Port: 53})
	}
	var tags []uint32
	send := func() {
		for _, p := range streams {
			tags = append(tags, c.again(p, 514))
		}
	}
	send()
	c.arrived()
	agent(t, netfilter.Host{NetNS: c.node[0].Path()}, func() policy.World { return w.World })
	send()
	send()
	arrived := c.arrived()
	for i, tag := range tags[2:] {
		if !arrived[tag] {
			t.Errorf("packet %d from %s is lost", i, streams[i%2].Src)
		}
	}
}

// Old recipes put translation at priority 0. Behind a chain that has settled a connection's source no other chain of its type
// is asked.
func TestTheGuardStandsBeforeAllWhoTranslateASource(t *testing.T) { // N-18, N-23
	c := newChain(t)
	w := townOfTwo(t)
	c.node[0].SetNFT(`table inet other {
	chain nat { type nat hook postrouting priority -150; snat ip to 203.0.113.9; snat ip6 to fd09::9; }
	chain count { type filter hook postrouting priority 110; meta l4proto udp counter; meta l4proto udp meta mark != 0 counter; }
}`)
	synced := agent(t, netfilter.Host{NetNS: c.node[0].Path()}, func() policy.World { return w.World })
	for _, f := range subnet.Families() {
		to := w.pod("x/b").Addrs[f]
		allowed := c.send(oracle.Packet{Src: w.pod("x/c").Addrs[f], Dst: to, Proto: policy.UDP, Port: 53})
		if !c.arrived()[allowed] {
			t.Error("what is allowed does not pass")
		}
	}
	list := c.node[0].Run("nft", "list", "table", "inet", "other")
	if n := strings.Count(list, "packets 0 "); n != 1 || !strings.Contains(list, "0x00000000 counter packets 0 ") {
		t.Errorf("packets go on with a mark, or none goes on:\n%s", list)
	}
	var denied []uint32
	for range 5 {
		c.node[0].SetNFT("delete table inet weft-policy")
		for range 50 {
			for _, f := range subnet.Families() {
				denied = append(denied, c.send(oracle.Packet{Src: w.pod("x/a").Addrs[f], Dst: w.pod("x/b").Addrs[f], Proto: policy.UDP, Port: 53}))
			}
		}
		<-synced
	}
	passed, leaked := c.arrived(), 0
	for _, tag := range denied {
		if passed[tag] {
			leaked++
		}
	}
	if leaked > 0 {
		t.Errorf("%d of %d packets passed that must not", leaked, len(denied))
	}
}
