package gate

import (
	"context"
	"fmt"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/attach"
)

// toNode is whether held pods are kept from their own node as well. NetworkPolicies always let a pod reach its node, but a
// ClusterNetworkPolicy may not, and an agent that is away cannot say which pods it selects.
type toNode struct {
	known bool // until it is, what an earlier agent left stays
	kept  bool
}

// KeepFromNode says whether pods that are held are kept from their own node, from the next Shut on. It is not to be called beside that.
func (g *Gate) KeepFromNode(kept bool) {
	next := toNode{known: true, kept: kept}
	if g.table.toNode != next {
		g.table.toNode = next
		g.table.doubt.Store(true)
	}
}

// toNodeRules drop what held pods send their node, but for neighbour discovery and their answers to the node, which probes them.
func toNodeRules() []string {
	var out []string
	for _, f := range subnet.Families() {
		proto := [2]string{"ip", "ip6"}[f]
		if f == subnet.IPv6 {
			out = append(out, "icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept")
		}
		out = append(out, fmt.Sprintf("%s saddr @%s %s saddr != @%s ct state new,invalid,untracked counter drop", proto, attach.HeldSet(f), proto, attach.FreeSet(f)))
	}
	return out
}

// writeToNode makes the chain, or takes the one away that was seen.
func (t *table) writeToNode(tx *knftables.Transaction) {
	switch {
	case t.toNode.kept:
		addChain(tx, knftables.InputHook, toNodeRules())
	case t.needless:
		tx.Flush(&knftables.Chain{Name: string(knftables.InputHook)})
		tx.Delete(&knftables.Chain{Name: string(knftables.InputHook)})
	}
	t.needless = false
}

// toNodeRight looks whether the chain is as it should be.
func (t *table) toNodeRight(ctx context.Context) bool {
	if !t.toNode.known {
		return true
	}
	var have []*knftables.Rule
	err := t.host.Inside(func() (err error) { have, err = t.conn.ListRules(ctx, string(knftables.InputHook)); return err })
	if t.toNode.kept {
		return err == nil && sameRules(have, toNodeRules())
	}
	t.needless = err == nil
	return !t.needless
}
