package traffic

import (
	"fmt"
	"slices"
	"strings"
)

// inputTrouble looks at INPUT, which encapsulated packets of peers have to pass. Rules there are the operator's, so this
// only tells; but where the port is let in by state NEW alone, our packets must stay tracked to match it.
func inputTrouble(t xtable, port uint16) (tracked bool, text string) {
	if port == 0 {
		return false, ""
	}
	named := false
	for _, chain := range t.chains {
		for _, r := range t.rules[chain] {
			if !namesPort(r.spec, port) {
				continue
			}
			named = true
			// "--state NEW", "--ctstate NEW,ESTABLISHED": anything that lists NEW and not UNTRACKED.
			if strings.Contains(r.spec, "state ") && strings.Contains(r.spec, "NEW") && !strings.Contains(r.spec, "UNTRACKED") {
				return true, ""
			}
		}
	}
	open := t.policies["INPUT"] != "DROP" && t.unmatched("INPUT", maxDepth) != stops
	if open || named || slices.ContainsFunc(t.rules["INPUT"], letsHostsIn) {
		return false, ""
	}
	return false, fmt.Sprintf("INPUT stops what it does not know, and no rule lets UDP port %d of the overlay in: "+
		"iptables -I INPUT -p udp --dport %d -j ACCEPT", port, port)
}

// namesPort tells whether a rule is about a UDP port.
func namesPort(spec string, port uint16) bool {
	words := splitWords(spec)
	for i, w := range words[:max(len(words)-1, 0)] {
		if (w == "--dport" || w == "--dports") && slices.Contains(strings.Split(words[i+1], ","), fmt.Sprint(port)) {
			return slices.Contains(words, "udp")
		}
	}
	return false
}

// letsHostsIn tells whether a rule accepts all that comes from somewhere else, which may well be the peers.
func letsHostsIn(r xrule) bool {
	words := splitWords(r.spec)
	return r.target == "ACCEPT" && !slices.Contains(words, "-p") && !slices.Contains(words, "lo") &&
		(slices.Contains(words, "-s") || slices.Contains(words, "-i"))
}
