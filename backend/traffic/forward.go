package traffic

import (
	"fmt"
	"net/netip"
	"slices"
	"strings"
)

// chainName is our chain in the iptables filter table.
const chainName = "WEFT-FORWARD"

// jumpSpec is the rule in FORWARD that leads to our chain, as iptables-save prints it.
const jumpSpec = `-m comment --comment "weft: pod traffic" -j ` + chainName

// acceptSpecs are the rules of our chain, as iptables-save prints them: they accept the pod network and nothing else.
func acceptSpecs(network netip.Prefix) []string {
	return []string{
		fmt.Sprintf(`-s %s -m comment --comment "weft: from pods" -j ACCEPT`, network),
		fmt.Sprintf(`-d %s -m comment --comment "weft: to pods" -j ACCEPT`, network),
	}
}

// forwardPlan is what has to be done to one iptables filter table: nothing when commands is empty.
type forwardPlan struct {
	commands []string // lines for iptables-restore --noflush, all in one commit
	text     string   // what is done, in words
	problem  string   // why pod traffic may still be stopped
}

// planForward compares a filter table with what the place asks for.
func planForward(t xtable, network netip.Prefix, place Place) forwardPlan {
	rest := slices.DeleteFunc(slices.Clone(t.rules["FORWARD"]), func(r xrule) bool { return r.target == chainName })
	at, problem := position(t, rest, place)
	p := forwardPlan{problem: problem}
	_, there := t.policies[chainName]
	jumps := t.references(chainName)
	if at < 0 {
		if there {
			p.text = "remove the jump to " + chainName
			p.commands = append(deletions(jumps), ":"+chainName+" - [0:0]", "-X "+chainName)
		}
		return p
	}
	specs := acceptSpecs(network)
	switch {
	case !there:
		p.text = "add the chain " + chainName
	case !slices.Equal(specsOf(t.rules[chainName]), specs):
		p.text = "renew the chain " + chainName
	case len(jumps) != 1 || at >= len(t.rules["FORWARD"]) || t.rules["FORWARD"][at].spec != jumpSpec:
		p.text = "place the jump to " + chainName
	default:
		return p
	}
	p.text += fmt.Sprintf(" (rule %d of FORWARD)", at+1)
	p.commands = append(p.commands, ":"+chainName+" - [0:0]")
	for _, s := range specs {
		p.commands = append(p.commands, "-A "+chainName+" "+s)
	}
	p.commands = append(p.commands, deletions(jumps)...)
	if at == len(rest) {
		p.commands = append(p.commands, "-A FORWARD "+jumpSpec)
	} else {
		p.commands = append(p.commands, fmt.Sprintf("-I FORWARD %d %s", at+1, jumpSpec))
	}
	return p
}

// position is the index among the foreign rules of FORWARD before which our jump goes; -1 for no jump at all.
// As late as it works: whatever the operator or a policy engine put before the first rule that stops everything has
// its say first.
func position(t xtable, rules []xrule, place Place) (int, string) {
	engine := -1
	for i, r := range rules {
		if isEngine(r.target) {
			engine = i
		}
	}
	stop := firstStop(t, rules)
	switch {
	case place == PlaceOff:
		return -1, ""
	case place == PlaceAuto && stop < 0:
		return -1, ""
	case stop >= 0 && stop < engine && place != PlaceLast:
		return -1, fmt.Sprintf("rule %d of FORWARD (%s) stops pod traffic before the policy engine's chain %s has judged it: move it behind",
			stop+1, rules[stop].spec, rules[engine].target)
	case place == PlaceFirst:
		return engine + 1, ""
	case place == PlaceLast && stop >= 0 && stop < len(rules):
		return len(rules), fmt.Sprintf("rule %d of FORWARD (%s) stops pod traffic before our jump, which is forced to be last", stop+1, rules[stop].spec)
	case place == PlaceLast:
		return len(rules), ""
	}
	return stop, ""
}

// firstStop is the index of the first rule that stops whatever comes to it; the chain's length when only the policy does,
// and -1 when nothing does.
func firstStop(t xtable, rules []xrule) int {
	dropped := t.policies["FORWARD"] == "DROP"
	for i, r := range rules {
		if r.conditional && !r.begins {
			continue
		}
		switch o, ends := t.verdict(r, maxDepth); {
		case o == stops: // what lets no connection begin lets none through
			return i
		case r.conditional:
		case o == accepts:
			return -1
		case ends && dropped: // a return from a built-in chain meets its policy
			return i
		case ends:
			return -1
		}
	}
	if dropped {
		return len(rules)
	}
	return -1
}

// maxDepth is more than the levels of jumps that the kernel allows (16).
const maxDepth = 20

// reference is a rule somewhere in a table that leads to a chain.
type reference struct{ chain, spec string }

// references lists the rules that jump to a chain.
func (t xtable) references(target string) []reference {
	var refs []reference
	for _, chain := range t.chains {
		for _, r := range t.rules[chain] {
			if r.target == target {
				refs = append(refs, reference{chain, r.spec})
			}
		}
	}
	return refs
}

// deletions deletes rules by what they say. By number would be shorter, and would hit a foreign rule when the chain
// changed since it was read; this way the whole commit fails then, and the next round reads again.
func deletions(refs []reference) []string {
	var lines []string
	for _, r := range refs {
		lines = append(lines, "-D "+r.chain+" "+r.spec)
	}
	return lines
}

func specsOf(rules []xrule) []string {
	var specs []string
	for _, r := range rules {
		specs = append(specs, r.spec)
	}
	return specs
}

// restoreInput wraps commands for iptables-restore.
func restoreInput(table string, commands []string) string {
	return "*" + table + "\n" + strings.Join(commands, "\n") + "\nCOMMIT\n"
}
