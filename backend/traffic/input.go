package traffic

import (
	"fmt"
	"slices"
	"strings"
)

// gateTrouble looks at INPUT, which encapsulated packets of peers have to pass, or at OUTPUT, which ours have to. Rules there are
// the operator's, so this only tells what is in the way. The tool is the command that changes the table.
func gateTrouble(t xtable, tool, chain string, a arrival) string {
	way := map[string]string{"INPUT": "in", "OUTPUT": "out"}[chain]
	cure := fmt.Sprintf("%s -I %s %s -j ACCEPT", tool, chain, a.iptables)
	switch o, by := t.meet(chain, a, maxDepth); {
	case o == stops:
		return fmt.Sprintf("%s lets nothing to %s of the overlay %s: %s", by, a.what, way, cure)
	case o == falls && t.policies[chain] == "DROP":
		return fmt.Sprintf("%s stops what it does not know, and no rule lets %s of the overlay %s: %s", chain, a.what, way, cure)
	}
	return ""
}

// wantsTracking tells whether a rule accepts packets to the port, or to any, by state NEW alone on their way in or out.
// Packets that bypass connection tracking would not match it, and with flannel they did.
func wantsTracking(t xtable, port uint16) bool {
	if port == 0 {
		return false
	}
	for _, chain := range append(t.reachable("INPUT"), t.reachable("OUTPUT")...) {
		for _, r := range t.rules[chain] {
			named, other := dport(r.spec, port)
			if r.target == "ACCEPT" && byStateNew(r.spec) && (named || !other) {
				return true
			}
		}
	}
	return false
}

// byStateNew tells whether a rule asks for a state, and NEW is among those that it takes and UNTRACKED is not.
func byStateNew(spec string) bool {
	words := splitWords(spec)
	for i, w := range words[:max(len(words)-1, 0)] {
		if w == "--state" || w == "--ctstate" {
			states := strings.Split(words[i+1], ",")
			return slices.Contains(states, "NEW") && !slices.Contains(states, "UNTRACKED") && words[max(i-1, 0)] != "!"
		}
	}
	return false
}

// dport tells whether a rule is about the UDP port, or about another protocol or port instead.
func dport(spec string, port uint16) (named, other bool) {
	words := splitWords(spec)
	udp := true
	for i, w := range words[:max(len(words)-1, 0)] {
		switch w {
		case "-p":
			udp = words[i+1] == "udp" || words[i+1] == "all"
		case "--dport", "--dports":
			named = slices.ContainsFunc(strings.Split(words[i+1], ","), func(ports string) bool { return inPorts(ports, ":", port) })
			named = named != (i > 0 && words[i-1] == "!")
			other = !named
		}
	}
	return named && udp, other || !udp
}

// reachable lists the chains that a packet may come through, beginning with a built-in one. kube-proxy's are left out:
// they are many, and none is about the overlay.
func (t xtable) reachable(from string) []string {
	chains := []string{from}
	for i := 0; i < len(chains); i++ {
		for _, r := range t.rules[chains[i]] {
			_, known := t.policies[r.target]
			if known && !strings.HasPrefix(r.target, "KUBE-") && !slices.Contains(chains, r.target) {
				chains = append(chains, r.target)
			}
		}
	}
	return chains
}
