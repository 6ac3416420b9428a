package flannelstate

import (
	"fmt"
	"strings"
)

// WriteRules writes flannel's masquerade and forward rules.
//
// flannel empties its chains first and fills them with a second program, which leaves a moment without rules of its own
// making; here both are one commit, since what is counted around it is what weft does.
func (n Node) WriteRules(h Host) error {
	if n.Rules == NFTables {
		script := "table ip flannel-ipv4 { comment \"rules for flannel-ipv4\"; }\ntable ip6 flannel-ipv6 { comment \"rules for flannel-ipv6\"; }\n"
		for _, half := range n.halves() {
			script += half.nft()
		}
		_, err := h.Input(script, "nft", "-f", "-")
		return err
	}
	for _, half := range n.halves() {
		if err := half.writeIPTables(h); err != nil {
			return err
		}
	}
	return nil
}

func (n Node) writeIPTables(h Host) error {
	for _, group := range n.iptables() {
		script := "*" + group.table + "\n:" + group.chain + " - [0:0]\n"
		if _, err := h.Input("", n.program(), "-t", group.table, "-C", group.hook, "-m", "comment", "--comment", group.comment, "-j", group.chain); err == nil {
			script += "-D " + group.jump() + "\n"
		}
		script += "-A " + group.jump() + "\n"
		for _, r := range group.rules {
			script += "-A " + r + "\n"
		}
		if _, err := h.Input(script+"COMMIT\n", n.program()+"-restore", "--wait", "--noflush"); err != nil {
			return err
		}
	}
	return nil
}

// group is one of flannel's chains in iptables, with the rule that leads to it.
type group struct {
	table, hook, chain, comment string
	rules                       []string
}

func (g group) jump() string {
	return fmt.Sprintf(`%s -m comment --comment "%s" -j %s`, g.hook, g.comment, g.chain)
}

// iptables are the rules as `iptables -S` prints them behind -A.
func (n Node) iptables() []group {
	nat := func(match, target string) string {
		return fmt.Sprintf(`FLANNEL-POSTRTG %s -m comment --comment "flanneld masq" -j %s`, match, target)
	}
	forward := func(match string) string {
		return fmt.Sprintf(`FLANNEL-FWD %s -m comment --comment "flanneld forward" -j ACCEPT`, match)
	}
	net, pod := n.Network.String(), n.PodCIDR.String()
	return []group{
		{"nat", "POSTROUTING", "FLANNEL-POSTRTG", "flanneld masq", []string{
			nat("-m mark --mark 0x4000/0x4000", "RETURN"),
			nat("-s "+pod+" -d "+net, "RETURN"),
			nat("-s "+net+" -d "+pod, "RETURN"),
			nat("! -s "+net+" -d "+pod, "RETURN"),
			nat("-s "+net+" ! -d "+n.in().multicast, "MASQUERADE --random-fully"),
			nat("! -s "+net+" -d "+net, "MASQUERADE --random-fully"),
		}},
		{"filter", "FORWARD", "FLANNEL-FWD", "flanneld forward", []string{forward("-s " + net), forward("-d " + net)}},
	}
}

// nft is a family's table of the nftables mode; both tables are there on a node of one family too.
func (n Node) nft() string {
	w := n.in()
	return strings.NewReplacer(
		"NET", n.Network.String(), "POD", n.PodCIDR.String(), "ip flannel-ipv4", w.nft+" "+w.table, "ip saddr", w.nft+" saddr",
		"ip daddr", w.nft+" daddr", "224.0.0.0/4", w.multicast,
	).Replace(`
add chain ip flannel-ipv4 postrtg { type nat hook postrouting priority srcnat; policy accept; comment "chain to manage traffic masquerading by flannel"; }
flush chain ip flannel-ipv4 postrtg
add rule ip flannel-ipv4 postrtg meta mark 0x4000 return
add rule ip flannel-ipv4 postrtg ip saddr POD ip daddr NET return
add rule ip flannel-ipv4 postrtg ip saddr NET ip daddr POD return
add rule ip flannel-ipv4 postrtg ip saddr != POD ip daddr NET return
add rule ip flannel-ipv4 postrtg ip saddr NET ip daddr != 224.0.0.0/4 masquerade fully-random
add rule ip flannel-ipv4 postrtg ip saddr != NET ip daddr NET masquerade fully-random
add chain ip flannel-ipv4 forward { type filter hook forward priority filter; policy accept; comment "chain to accept flannel traffic"; }
flush chain ip flannel-ipv4 forward
add rule ip flannel-ipv4 forward ip saddr NET accept
add rule ip flannel-ipv4 forward ip daddr NET accept
`)
}

// cleanOtherEngine is flannel's attempt to remove what its other mode left: in iptables mode the nftables tables go, in
// nftables mode the chain is emptied and the jumps stay.
func (n Node) cleanOtherEngine(h Host) error {
	if n.Rules != NFTables {
		for _, table := range []string{"ip flannel-ipv4", "ip6 flannel-ipv6"} {
			_, _ = h.Input("delete table "+table+"\n", "nft", "-f", "-") // it is not there, mostly
		}
		return nil
	}
	for _, program := range []string{"iptables", "ip6tables"} {
		_, _ = h.Input("", program, "-t", "nat", "-F", "FLANNEL-POSTRTG")
	}
	return nil
}

// RulesText is all of a node's rules as text, of nftables and of both engines of iptables.
func RulesText(h Host) (string, error) {
	var all strings.Builder
	for _, command := range []string{"nft --stateless list ruleset", "iptables-nft-save", "iptables-legacy-save", "ip6tables-nft-save", "ip6tables-legacy-save"} {
		out, err := h.Input("", strings.Fields(command)...)
		if err != nil {
			return "", err
		}
		all.WriteString(out)
	}
	return all.String(), nil
}
