package traffic

import (
	"net/netip"
	"slices"
	"strings"
)

// leftovers are the iptables commands that remove what flannel wrote into a table, and nothing else: its chains, the
// rules that lead to them, and rules of its older versions, which stood in the built-in chains directly.
func leftovers(t xtable, table string, network, podCIDR netip.Prefix) []string {
	plain := plainRules(table, network, podCIDR)
	var refs []reference
	for _, chain := range t.chains {
		if isFlannel(chain) {
			continue
		}
		for _, r := range t.rules[chain] {
			if isFlannel(r.target) || r.comment == "flanneld masq" || r.comment == "flanneld forward" ||
				(chain == "POSTROUTING" && slices.Contains(plain, strings.TrimSuffix(r.spec, " --random-fully"))) {
				refs = append(refs, reference{chain, r.spec})
			}
		}
	}
	commands := deletions(refs)
	for _, chain := range t.chains {
		if isFlannel(chain) {
			commands = append(commands, ":"+chain+" - [0:0]", "-X "+chain)
		}
	}
	return commands
}

// isFlannel tells whether a chain is one that flannel makes.
func isFlannel(chain string) bool {
	return chain == "FLANNEL-POSTRTG" || chain == "FLANNEL-FWD"
}

// plainRules are the masquerade rules as flannel wrote them before it marked them with a comment. They are recognised by
// their whole text and our ranges, so that an operator's rule is not mistaken for one.
func plainRules(table string, network, podCIDR netip.Prefix) []string {
	if table != "nat" || !network.IsValid() || !network.Addr().Is4() {
		return nil
	}
	n, p := network.String(), podCIDR.String()
	return []string{
		"-s " + n + " -d " + n + " -j RETURN",
		"-s " + n + " ! -d 224.0.0.0/4 -j MASQUERADE",
		"! -s " + n + " -d " + p + " -j RETURN",
		"! -s " + n + " -d " + n + " -j MASQUERADE",
	}
}
