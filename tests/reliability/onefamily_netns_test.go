package reliability

import (
	"errors"
	"fmt"
	"os"
	"slices"
	"strings"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
)

// oneFamilyRows are faults of one family of a dual-stack cluster: those of the other groups that can strike one alone, and some
// that only exist there. Whatever is changed, fails or is badly said in one family, the other loses nothing.
func oneFamilyRows() []Fault {
	var rows []Fault
	for _, f := range subnet.Families() {
		all := slices.Concat(deviceRows(), tableRows(), switchRows(), aloneRows(), addressRows(), intruderRows(), nodeRows(), ownFamilyRows(f))
		for _, fault := range all {
			if len(fault.Families) > 0 && !slices.Contains(fault.Families, f) {
				continue
			}
			fault.Worst = strings.HasPrefix(fault.Name, "flannel.1 deleted")
			fault.Name, fault.Families = f.String()+" alone: "+fault.Name, []subnet.Family{f}
			fault.Heal = max(fault.Heal, time.Second)
			rows = append(rows, fault)
		}
	}
	return rows
}

// aloneRows are rules that stop one family.
func aloneRows() []Fault {
	return []Fault{
		forward("iptables (nft): FORWARD set to DROP", "nft", "-P FORWARD DROP"),
		forward("iptables (legacy): FORWARD ends in REJECT", "legacy", "-A FORWARD -j REJECT"),
	}
}

// ownFamilyRows are changes that need two families: a Node, or a configuration, that has the other one alone.
func ownFamilyRows(f subnet.Family) []Fault {
	const follows = "heals: every node has what it says now"
	return []Fault{
		// P-07: an update in which the other family is as it was is no update to a watcher that joins the two by "or".
		{Name: "P-07: a peer's public IP changes", Heal: 2 * time.Second, Note: follows, After: strangerLeaves,
			Do: func(b *Bench) error { return b.peerSays(f, func(e *End) { e.IP = otherAddr(e.IP) }) }},
		{Name: "P-07: a peer's MAC changes", Heal: 2 * time.Second, Note: follows, After: strangerLeaves,
			Do: func(b *Bench) error { return b.peerSays(f, func(e *End) { e.MAC[1] ^= 0x40 }) }},
		// S-02: a node that has one family only takes part in that.
		{Name: "S-02: a node without the family joins", Heal: 2 * time.Second, Note: follows, After: strangerLeaves,
			Do: func(b *Bench) error {
				p := b.stranger(1)
				p.Ends[f] = End{}
				b.Strangers = []Peer{p}
				return b.Create(p, p.annotations())
			}},
		newcomer("S-02: a machine without the family joins", "", "heals: it is in, everywhere, in the other", func(b *Bench, n *Node) (Options, func() error, error) {
			n.Ends[f] = End{}
			return Options{}, func() error { return nil }, b.Create(n.Peer, nil)
		}),
		{Name: "S-02: an agent starts without an address of it", Heal: 10 * time.Second, Loses: "the node has no address", Leaks: forgotten,
			Note: "meanwhile a node joins; heals: from the address being there", After: strangerLeaves,
			Do: func(b *Bench) error { return b.startWithoutAddress(f) }},
		{Name: "turned off in net-conf.json, and on again", Heal: 10 * time.Second, Loses: "it is off", Leaks: "nothing of it is masqueraded while it is off",
			Note: "node by node; nothing of it is left in between", Do: func(b *Bench) error { return b.turnOffAndOn(f) }},
	}
}

// peerSays lets a stranger join, and then announce something else in one family.
func (b *Bench) peerSays(f subnet.Family, change func(*End)) error {
	if err := strangerJoins(b); err != nil {
		return err
	}
	if _, err := b.Await(patience, b.Restored); err != nil {
		return err
	}
	p := b.Strangers[0]
	change(&p.Ends[f])
	b.Strangers = []Peer{p}
	err := b.announces(p)
	b.Damaged()
	return err
}

// startWithoutAddress takes a family's address from the first node and starts its agent anew, which has to go on with the other.
func (b *Bench) startWithoutAddress(f subnet.Family) error {
	n := b.Nodes[0]
	n.Agent.Kill()
	if _, err := n.NS.Try("ip", "addr", "del", fmt.Sprintf("%s/%d", n.Ends[f].IP, wordsFor(f).bits), "dev", "eth0"); err != nil {
		return err
	}
	if err := n.Agent.Start(Options{}); err != nil {
		return err
	}
	if err := strangerJoins(b); err != nil {
		return err
	}
	other := 1 - f
	_, err := b.Await(patience, func() error {
		have, err := n.Dump()
		if _, ok := have.Routes[kernel.RouteKey{Dst: b.stranger(1).Ends[other].CIDR, Metric: wordsFor(other).metric}]; !ok {
			err = fmt.Errorf("without an address of %s nothing is done in %s:\n%s", f, other, have)
		}
		return err
	})
	err = errors.Join(err, b.comesBack(n))
	b.Damaged()
	return err
}

// turnOffAndOn takes a family out of net-conf.json, on one node after the other, and puts it back.
func (b *Bench) turnOffAndOn(f subnet.Family) error {
	rest := [2]lane.Lane{lane.IPv6, lane.IPv4}[f]
	for _, conf := range []string{rest.NetConf(b.Backend), b.NetConf()} {
		for _, n := range b.Nodes {
			if err := os.WriteFile(n.Path("net-conf.json"), []byte(conf), 0o600); err != nil {
				return err
			}
			off := conf != b.NetConf()
			if _, err := b.Await(patience, func() error { return n.isOff(f, off) }); err != nil {
				return err
			}
		}
	}
	b.Damaged()
	return nil
}

// isOff wants a node to have nothing of a family, or to have its device again.
func (n *Node) isOff(f subnet.Family, off bool) error {
	have, err := n.Dump()
	if err != nil {
		return err
	}
	_, there := have.Links[device(f)]
	for key := range have.Routes {
		there = there || off && subnet.FamilyOf(key.Dst.Addr()) == f
	}
	if there == off {
		return fmt.Errorf("%s has, with %s off %v:\n%s", n.Name, f, off, have)
	}
	return n.Agent.Ready()
}
