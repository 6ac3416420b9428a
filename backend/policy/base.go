package policy

import "time"

const (
	gateChain    = "gated"
	strayCounter = "stray"
	judgeChain   = "judge"

	cutMost = 65536           // connections that are kept cut at one time
	cutTime = 3 * time.Minute // after the last packet of either end; TCP tries again every two minutes at least
)

// short is the direction in the names of chains.
func (d Direction) short() string { return [2]string{"in", "eg"}[d] }

// mapName names the map from a pod's address to the chain that judges it.
func mapName(d Direction, f family) string { return setName(d.String(), f) }

// mapNames names all maps of a family, as targets has them.
func mapNames(f family) [3]string {
	return [3]string{Ingress: mapName(Ingress, f), Egress: mapName(Egress, f), toNode: setName("to-node", f)}
}

// cuts tells whether established connections follow a changed policy.
func (b *build) cuts() bool { return !b.cfg.Audit && !b.cfg.KeepEstablished }

// established lets pass what was judged when it began. ICMP errors are related to what they are about. A helper's expected
// connections are related too, but nothing gives connections a helper unasked.
func established() ChainRule {
	return ChainRule{Text: "ct state established,related accept", Why: "judged when it began", match: match{base: true}}
}

// baseChains are what every packet of the node meets. Priority filter+10 is behind whoever else filters: only a drop is final.
func (b *build) baseChains() []Chain {
	raw := func(text, why string) ChainRule { return ChainRule{Text: text, Why: why, match: match{base: true}} }
	to := raw("jump "+judgeChain, "the rest is new")
	output := []ChainRule{established()}
	for _, f := range b.families {
		guarded := "@" + setName("guarded", f)
		output = append(output, raw(f.Proto+" saddr != "+guarded+" "+f.Proto+" daddr != "+guarded+" accept",
			"of no pod that policies select: to look for its source among the node's addresses would take as long as all the rest"))
	}
	if b.judgesNode() {
		output = append(output, b.cutRules(raw)...)
	}
	output = append(output, raw("fib saddr type local accept", "the node may reach its own pods: kubelet probes them"), to)
	chains := []Chain{
		{
			Name: "forward", Hook: "forward",
			Why:   "to and from pods, between two of one bridge too (br_netfilter)",
			Rules: append([]ChainRule{established(), to}, b.marks(raw)...),
		},
		{
			// IPVS takes a pod's packet in the input hook and sends it on through this one, as if it were the node's.
			Name: "output", Hook: "output",
			Why:   "pods' packets that the node passes on as its own: IPVS",
			Rules: append(output, b.marks(raw)...),
		},
		{Name: judgeChain, Rules: b.judgeRules(raw)},
	}
	if b.judgesNode() {
		chains = append(chains, Chain{
			Name: "input", Hook: "input", Why: "pods' packets to their own node: only ClusterPolicies have a say",
			Rules: append(b.inputRules(raw), b.marks(raw)...),
		})
	}
	if b.cfg.Audit {
		return chains
	}
	return append(chains, letThrough(raw))
}

// judgesNode tells whether some pod's packets to this node are judged.
func (b *build) judgesNode() bool {
	for _, f := range b.families {
		if len(b.fixed[mapNames(f)[toNode]]) > 0 {
			return true
		}
	}
	return false
}

// inputRules judge what the node's own pods send it.
func (b *build) inputRules(raw func(text, why string) ChainRule) []ChainRule {
	rules := append([]ChainRule{established()}, neighbourRules(raw)...)
	rules = append(rules, b.cutRules(raw)...)
	for _, f := range b.families {
		rules = append(rules, raw(f.Proto+" saddr vmap @"+mapNames(f)[toNode], "egress of a pod, to its own node"))
	}
	return rules
}

// neighbourRules let pass what IPv6 cannot do without. What is routed has lost a hop when it gets here, and ff02::/16 is not
// routed: neither is a way out of the node.
func neighbourRules(raw func(text, why string) ChainRule) []ChainRule {
	return []ChainRule{
		raw("ip6 hoplimit 255 icmpv6 type { nd-router-solicit, nd-router-advert, nd-neighbor-solicit, nd-neighbor-advert } accept",
			"neighbours of one bridge must find each other"),
		raw("ip6 daddr ff02::/16 icmpv6 type { mld-listener-query, mld-listener-report, mld-listener-done, mld2-listener-report } accept",
			"a bridge learns from these who has to hear a neighbour's question"),
	}
}

// judgeRules bring a new connection to the chains of both its ends. A chain that allows returns, so that the other end's
// direction is judged too.
func (b *build) judgeRules(raw func(text, why string) ChainRule) []ChainRule {
	rules := neighbourRules(raw)
	accept := "accept"
	if !b.cfg.Audit {
		accept = setMark() + " accept"
	}
	for _, f := range b.families {
		rules = append(rules, raw(f.Proto+" saddr . "+f.Proto+" daddr @"+setName("self", f)+" "+accept, "a pod may reach itself, through a Service too"))
	}
	if b.cuts() {
		rules = append(rules, b.cutRules(raw)...)
		for _, f := range b.families {
			for _, side := range []string{"saddr", "daddr"} {
				rules = append(rules, raw(
					"tcp flags & (fin | syn | rst | ack) != syn "+f.Proto+" "+side+" @"+setName("guarded", f)+
						" counter name "+strayCounter+" drop",
					"the middle of no connection that is known: it was cut"))
			}
		}
	}
	for _, side := range []struct {
		dir   Direction
		field string
	}{{Egress, "saddr"}, {Ingress, "daddr"}} {
		for _, f := range b.families {
			rules = append(rules, raw(f.Proto+" "+side.field+" vmap @"+mapName(side.dir, f), side.dir.String()+" of a pod of this node"))
		}
	}
	return rules
}

// cutRules drop the packets of connections that were cut, in both directions: the set has them as they began.
func (b *build) cutRules(raw func(text, why string) ChainRule) []ChainRule {
	var rules []ChainRule
	if !b.cuts() {
		return nil
	}
	for _, f := range b.families {
		there := f.Proto + " saddr . " + f.Proto + " daddr . meta l4proto . th sport . th dport"
		back := f.Proto + " daddr . " + f.Proto + " saddr . meta l4proto . th dport . th sport"
		set := "@" + setName("cut", f)
		for _, key := range []string{there, back} {
			rules = append(rules, raw(key+" "+set+" update "+set+" { "+key+" timeout "+cutTime.String()+" } counter name "+strayCounter+" drop",
				"a connection that was cut stays so while either end goes on"))
		}
	}
	return rules
}

// podSets are the sets and maps that hold our own pods. They are there even when empty, since rules name them.
func (b *build) podSets() []Set {
	var out []Set
	for _, f := range b.families {
		for _, s := range []Set{
			{Name: mapNames(f)[Ingress], Type: f.Addr, Kind: Verdicts},
			{Name: mapNames(f)[Egress], Type: f.Addr, Kind: Verdicts},
			{Name: mapNames(f)[toNode], Type: f.Addr, Kind: Verdicts},
			{Name: setName("self", f), Type: f.Addr + " . " + f.Addr},
			{Name: setName("guarded", f), Type: f.Addr, denies: true}, // the middle of connections that are not known
		} {
			s.Elements = sorted(b.fixed[s.Name])
			out = append(out, s)
		}
		if b.cuts() {
			out = append(out, Set{
				Name: setName("cut", f), Kind: Timed,
				Type: f.Addr + " . " + f.Addr + " . inet_proto . inet_service . inet_service",
			})
		}
	}
	return append(out, b.throughMaps()...)
}
