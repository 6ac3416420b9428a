package traffic

import (
	"fmt"
	"net/netip"
	"slices"
	"strconv"
	"strings"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/subnet"
)

// Rules computes our table from the Config. It is pure; the same Config always gives the same Ruleset.
func Rules(c Config) Ruleset {
	var r Ruleset
	sealed := sealedChains(c)
	for _, chain := range []Chain{
		{
			Name: "inbound", Type: knftables.FilterType, Hook: knftables.PreroutingHook, Priority: knftables.RawPriority,
			Why:   "before connection tracking (-200): only here can a packet be kept out of it, or its port be changed unseen",
			Rules: inbound(c),
		},
		{
			Name: "outbound", Type: knftables.FilterType, Hook: knftables.OutputHook, Priority: knftables.RawPriority,
			Why:   "before connection tracking (-200): encapsulated packets start here",
			Rules: outbound(c),
		},
		innerChain(c), transitChain(c), sealed[0], sealed[1],
		{
			Name: "postrouting", Type: knftables.NATType, Hook: knftables.PostroutingHook, Priority: knftables.SNATPriority,
			Why:   "beside kube-proxy, in either order: the first chain that sets up NAT wins, marked packets are left to it",
			Rules: masquerade(c),
		},
	} {
		if len(chain.Rules) > 0 {
			r.Chains = append(r.Chains, chain)
		}
	}
	r.Sets = slices.Concat(peerSets(c), innerSets(c), sealedSets(c), excludeSets(c))
	return r
}

// kubeMark is kube-proxy's sign that it rewrites the packet's source itself.
const kubeMark = "meta mark & 0x4000 == 0x4000"

// masquerade is the verdict of every packet that leaves: the first rule that matches decides.
func masquerade(c Config) []Rule {
	if !c.Masquerade {
		return nil
	}
	nat := "masquerade"
	if c.RandomFully {
		// Random ports avoid the race of two CPUs for one port, which loses SYNs and DNS queries.
		nat += " fully-random"
	}
	var rules []Rule
	for _, f := range families() {
		n := c.Nets[f.Family]
		if !c.enabled(f.Family) || n.KeepSource {
			continue
		}
		from, to := f.Proto+" saddr ", f.Proto+" daddr "
		if rules == nil {
			rules = append(rules, Rule{kubeMark + " return", "kube-proxy rewrites the source of what it marked"})
		}
		rules = append(rules,
			Rule{to + f.Multicast + " return", "multicast keeps its source"},
			Rule{from + n.Network.String() + " " + to + n.Network.String() + " return", "pod to pod keeps its source"})
		if n.PodCIDR.IsValid() {
			rules = append(rules, Rule{to + n.PodCIDR.String() + " return", "clients of pods here keep their source"})
		}
		rules = append(rules,
			Rule{from + n.Network.String() + " " + to + "@exclude-" + f.Set + " return", "pods keep their source towards excluded destinations"},
			Rule{from + n.Network.String() + " " + nat, "pods leave the network as this node"},
			Rule{to + n.Network.String() + " " + nat, "remote pods answer to this node, not past it"})
	}
	return rules
}

