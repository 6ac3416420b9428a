package guard

import (
	"slices"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/nl"
)

const (
	hookInput, hookPostrouting = 1, 4 // NF_INET_LOCAL_IN, NF_INET_POST_ROUTING

	stateEstablished, stateRelated = 2, 4 // NF_CT_STATE_BIT of both directions
	statusConfirmed                = 8    // IPS_CONFIRMED

	hopLimitMost = 255
)

// contents are the messages that fill an empty table.
func contents() []nl.NFTMessage {
	out := sets()
	for _, f := range subnet.Families() {
		out = append(out, judging(f)...)
	}
	out = append(out, base("postrouting", hookPostrouting))
	out = append(out, goesOn("postrouting")...)
	out = append(out, neighbours("postrouting")...)
	local := expr("fib", word(unix.NFTA_FIB_DREG, first), word(unix.NFTA_FIB_RESULT, unix.NFT_FIB_RESULT_ADDRTYPE), word(unix.NFTA_FIB_FLAGS, unix.NFTA_FIB_F_SADDR))
	out = append(out, rule("postrouting", "the node may reach its own pods", local, is(unix.NFT_CMP_EQ, native(unix.RTN_LOCAL)...), verdict(accept, "")))
	out = append(out, guarded("postrouting", ToPod, FromPod)...)
	return append(out, clean("postrouting"))
}

// inputChain are the messages that make the chain for packets of pods to their own node.
func inputChain() []nl.NFTMessage {
	out := append([]nl.NFTMessage{base("input", hookInput)}, goesOn("input")...)
	out = append(out, neighbours("input")...)
	out = append(out, guarded("input", ToNode)...)
	return append(out, clean("input"))
}

// The verdicts.
const (
	drop   = 0 // NF_DROP
	accept = 1 // NF_ACCEPT
)

// judging makes the chain of a family where packets end that begin something with a pod that policies have a say over.
func judging(f subnet.Family) []nl.NFTMessage {
	h, chain := headerOf(f), "guard"+suffix(f)
	marked := append(meta(unix.NFT_META_MARK, first), anyBit(Mark)...)
	ported := append(meta(unix.NFT_META_L4PROTO, first), in(portsSet)...)
	return []nl.NFTMessage{
		newChain(chain),
		rule(chain, "the policies let it through: remember that", marked, ported, h.key(), keep(passedSet(f))),
		rule(chain, "the policies let it through", marked, verdict(unix.NFT_RETURN, "")),
		rule(chain, "the policies are gone, and let such a one through lately", ported, h.key(), in(passedSet(f)), verdict(accept, "")),
		rule(chain, "the policies are gone: it waits until they are back", expr("counter"), verdict(drop, "")),
	}
}

// guarded leads packets from and to guarded pods to the chains that judge them.
func guarded(chain string, sides ...Side) []nl.NFTMessage {
	var out []nl.NFTMessage
	for _, s := range sides {
		for _, f := range subnet.Families() {
			h := headerOf(f)
			out = append(out, rule(chain, "", h.ofFamily(), h.address(s == ToPod, first), in(sideSet(s, f)), verdict(unix.NFT_JUMP, "guard"+suffix(f))))
		}
	}
	return out
}

// clean takes the policies' mark off again: nobody else is to see it.
func clean(chain string) nl.NFTMessage {
	return rule(chain, "takes the mark off again", meta(unix.NFT_META_MARK, first), anyBit(Mark), meta(unix.NFT_META_MARK, first),
		masked(^uint32(Mark)), setMeta(unix.NFT_META_MARK))
}

// goesOn lets pass what is related to a connection whose first packet has been let through, and what belongs to one that is
// older than the guard: where nobody else translates, the kernel shows these to the guard as long as nobody answers them.
func goesOn(chain string) []nl.NFTMessage {
	known := func(key, bits uint32) []byte {
		return append(expr("ct", word(unix.NFTA_CT_DREG, first), word(unix.NFTA_CT_KEY, key)), anyBit(bits)...)
	}
	return []nl.NFTMessage{
		rule(chain, "judged when it began", known(unix.NFT_CT_STATE, stateEstablished|stateRelated), verdict(accept, "")),
		rule(chain, "not the first of its connection", known(unix.NFT_CT_STATUS, statusConfirmed), verdict(accept, "")),
	}
}

// neighbours lets pass what IPv6 cannot do without, as the policies do.
func neighbours(chain string) []nl.NFTMessage {
	h := headerOf(subnet.IPv6)
	icmp := append(meta(unix.NFT_META_L4PROTO, first), is(unix.NFT_CMP_EQ, unix.IPPROTO_ICMPV6)...)
	kind := payload(unix.NFT_PAYLOAD_TRANSPORT_HEADER, 0, 1, first)
	between := func(low, high byte) []byte {
		return slices.Concat(kind, is(unix.NFT_CMP_GTE, low), is(unix.NFT_CMP_LTE, high))
	}
	near := append(payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 7, 1, first), is(unix.NFT_CMP_EQ, hopLimitMost)...)
	link := append(payload(unix.NFT_PAYLOAD_NETWORK_HEADER, 24, 2, first), is(unix.NFT_CMP_EQ, 0xff, 0x02)...)
	return []nl.NFTMessage{
		rule(chain, "neighbour discovery", h.ofFamily(), near, icmp, between(133, 136), verdict(accept, "")),
		rule(chain, "multicast listeners", h.ofFamily(), link, icmp, between(130, 132), verdict(accept, "")),
		rule(chain, "multicast listeners", h.ofFamily(), link, icmp, between(143, 143), verdict(accept, "")),
	}
}

// newChain makes a chain that others jump to.
func newChain(name string) nl.NFTMessage {
	return nl.NFTMessage{Kind: unix.NFT_MSG_NEWCHAIN, Flags: unix.NLM_F_CREATE, Attrs: append(
		nl.Text(unix.NFTA_CHAIN_TABLE, TableName), nl.Text(unix.NFTA_CHAIN_NAME, name)...)}
}

// base makes a chain that the first packets of connections enter in a hook.
func base(name string, hook uint32) nl.NFTMessage {
	m, priority := newChain(name), int32(Priority)
	m.Attrs = slices.Concat(m.Attrs,
		nl.Nested(unix.NFTA_CHAIN_HOOK, append(word(unix.NFTA_HOOK_HOOKNUM, hook), word(unix.NFTA_HOOK_PRIORITY, uint32(priority))...)),
		nl.Text(unix.NFTA_CHAIN_TYPE, "nat"), word(unix.NFTA_CHAIN_POLICY, accept),
	)
	return m
}

// rule adds a rule to a chain. Why is its comment.
func rule(chain, why string, exprs ...[]byte) nl.NFTMessage {
	m := nl.NFTMessage{Kind: unix.NFT_MSG_NEWRULE, Flags: unix.NLM_F_CREATE | unix.NLM_F_APPEND, Attrs: slices.Concat(
		nl.Text(unix.NFTA_RULE_TABLE, TableName), nl.Text(unix.NFTA_RULE_CHAIN, chain),
		nl.Nested(unix.NFTA_RULE_EXPRESSIONS, slices.Concat(exprs...)),
	)}
	if why != "" { // nft's comment: its kind, its length, the text
		m.Attrs = append(m.Attrs, nl.Attr(unix.NFTA_RULE_USERDATA, append(append([]byte{0, byte(len(why) + 1)}, why...), 0))...)
	}
	return m
}
