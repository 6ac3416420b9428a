package traffic

import (
	"net/netip"
	"slices"

	"sigs.k8s.io/knftables"
)

// Inner says what may come out of the tunnels that have no keys, under AntiSpoof. The zero value lets everything.
type Inner struct {
	Devices []string          // the tunnels'
	Ranges  [2][]netip.Prefix // pod ranges of the peers that send through them, by family; they may overlap
}

// innerChain drops what comes out of a tunnel and is from no peer's pods: an outer address is easily forged, and a packet from a
// pod of this node, or from an address that some policy allows, would be believed. A peer itself speaks with the first address of
// its pod range. Where it does not masquerade, what it routes for others comes with the others' addresses.
func innerChain(c Config) Chain {
	out := Chain{
		Name: "inner", Type: knftables.FilterType, Hook: knftables.PreroutingHook, Priority: knftables.RawPriority,
		Why: "before connection tracking (-200): what is forged is to leave no trace there",
	}
	for _, f := range families() {
		if !c.AntiSpoof || !c.enabled(f.Family) || len(c.Inner.Devices) == 0 {
			continue
		}
		from := f.Proto + " saddr "
		rule := "iifname " + devices(c.Inner.Devices) + " "
		if n := c.Nets[f.Family]; !c.Masquerade || n.KeepSource {
			rule += from + n.Network.String() + " "
		}
		out.Rules = append(out.Rules, Rule{rule + from + "!= @inner-" + f.Set + " drop", "a peer may send from its own pods only"})
	}
	return out
}

// innerSets hold the ranges. They are there even when empty: without peers nobody may send.
func innerSets(c Config) []Set {
	if len(innerChain(c).Rules) == 0 {
		return nil
	}
	return perFamily(c, func(f family) Set {
		s := Set{Name: "inner-" + f.Set, Type: f.Addr, Interval: true}
		for _, p := range disjoint(slices.Clone(c.Inner.Ranges[f.Family])) {
			s.Elements = append(s.Elements, element(p))
		}
		return s
	})
}