// inbound judges the overlay's own packets as they arrive. Port first: it is the cheapest test, and almost nothing passes it.
// The destination must be this host: a pod may talk VXLAN to the outside, and that is not ours to touch. A device hears as well
// what is sent to all hosts of a link, by multicast or broadcast.
func inbound(c Config) []Rule {
	const here, hears = " fib daddr type local ", " fib daddr type != unicast "
	var rules []Rule
	for _, f := range families() {
		if c.AntiSpoof && c.IPIP && c.enabled(f.Family) {
			rules = append(rules, Rule{
				"meta nfproto " + f.NFProto + " meta l4proto " + f.IPInIP + hears + f.Proto + " saddr != @peers-" + f.Set + " drop",
				"only announced peers may encapsulate",
			})
		}
	}
	if c.Port == 0 {
		return rules
	}
	for _, f := range families() {
		if c.AntiSpoof && c.enabled(f.Family) {
			rules = append(rules, Rule{
				udp(append(c.former(), c.Port)) + hears + f.Proto + " saddr != @peers-" + f.Set + " drop",
				"only announced peers may encapsulate",
			})
		}
	}
	for _, f := range families() {
		if len(c.tunnels(f.Family)) > 0 && c.enabled(f.Family) {
			rules = append(rules, Rule{
				f.Proto + " saddr . udp dport @tunnels-" + f.Set + here + "udp dport set " + strconv.Itoa(int(c.Port)),
				"peers that still send to another port are heard",
			})
		}
	}
	if c.Tracked {
		return rules
	}
	return append(rules, Rule{udp([]uint16{c.Port}) + here + "notrack", "encapsulated packets need no tracking"})
}

// outbound keeps encapsulated packets out of connection tracking as they leave, to whichever port the peer hears.
func outbound(c Config) []Rule {
	if c.Port == 0 || c.Tracked {
		return nil
	}
	rules := []Rule{{udp([]uint16{c.Port}) + " notrack", "encapsulated packets need no tracking"}}
	for _, f := range families() {
		if len(c.tunnels(f.Family)) > 0 && c.enabled(f.Family) {
			rules = append(rules, Rule{f.Proto + " daddr . udp dport @tunnels-" + f.Set + " notrack", "nor do those for peers with another port"})
		}
	}
	return rules
}

// udp matches a destination port, or any of several.
func udp(ports []uint16) string {
	slices.Sort(ports)
	words := make([]string, len(ports))
	for i, p := range ports {
		words[i] = strconv.Itoa(int(p))
	}
	if len(words) == 1 {
		return "udp dport " + words[0]
	}
	return fmt.Sprintf("udp dport { %s }", strings.Join(words, ", "))
}

// peerSets hold the outer addresses of the peers, where a rule asks for them: else no Node change would touch the table.
func peerSets(c Config) []Set {
	var sets []Set
	for _, f := range families() {
		if tunnels := c.tunnels(f.Family); len(tunnels) > 0 && c.enabled(f.Family) {
			s := Set{Name: "tunnels-" + f.Set, Type: f.Addr + " . inet_service"}
			for _, t := range tunnels {
				s.Elements = append(s.Elements, fmt.Sprintf("%s . %d", t.Addr(), t.Port()))
			}
			sets = append(sets, s)
		}
	}
	if !c.AntiSpoof || c.Port == 0 && !c.IPIP {
		return sets
	}
	return append(sets, perFamily(c, func(f family) Set {
		addrs := map[string]struct{}{}
		for _, p := range c.Peers {
			if subnet.FamilyOf(p.Addr()) == f.Family {
				addrs[p.Addr().WithZone("").String()] = struct{}{}
			}
		}
		return Set{Name: "peers-" + f.Set, Type: f.Addr, Elements: sortedElements(addrs)}
	})...)
}

// excludeSets hold the destinations that see pod addresses. They are there even when empty, so that a change is one element.
func excludeSets(c Config) []Set {
	if !c.Masquerade {
		return nil
	}
	return perFamily(c, func(f family) Set {
		s := Set{Name: "exclude-" + f.Set, Type: f.Addr, Interval: true}
		for _, p := range disjoint(slices.DeleteFunc(slices.Clone(c.Exclude), func(p netip.Prefix) bool {
			return subnet.FamilyOf(p.Addr()) != f.Family
		})) {
			s.Elements = append(s.Elements, element(p))
		}
		return s
	})
}

// perFamily makes one set for each family that takes part.
func perFamily(c Config, make func(family) Set) []Set {
	var sets []Set
	for _, f := range families() {
		if c.enabled(f.Family) {
			sets = append(sets, make(f))
		}
	}
	return sets
}
