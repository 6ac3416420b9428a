package mesh

import "github.com/weft-cni/weft/subnet"

// measure decides the sizes of packets: what fits on every way to a peer, and what of it is left for pods.
func (p *planner) measure() {
	for _, f := range subnet.Families() {
		if !p.c.Ends[f].IsZero() {
			p.base[f] = p.largest(f)
			p.out.Largest[f] = p.base[f]
		}
	}
	if four, six := p.base[subnet.IPv4], p.base[subnet.IPv6]; p.heard.Has(subnet.WireGuard) && p.wg.Single() && four > 0 && six > 0 {
		// One device carries both families, over tunnels of either.
		p.base = [2]int{min(four, six), min(four, six)}
	}
	for _, f := range subnet.Families() {
		if mtu := p.base[f] - p.overhead(f); p.base[f] > 0 && (p.out.PodMTU == 0 || mtu < p.out.PodMTU) {
			p.out.PodMTU = mtu
		}
	}
	if least := p.c.leastMTU(); p.out.PodMTU > 0 && !p.c.Ends[subnet.IPv6].IsZero() {
		p.out.PodMTU = max(p.out.PodMTU, least) // IPv4's narrow device answers what is too large for it
	}
}

// largest is the size of the largest packet that fits on all ways of a family. No peer's way makes it smaller than what pods
// need inside of the tunnels, and they have one size for both families; what is larger than such a way goes in fragments.
func (p *planner) largest(f subnet.Family) int {
	if p.c.MTU != 0 {
		return p.c.MTU
	}
	mtu, least := p.c.Ends[f].UnderlayMTU, p.c.leastMTU()+p.overhead(f)
	for _, q := range p.peers {
		if way := q.path[f].MTU; q.way[f].Kind != "" && way > 0 {
			mtu = min(mtu, max(way, least))
		}
	}
	return mtu
}

// leastMTU is what the links of pods must take in one piece: RFC 791, and RFC 8200 where they have IPv6.
func (c Config) leastMTU() int {
	if !c.Ends[subnet.IPv6].IsZero() {
		return 1280
	}
	return 576
}

// overhead is the largest of the kinds that may carry packets now.
func (p *planner) overhead(f subnet.Family) int {
	most := 0
	for _, kind := range p.heard.List() {
		most = max(most, subnet.Overhead(kind, f))
	}
	return most
}
