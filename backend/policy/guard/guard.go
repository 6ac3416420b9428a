// Package guard is the second net under NetworkPolicy: a small nftables table that nobody but this process can take away.
//
// The table of the policies is an ordinary one. A firewall that reloads itself by `nft flush ruleset` takes it along, and though
// it is back some milliseconds later, packets would pass meanwhile that the policies forbid. The guard's table has an owner
// (NFT_TABLE_F_OWNER, Linux 5.12): the kernel leaves it out when others flush, refuses to change it for them, and removes it
// when the owner's socket closes. It holds the addresses of the pods that policies have a say over, stands behind the policies
// on the way out of the node, and drops what begins without a mark that the policies set on each packet they let through. So
// while the policies stand the guard drops nothing, and while they are gone
//
//   - connections that were let through go on,
//   - new ones between ends that were let through in the last minutes pass, by the same port,
//   - all others wait: TCP tries again.
//
// Its chains are of nft's type nat, though they translate nothing: such a chain sees the first packet of each connection, and no
// other packet meets it.
//
// The mark is a bit of the packet's mark that the policies set on first packets of connections in the forward, output and input
// hooks, and that the guard takes off before they leave. While no guard stands others see it. What passed is remembered in
// a set of the guard's own, by the kernel, and forgotten whenever policies allow less than before.
//
// There is deliberately no NFT_TABLE_F_PERSIST (Linux 6.9). A table whose owner has died is flushed like any other, so it
// would protect from nothing; and it would stay behind an agent that was killed and replaced by one that knows of no mark. As
// it is the guard is there exactly as long as somebody keeps it right.
package guard

import (
	"errors"
	"fmt"
	"net/netip"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/subnet/nl"
)

const (
	// TableName is the name of the guard's table in nft's inet family.
	TableName = "weft-guard"
	// Priority is where the guard stands among those who translate a source: before all of them, for behind one that has settled
	// it nobody is asked. Connections have to be known first (NF_IP_PRI_CONNTRACK, -200).
	Priority = -199
	// Mark is the bit of a packet's mark by which the policies say that they have let it through.
	Mark = 0x1000
)

// Side is a place where packets of a pod are judged.
type Side uint8

// The sides.
const (
	ToPod Side = iota
	FromPod
	ToNode // from a pod to its own node
)

// Pods are the addresses that policies have a say over, by Side.
type Pods [3]map[netip.Addr]bool

// Empty tells whether there are none.
func (p Pods) Empty() bool { return len(p[ToPod])+len(p[FromPod])+len(p[ToNode]) == 0 }

// Guard keeps the table of one network namespace. One goroutine at a time may call it.
//
// What the table holds is known and not read: nobody else can have changed it.
type Guard struct {
	host  netfilter.Host
	conn  *nl.NFTables // the owner; nil while there is no table
	have  Pods
	input bool // there is a chain for packets to the own node
}

// New makes a Guard that guards nobody yet.
func New(h netfilter.Host) *Guard { return &Guard{host: h} }

// Narrow stops guarding all but some pods. It comes before the rules let the others go, for these rules mark nothing then.
func (g *Guard) Narrow(pods Pods) error {
	if g.conn == nil {
		return nil
	}
	if pods.Empty() {
		g.Close()
		return nil
	}
	drop := missing(pods, g.have)
	if drop.Empty() {
		return nil
	}
	return g.change(elements(unix.NFT_MSG_DELSETELEM, drop), func() { g.have = without(g.have, drop) })
}

// Widen guards pods whose rules are in force. With forget, what passed before these rules says nothing any more.
func (g *Guard) Widen(pods Pods, forget bool) error {
	if pods.Empty() {
		return nil
	}
	if g.conn == nil {
		return g.begin(pods)
	}
	var list []nl.NFTMessage
	input := g.input || len(pods[ToNode]) > 0
	if input && !g.input {
		list = append(list, inputChain()...)
	}
	list = append(list, elements(unix.NFT_MSG_NEWSETELEM, missing(g.have, pods))...)
	if forget {
		list = append(list, forgetting()...)
	}
	return g.change(list, func() { g.have, g.input = missing(Pods{}, pods), input })
}

// Close takes the table away.
func (g *Guard) Close() {
	if g.conn != nil {
		g.conn.Close()
	}
	g.conn, g.have, g.input = nil, Pods{}, false
}

// begin makes the table.
func (g *Guard) begin(pods Pods) error {
	err := g.host.Inside(func() error {
		c, err := nl.OwnTable(TableName)
		if err == nil {
			g.conn = &c
		}
		return err
	})
	if err != nil {
		return err
	}
	list := append(contents(), elements(unix.NFT_MSG_NEWSETELEM, pods)...)
	input := len(pods[ToNode]) > 0
	if input {
		list = append(list, inputChain()...)
	}
	return g.change(list, func() { g.have, g.input = missing(Pods{}, pods), input })
}

// change carries out a transaction. After an error nothing is certain, and the table goes: the next Widen makes it anew.
func (g *Guard) change(list []nl.NFTMessage, done func()) error {
	if err := g.conn.Change(list...); err != nil {
		g.Close()
		if errors.Is(err, unix.ENOENT) || errors.Is(err, unix.EOPNOTSUPP) { // what the kernel says when it lacks an expression, and not which
			err = fmt.Errorf("%w (does the kernel have nft_chain_nat, nft_ct, nft_fib_inet?)", err)
		}
		return fmt.Errorf("write table inet %s: %w", TableName, err)
	}
	done()
	return nil
}

// missing are the pods that b has and a has not.
func missing(a, b Pods) (out Pods) {
	for side := range b {
		out[side] = map[netip.Addr]bool{}
		for addr := range b[side] {
			if !a[side][addr] {
				out[side][addr] = true
			}
		}
	}
	return out
}

// without are pods less some.
func without(pods, less Pods) Pods { return missing(less, pods) }
