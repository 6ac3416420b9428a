package traffic

import "sigs.k8s.io/knftables"

// transitChain drops what pods wrap by themselves and send to a peer's end of a tunnel, under AntiSpoof: masqueraded it would come
// from this node, which the peer believes, and say inside that it is from whatever pod.
func transitChain(c Config) Chain {
	out := Chain{
		Name: "transit", Type: knftables.FilterType, Hook: knftables.ForwardHook, Priority: knftables.FilterPriority,
		Why: "where destinations are the real ones: a Service may lead to a peer as well",
	}
	for _, f := range families() {
		if !c.AntiSpoof || !c.enabled(f.Family) {
			continue
		}
		pod, to := f.Proto+" saddr "+c.Nets[f.Family].Network.String()+" ", f.Proto+" daddr "
		var ways []string
		if c.Port != 0 {
			ways = append(ways, to+"@peers-"+f.Set+" "+udp(append(c.former(), c.Port)))
		}
		if len(c.tunnels(f.Family)) > 0 {
			ways = append(ways, to+". udp dport @tunnels-"+f.Set)
		}
		if c.IPIP {
			ways = append(ways, to+"@peers-"+f.Set+" meta l4proto "+f.IPInIP)
		}
		for _, way := range ways {
			out.Rules = append(out.Rules, Rule{pod + way + " drop", "pods do not encapsulate in their node's name"})
		}
	}
	return out
}
