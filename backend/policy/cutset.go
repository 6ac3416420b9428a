package policy

import (
	"context"
	"errors"
	"strings"
	"time"

	"sigs.k8s.io/knftables"

	"github.com/weft-cni/weft/backend/netfilter"
)

// block puts flows into the table's set that would come up again.
func (m *Manager) block(ctx context.Context, list []tracked) error {
	var flows []Flow
	for _, c := range list {
		if c.flow.Proto != UDP && c.flow.Proto != SCTP && !m.cutting.own[c.flow.Dst] {
			continue // the middle of TCP is dropped without; but what the node sends is not looked at
		}
		m.remember(c.flow)
		flows = append(flows, c.flow)
	}
	return m.writeCut(ctx, flows, nil)
}

// writeCut adds flows to the set and takes others out.
func (m *Manager) writeCut(ctx context.Context, add, drop []Flow) error {
	if len(add)+len(drop) == 0 {
		return nil
	}
	m.cutting.maybe = true
	return m.write(ctx, func(w writer) {
		for _, f := range append(drop[:len(drop):len(drop)], add...) { // what has expired cannot be deleted, so it is added first
			w.tx.Add(cutKey(f))
		}
		for _, f := range drop {
			w.tx.Delete(cutKey(f))
		}
		w.signs()
	})
}

func cutKey(f Flow) *knftables.Element {
	set, e := cutElement(f)
	return &knftables.Element{Set: set, Key: strings.Split(e, " . ")}
}

// review forgets the flows that the rules allow by now, and those that are long over.
func (m *Manager) review(r Ruleset) {
	for f, since := range m.cutting.flows {
		if !r.cuts() || !r.guards(f) || m.judge(r, f).Allowed || time.Since(since) > forgetCut {
			delete(m.cutting.flows, f)
		}
	}
}

// guards tells whether the rules have a say over a flow at all; then there is a set for it.
func (r Ruleset) guards(f Flow) bool { return r.Guards(f.Src) || r.Guards(f.Dst) }

// allowAgain takes flows out of the set that the rules allow by now. What an earlier agent put there is learned.
func (m *Manager) allowAgain(ctx context.Context, r Ruleset) error {
	if !m.cutting.maybe {
		return nil
	}
	there, err := m.listCut(ctx, r)
	if err != nil {
		return err
	}
	m.cutting.maybe = len(there) > 0
	var drop []Flow
	for _, f := range there {
		if m.judge(r, f).Allowed {
			drop = append(drop, f)
			continue
		}
		m.remember(f)
	}
	return m.writeCut(ctx, nil, drop)
}

// remember keeps a flow that is cut.
func (m *Manager) remember(f Flow) {
	if m.cutting.flows == nil {
		m.cutting.flows = map[Flow]time.Time{}
	}
	m.cutting.flows[f] = time.Now()
}

// listCut reads the set.
func (m *Manager) listCut(ctx context.Context, r Ruleset) ([]Flow, error) {
	var out []Flow
	for _, f := range families() {
		name := setName("cut", f)
		if _, ok := r.set(name); !ok {
			continue
		}
		text, err := m.host.List(ctx, "set", "inet", TableName, name)
		if err != nil || text == "" {
			return nil, errors.Join(err)
		}
		err = netfilter.Objects(text, func(kind string, o netfilter.Object) {
			if kind != "set" {
				return
			}
			s, _ := setOf(kind, o)
			for _, e := range s.Elements {
				if flow, ok := parseFlow(e); ok {
					out = append(out, flow)
				}
			}
		})
		if err != nil {
			return nil, err
		}
	}
	return out, nil
}
