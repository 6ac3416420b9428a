package traffic

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// surveyIptables plans what the iptables tables of the host need: our jump, and the end of flannel's rules. It reports
// whether arriving overlay packets have to stay tracked.
func (m *Manager) surveyIptables(ctx context.Context, c Config, sc scope, tables map[string]bool, p *plan) (tracked bool) {
	if len(m.tools) == 0 {
		m.tools = m.host.flavours(ctx)
	}
	for _, fam := range families() {
		if !c.enabled(fam.Family) && !sc.families {
			continue
		}
		for _, engine := range []string{engineNFT, engineLegacy} {
			for _, table := range []string{"filter", "nat"} {
				if (table == "nat" && !sc.flannel) || !m.host.inUse(fam, engine, table, tables) {
					continue
				}
				tracked = m.surveyTable(ctx, c, sc, at{fam, engine, table}, p) || tracked
			}
		}
	}
	return tracked
}

// at names one iptables table.
type at struct {
	family family
	engine string
	table  string
}

// surveyTable plans one table.
func (m *Manager) surveyTable(ctx context.Context, c Config, sc scope, a at, p *plan) (tracked bool) {
	i := slices.IndexFunc(m.tools, func(f flavour) bool { return f.family == a.family && f.engine == a.engine })
	if i < 0 {
		if a.table == "filter" && c.place(a.family.Family) != PlaceOff {
			p.problems = append(p.problems, fmt.Sprintf(
				"the host has an %s-%s filter table, and no %s-%s program is installed to see whether it stops pod traffic",
				a.family.Tool, a.engine, a.family.Tool, a.engine))
		}
		return false
	}
	f := m.tools[i]
	t, err := m.host.read(ctx, f, a.table)
	if err != nil {
		p.errs = append(p.errs, err)
		return false
	}
	net := c.Nets[a.family.Family]
	if a.table == "filter" {
		fwd := planForward(t, net.Network, c.place(a.family.Family))
		p.commit(m, f, a.table, fwd.text, fwd.commands)
		if fwd.problem != "" {
			p.problems = append(p.problems, f.name()+": "+fwd.problem)
		}
		if c.enabled(a.family.Family) {
			var text string
			tracked, text = inputTrouble(t, c.Port)
			if text != "" {
				p.problems = append(p.problems, f.name()+": "+text)
			}
		}
	}
	if sc.flannel {
		p.commit(m, f, a.table, "remove flannel's rules from the table "+a.table, leftovers(t, a.table, net.Network, net.PodCIDR))
	}
	return tracked
}

// commit plans commands for one table, if there are any.
func (p *plan) commit(m *Manager, f flavour, table, text string, commands []string) {
	if len(commands) == 0 {
		return
	}
	p.actions = append(p.actions, action{f.name() + ": " + text, func(ctx context.Context) error {
		return m.host.commit(ctx, f, table, commands)
	}})
}

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
