package traffic

import (
	"context"
	"fmt"
	"slices"
	"strings"
)

// xtableAt names one iptables table.
type xtableAt struct {
	family family
	engine string
	table  string
}

// tool is the family's iptables over the engine, as its programs are called.
func (a xtableAt) tool() string { return a.family.Tool + "-" + a.engine }

// iptables plans what the iptables tables of the host need: our jump, and the end of flannel's rules. Only tables that
// the kernel has are looked at, and the nat tables, which may be huge, only for flannel's sake.
func (s *survey) iptables(ctx context.Context) {
	if len(s.m.tools) == 0 {
		s.m.tools = s.m.host.flavours(ctx)
	}
	for _, fam := range families() {
		if !s.cfg.enabled(fam.Family) && !s.scope.families {
			continue
		}
		for _, engine := range []string{engineNFT, engineLegacy} {
			for _, table := range []string{"filter", "nat"} {
				if (table == "filter" || s.scope.flannel) && s.m.host.inUse(fam, engine, table, s.tables) {
					s.xtable(ctx, xtableAt{fam, engine, table})
				}
			}
		}
	}
}

// xtable plans one table.
func (s *survey) xtable(ctx context.Context, a xtableAt) {
	i := slices.IndexFunc(s.m.tools, func(f flavour) bool { return f.family == a.family && f.engine == a.engine })
	if i < 0 {
		s.blind(ctx, a)
		return
	}
	f := s.m.tools[i]
	t, err := s.m.host.read(ctx, f, a.table)
	if err != nil {
		s.errs = append(s.errs, err)
		return
	}
	if t.foreign { // made by nft: iptables would change nothing in it either
		s.byNFT(ctx, a)
		return
	}
	if a.table == "filter" {
		s.filter(f, t)
	}
	if s.scope.flannel {
		n := s.cfg.Nets[a.family.Family]
		s.commit(f, a.table, "remove flannel's rules from the table "+a.table, leftovers(t, a.table, n.Network, n.PodCIDR))
	}
}

// filter plans our jump, and looks at what the operator's rules do to us.
func (s *survey) filter(f flavour, t xtable) {
	fam := f.family.Family
	fwd := planForward(t, s.cfg.Nets[fam].Network, s.cfg.place(fam))
	s.commit(f, "filter", fwd.text, fwd.commands)
	s.trouble(f, fwd.problem)
	if s.cfg.enabled(fam) {
		s.cfg.Tracked = s.cfg.Tracked || wantsTracking(t, s.cfg.Port)
		for _, a := range s.cfg.arrivals(f.family) {
			s.trouble(f, gateTrouble(t, f.program(), "INPUT", a))
			s.trouble(f, gateTrouble(t, f.program(), "OUTPUT", a))
		}
	}
}

// blind looks at a table without its iptables, and tells where that is not enough.
func (s *survey) blind(ctx context.Context, a xtableAt) {
	if a.table != "filter" || s.cfg.place(a.family.Family) == PlaceOff {
		return
	}
	if a.engine == engineNFT && s.byNFT(ctx, a) {
		return
	}
	s.problems = append(s.problems, fmt.Sprintf(
		"the host has a filter table of %s, and no %s is installed to see whether it stops pod traffic", a.tool(), a.tool()))
}

// byNFT looks at a filter table as nft lists it, and reports whether nft can read all of it: rules that iptables-nft has made it
// cannot. Such a table is the operator's: what stops us in it is named.
func (s *survey) byNFT(ctx context.Context, a xtableAt) bool {
	if a.table != "filter" || !s.cfg.enabled(a.family.Family) {
		return true
	}
	text, err := s.m.host.List(ctx, "table", a.family.Proto, a.table)
	if err != nil || text == "" { // it has gone meanwhile
		s.errs = append(s.errs, err)
		return true
	}
	name := a.family.Proto + " " + a.table
	found, err := tableTrouble(text, name, s.cfg)
	if err != nil || strings.Contains(text, `"xt"`) {
		return false
	}
	s.problems = append(s.problems, found.texts...)
	s.cfg.Tracked = s.cfg.Tracked || found.tracked
	return true
}

func (s *survey) trouble(f flavour, text string) {
	if text != "" {
		s.problems = append(s.problems, f.name()+": "+text)
	}
}

// commit plans commands for one table, if there are any.
func (s *survey) commit(f flavour, table, text string, commands []string) {
	if len(commands) == 0 {
		return
	}
	s.actions = append(s.actions, action{f.name() + ": " + text, func(ctx context.Context) error {
		return s.m.host.commit(ctx, f, table, commands)
	}})
}
