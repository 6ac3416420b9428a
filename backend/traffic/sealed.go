package traffic

import (
	"net/netip"
	"slices"
	"strings"

	"sigs.k8s.io/knftables"
)

// Sealed says which pods' packets may cross the underlay encrypted only. The zero value asks for nothing.
type Sealed struct {
	Devices []string          // ours: those that encrypt, and the tunnels that a cluster is on its way from, or to, while they are there
	Ranges  [2][]netip.Prefix // pod ranges of the peers that are reached encrypted, by family; they may overlap
}

// sealedChains keep what is between pods of sealed ranges and pods here from travelling by any other device: whatever becomes
// of a key, a device or a route, packets are lost rather than read.
func sealedChains(c Config) []Chain {
	var in, out []Rule
	for _, f := range families() {
		if !c.enabled(f.Family) || len(c.Sealed.Devices) == 0 || len(c.Sealed.Ranges[f.Family]) == 0 {
			continue
		}
		set := "@sealed-" + f.Set
		// A pod may talk to the node itself with its own address (--ip-masq-exclude): that is not between pods.
		in = append(in, Rule{
			"iifname != " + devices(c.Sealed.Devices) + " " + f.Proto + " saddr " + set + " " + f.Proto + " daddr " + c.Nets[f.Family].Network.String() + " drop",
			"pods of encrypting peers are heard through our devices alone",
		})
		out = append(out, Rule{
			"oifname != " + devices(c.Sealed.Devices) + " " + f.Proto + " daddr " + set + " drop",
			"nothing for pods of encrypting peers leaves in the clear",
		})
	}
	return []Chain{
		{
			Name: "sealed-in", Type: knftables.FilterType, Hook: knftables.PreroutingHook, Priority: knftables.FilterPriority,
			Why:   "before the packet is routed: it may be for this host as well as for a pod",
			Rules: in,
		},
		{
			Name: "sealed-out", Type: knftables.FilterType, Hook: knftables.PostroutingHook, Priority: knftables.FilterPriority,
			Why:   "where the device is known, for forwarded packets and the host's own",
			Rules: out,
		},
	}
}

// sealedSets hold the ranges.
func sealedSets(c Config) []Set {
	var sets []Set
	for _, f := range families() {
		if ranges := c.Sealed.Ranges[f.Family]; c.enabled(f.Family) && len(c.Sealed.Devices) > 0 && len(ranges) > 0 {
			s := Set{Name: "sealed-" + f.Set, Type: f.Addr, Interval: true}
			for _, p := range disjoint(slices.Clone(ranges)) {
				s.Elements = append(s.Elements, element(p))
			}
			sets = append(sets, s)
		}
	}
	return sets
}

// devices is a set of device names as nft reads it, in one order.
func devices(names []string) string {
	quoted := make([]string, len(names))
	for i, name := range slices.Sorted(slices.Values(names)) {
		quoted[i] = `"` + name + `"`
	}
	if len(quoted) == 1 {
		return quoted[0]
	}
	return "{ " + strings.Join(quoted, ", ") + " }"
}
