package traffic

import "context"

// plan is the difference between what is there and what is wanted.
type plan struct {
	want     Ruleset
	table    difference
	actions  []action // after the table, in order
	problems []string
	errs     []error // what could not be read
}

// action is one commit to a table that is not ours alone.
type action struct {
	text string
	do   func(context.Context) error
}

// scope widens a survey beyond what can change while we run.
type scope struct {
	families bool // look also where the Config wants nothing
	flannel  bool // look for flannel's rules
}

// survey is one reading of the host, and the plan that comes of it.
type survey struct {
	*plan
	m      *Manager
	cfg    Config
	scope  scope
	tables map[string]bool // nft tables by "family name"
}

// survey reads and compares; it changes nothing.
func (m *Manager) survey(ctx context.Context, c Config, sc scope) *plan {
	s := survey{plan: &plan{}, m: m, cfg: c, scope: sc}
	var err error
	if s.tables, err = m.host.Tables(); err != nil {
		s.errs = append(s.errs, err)
		return s.plan
	}
	s.iptables(ctx)
	found, err := m.firewall.look(ctx, &m.nft, c, s.tables)
	if err != nil {
		s.errs = append(s.errs, err)
	}
	s.problems = append(s.problems, found.texts...)
	s.cfg.Tracked = s.cfg.Tracked || found.tracked
	s.ownTable(ctx)
	if sc.flannel {
		s.flannelTables()
	}
	return s.plan
}

// ownTable compares our table. A listing is asked for only when there is one.
func (s *survey) ownTable(ctx context.Context) {
	s.want = Rules(s.cfg)
	if !s.tables["inet "+TableName] {
		s.table = compare(state{}, wanted(s.want))
		return
	}
	have, err := s.m.nft.read(ctx)
	if err != nil {
		s.errs = append(s.errs, err)
		return
	}
	s.table = compare(have, wanted(s.want))
	if !have.exists() && s.want.Empty() {
		s.table.structure("it is empty")
	}
}

// flannelTables plans the end of the tables that flannel's nftables mode leaves.
func (s *survey) flannelTables() {
	for _, f := range families() {
		name := f.Proto + " " + f.FlannelNF
		if !s.tables[name] {
			continue
		}
		s.actions = append(s.actions, s.m.host.dropTable("remove flannel's table "+name, name))
	}
}

// dropTable removes a whole nftables table.
func (h host) dropTable(text, name string) action {
	return action{text, func(ctx context.Context) error {
		_, err := h.Run(ctx, "delete table "+name+"\n", "nft", "-f", "-")
		return err
	}}
}
