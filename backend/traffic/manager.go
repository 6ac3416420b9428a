package traffic

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/subnet"
)

// Options say where a Manager works. The zero value is right for the daemon.
type Options struct {
	NetNS    string                       // path of a network namespace; empty means the process's own
	OnExec   func(argv []string)          // called before each program that is run
	LookPath func(string) (string, error) // finds programs; nil means exec.LookPath

	// Wrap stands between us and nftables; nil means that nothing does.
	Wrap func(knftables.Interface) knftables.Interface

	// Tables are others of ours in nft's inet family, which Remove takes away too.
	Tables []string
}

// Manager keeps the rules of one network namespace as a Config wants them. It remembers nothing of what it wrote: each
// Sync reads and compares. One goroutine at a time may call it, except for Watch.
type Manager struct {
	host     host
	nft      nft
	tools    []flavour
	settled  bool    // the first Sync has been through: flannel's rules are gone, families that are off are clean
	enabled  [2]bool // families of the last Sync; when they change, the one that went has to be cleaned
	firewall firewall
	returns  returns
	others   []string // Options.Tables
}

// Result is what a Sync did and saw.
type Result struct {
	Changes  []string // what was written, in words; empty when all was as wanted
	Problems []string // what keeps traffic from passing and is not ours to change, with the cure
}

// New makes a Manager. It touches nothing yet.
func New(o Options) *Manager {
	h := host{netfilter.Host{NetNS: o.NetNS, OnExec: o.OnExec, LookPath: o.LookPath}}
	return &Manager{host: h, nft: nft{host: h, wrap: o.Wrap}, returns: returns{quiet: returnQuiet}, others: o.Tables}
}

// Sync makes the rules as the Config wants them. What is right already is not written, so it is cheap to call: three
// programs that read. Errors of one part do not keep the others from being done.
func (m *Manager) Sync(ctx context.Context, c Config) (Result, error) {
	if err := c.Validate(); err != nil {
		return Result{}, err
	}
	if enabled := [2]bool{c.enabled(subnet.IPv4), c.enabled(subnet.IPv6)}; enabled != m.enabled {
		m.settled, m.enabled = false, enabled
	}
	m.settled = m.settled && !m.returns.due()
	heard := m.returns.at.Load()
	p := m.survey(ctx, c, scope{families: !m.settled, flannel: !m.settled})
	changes, err := m.apply(ctx, p)
	if p.table.rewrite && err == nil {
		m.beginAnew(c)
	}
	if err == nil && !m.settled {
		m.settled, m.returns.done = true, heard
	}
	return Result{Changes: changes, Problems: append(p.problems, m.returns.problems()...)}, err
}

// Check tells what Sync would change, and the problems, without touching anything.
func (m *Manager) Check(ctx context.Context, c Config) ([]string, error) {
	if err := c.Validate(); err != nil {
		return nil, err
	}
	p := m.survey(ctx, c, scope{families: true, flannel: true})
	texts := slices.Clone(p.table.texts)
	for _, a := range p.actions {
		texts = append(texts, a.text)
	}
	return append(texts, p.problems...), errors.Join(p.errs...)
}

// Remove takes away all that is ours. It leaves flannel's rules alone: after a way back they are in use.
func (m *Manager) Remove(ctx context.Context) ([]string, error) {
	s := m.survey(ctx, Config{}, scope{families: true})
	tables, err := m.host.Tables()
	if err != nil {
		return nil, err
	}
	for _, t := range m.others {
		for _, family := range []string{"inet ", "bridge "} {
			if name := family + t; tables[name] {
				s.actions = append(s.actions, m.host.dropTable("remove the table "+name, name))
			}
		}
	}
	return m.apply(ctx, s)
}

// apply carries out a plan: our table first, so that flannel's rules go only when ours are in place.
func (m *Manager) apply(ctx context.Context, p *plan) (changes []string, err error) {
	errs := p.errs
	if len(p.table.texts) > 0 {
		if err := m.write(ctx, p); err != nil {
			return nil, errors.Join(append(errs, err)...)
		}
		changes = append(changes, summary(p.table.texts)...)
	}
	for _, a := range p.actions {
		if err := a.do(ctx); err != nil {
			errs = append(errs, err)
			continue
		}
		changes = append(changes, a.text)
	}
	return changes, errors.Join(errs...)
}

// write brings our table up to date. An element may have come or gone since it was read: then the whole table is written.
func (m *Manager) write(ctx context.Context, p *plan) error {
	err := m.nft.write(ctx, func(tx *knftables.Transaction) { p.table.fill(tx, p.want) })
	if err == nil || p.table.rewrite {
		return err
	}
	return m.nft.write(ctx, p.want.Replace)
}

// summary keeps a first round with five thousand elements from becoming five thousand log lines.
func summary(texts []string) []string {
	const most = 10
	if len(texts) <= most {
		return texts
	}
	return append(slices.Clone(texts[:most]), fmt.Sprintf("and %d more", len(texts)-most))
}
