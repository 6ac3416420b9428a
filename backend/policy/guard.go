package policy

import (
	"maps"
	"slices"

	"github.com/weft-cni/weft/subnet"
)

// lastChain is the profile that was asked for last, and where its chains begin.
type lastChain struct {
	profile profile
	name    string
}

// subjects finds the pods of this node that policies select, and makes their chains.
func (b *build) subjects(o *owners) {
	local := slices.SortedFunc(maps.Keys(o.local), comparePods)
	cluster := precedence(b.world.Cluster)
	found := make([][2]profile, len(local))
	var uses [2]bool
	for i, p := range local {
		found[i] = profiles(p, o.labels[p.Namespace], b.world, cluster)
		for f, a := range p.Addrs {
			uses[f] = uses[f] || a.IsValid() && !(found[i][Ingress].empty() && found[i][Egress].empty())
		}
	}
	gated := b.gated()
	for a := range gated {
		uses[subnet.FamilyOf(netipOf(a))] = true
	}
	for _, f := range families() {
		if uses[f.Family] {
			b.families = append(b.families, f)
		}
	}
	for i, p := range local {
		to := targets{Ingress: b.target(Ingress, found[i][Ingress]), Egress: b.target(Egress, found[i][Egress])}
		if own := found[i][Egress].toOwnNode(); !own.empty() {
			to[toNode] = b.chainOf(Egress, own)
		}
		for _, f := range families() {
			has, ok := o.of[p.Addrs[f.Family]]
			if !ok || has.pod != p || to == (targets{}) || gated[has.spelled] {
				continue
			}
			b.guard(f, has.spelled, to)
		}
	}
	to := targets{Ingress: gateChain, Egress: gateChain}
	if b.world.JudgesNode() {
		to[toNode] = gateChain
	}
	for a := range gated {
		b.guard(families()[subnet.FamilyOf(netipOf(a))], a, to)
	}
}

// targets are the chains that judge an address, by direction, and those that judge it towards the own node; "" is none.
type targets [3]string

const toNode = 2

// gated are the addresses that the gate holds, as text.
func (b *build) gated() map[string]bool {
	out := map[string]bool{}
	if b.cfg.Audit {
		return out
	}
	for _, a := range b.world.Gated {
		out[a.String()] = true
	}
	if len(out) > 0 {
		b.counters[gateChain] = Counter{Name: gateChain}
		b.chain(gateChain, []ChainRule{match{verdict: deny, counter: gateChain}.rule("the pod is not known yet")})
	}
	return out
}

// guard enters an address of this node into the sets that lead to its chains.
func (b *build) guard(f family, addr string, to targets) {
	add := func(set, element string) { b.fixed[set] = append(b.fixed[set], element) }
	for i, name := range mapNames(f) {
		if to[i] != "" {
			add(name, addr+" : jump "+to[i])
		}
	}
	add(setName("guarded", f), addr)
	add(setName("self", f), addr+" . "+addr)
}
