package traffic

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// HandOver gives the node's rules back to flannel: it writes flannel's own, exactly as flannel does and recognises them, and
// only then takes ours away. So pods' packets go on being translated until flannel starts, and what flannel finds then is what
// it would have left itself. Nftables says which of its two modes that flannel will run in, as EnableNFTables in net-conf.json
// does.
func (m *Manager) HandOver(ctx context.Context, c Config, nftables bool) ([]string, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	s := survey{plan: &plan{}, m: m, cfg: c}
	var err error
	if s.tables, err = m.host.Tables(); err != nil {
		return nil, err
	}
	if len(m.tools) == 0 {
		m.tools = m.host.flavours(ctx)
	}
	for _, fam := range families() {
		if !c.enabled(fam.Family) {
			continue
		}
		at := slices.IndexFunc(m.tools, func(f flavour) bool { return f.family == fam && f.engine == s.engineOf(ctx, fam) })
		if nftables || at < 0 {
			s.flannelNFT(fam)
			continue
		}
		for _, group := range flannelRules(fam, c) {
			s.flannelIPTables(ctx, m.tools[at], group)
		}
	}
	changes, err := m.apply(ctx, s.plan)
	if err != nil {
		return changes, fmt.Errorf("hand the rules over to flannel: %w", err) // and ours stay
	}
	removed, err := m.Remove(ctx)
	return append(changes, removed...), err
}

// engineOf guesses over which engine flannel's iptables will work: that of the kubelet and of kube-proxy, which is what its
// image looks for, else nftables where there is an iptables for it.
func (s *survey) engineOf(ctx context.Context, fam family) string {
	found := ""
	for _, engine := range []string{engineNFT, engineLegacy} {
		i := slices.IndexFunc(s.m.tools, func(f flavour) bool { return f.family == fam && f.engine == engine })
		if i < 0 {
			continue
		}
		if found == "" {
			found = engine
		}
		for _, table := range []string{"mangle", "nat"} {
			if !s.m.host.inUse(fam, engine, table, s.tables) {
				continue
			}
			t, err := s.m.host.read(ctx, s.m.tools[i], table)
			if err == nil && slices.ContainsFunc(t.chains, func(c string) bool { return strings.HasPrefix(c, "KUBE-") }) {
				return engine
			}
		}
	}
	return found
}

// flannelGroup is one of flannel's chains in iptables, with the rule that leads to it.
type flannelGroup struct {
	table, hook, jump string
	chain             string
	rules             []string
}

// flannelRules are flannel's chains in iptables, as iptables-save prints them.
func flannelRules(fam family, c Config) []flannelGroup {
	n := c.Nets[fam.Family]
	net, pod := n.Network.String(), n.PodCIDR.String()
	const masq, forward = ` -m comment --comment "flanneld masq" -j `, ` -m comment --comment "flanneld forward" -j `
	masquerade := masq + "MASQUERADE"
	if c.RandomFully {
		masquerade += " --random-fully"
	}
	var groups []flannelGroup
	if c.Masquerade {
		groups = append(groups, flannelGroup{"nat", "POSTROUTING", strings.TrimSpace(masq) + " FLANNEL-POSTRTG", "FLANNEL-POSTRTG", []string{
			"-m mark --mark 0x4000/0x4000" + masq + "RETURN",
			"-s " + pod + " -d " + net + masq + "RETURN",
			"-s " + net + " -d " + pod + masq + "RETURN",
			"! -s " + net + " -d " + pod + masq + "RETURN",
			"-s " + net + " ! -d " + fam.Multicast + masquerade,
			"! -s " + net + " -d " + net + masquerade,
		}})
	}
	if c.Forward {
		groups = append(groups, flannelGroup{"filter", "FORWARD", strings.TrimSpace(forward) + " FLANNEL-FWD", "FLANNEL-FWD", []string{
			"-s " + net + forward + "ACCEPT", "-d " + net + forward + "ACCEPT",
		}})
	}
	return groups
}

// flannelIPTables plans one chain of flannel's, in one commit.
func (s *survey) flannelIPTables(ctx context.Context, f flavour, g flannelGroup) {
	var t xtable
	if s.m.host.inUse(f.family, f.engine, g.table, s.tables) {
		var err error
		if t, err = s.m.host.read(ctx, f, g.table); err != nil {
			s.errs = append(s.errs, err)
			return
		}
	}
	commands := []string{":" + g.chain + " - [0:0]"}
	for _, r := range g.rules {
		commands = append(commands, "-A "+g.chain+" "+r)
	}
	commands = append(commands, deletions(t.references(g.chain))...)
	s.commit(f, g.table, "hand "+g.hook+" over to flannel", append(commands, "-A "+g.hook+" "+g.jump))
}

// flannelNFT plans the table of flannel's nftables mode, in one transaction. Its fourth rule is flannel's, mistake included:
// a flannel that starts writes the same again.
func (s *survey) flannelNFT(fam family) {
	n := s.cfg.Nets[fam.Family]
	table := fam.Proto + " " + fam.FlannelNF
	masquerade := "masquerade"
	if s.cfg.RandomFully {
		masquerade += " fully-random"
	}
	script := fmt.Sprintf("table %s { comment \"rules for %s\"; }\ndelete table %s\ntable %s {\n comment \"rules for %s\"\n",
		table, fam.FlannelNF, table, table, fam.FlannelNF)
	if s.cfg.Masquerade {
		script += ` chain postrtg {
  comment "chain to manage traffic masquerading by flannel"
  type nat hook postrouting priority srcnat; policy accept;
  meta mark 0x4000 return
  IP saddr POD IP daddr NET return
  IP saddr NET IP daddr POD return
  IP saddr != POD IP daddr NET return
  IP saddr NET IP daddr != ` + fam.Multicast + " " + masquerade + `
  IP saddr != NET IP daddr NET ` + masquerade + `
 }
`
	}
	if s.cfg.Forward {
		script += ` chain forward {
  comment "chain to accept flannel traffic"
  type filter hook forward priority filter; policy accept;
  IP saddr NET accept
  IP daddr NET accept
 }
`
	}
	script = strings.NewReplacer("IP ", fam.Proto+" ", "NET", n.Network.String(), "POD", n.PodCIDR.String()).Replace(script) + "}\n"
	s.actions = append(s.actions, action{"hand the table " + table + " over to flannel", func(ctx context.Context) error {
		_, err := s.m.host.Run(ctx, script, "nft", "-f", "-")
		return err
	}})
}
