package policy

import (
	"fmt"

	"github.com/weft-cni/weft/backend/policy/guard"
)

// The guard stands behind the policies and drops what they have not marked. The mark is a bit that is set last and that the
// guard takes off.
const (
	throughMap   = "through"
	throughChain = "let-through"
)

func setMark() string { return fmt.Sprintf("meta mark set meta mark or %#x", guard.Mark) }

// marks are the rules that mark what gets to the end of a base chain. A packet may be half-way when somebody deletes the
// table: the kernel shows it the old rules to the end, but a map whose elements are gone, by which a pod that policies select
// looks like any other. So the mark has to be found in a map, too. It is the last one: if it still has its elements, all have
// had theirs.
func (b *build) marks(raw func(text, why string) ChainRule) []ChainRule {
	if b.cfg.Audit {
		return nil
	}
	return []ChainRule{raw("meta nfproto vmap @"+throughMap, "no rule objects")}
}

// throughMaps are the map that leads to the mark.
func (b *build) throughMaps() []Set {
	if b.cfg.Audit {
		return nil
	}
	s := Set{Name: throughMap, Type: "nf_proto", Kind: Verdicts}
	for _, f := range families() {
		s.Elements = append(s.Elements, f.Set+" : jump "+throughChain)
	}
	return []Set{s}
}

// letThrough is the chain that sets the mark, on packets that the guard will see: the first of a connection that is tracked.
func letThrough(raw func(text, why string) ChainRule) Chain {
	return Chain{Name: throughChain, Rules: []ChainRule{
		raw("ct status confirmed return", "not the first of its connection"),
		raw("ct state new "+setMark(), "read by table "+guard.TableName),
	}}
}
