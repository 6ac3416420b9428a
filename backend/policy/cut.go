package policy

import (
	"context"
	"errors"
	"net/netip"
	"time"

	"github.com/weft-cni/weft/backend/netfilter"
)

// cutting is what is known about connections that were cut.
//
// To cut one, its entry is deleted from the tracking table, so that its next packet is judged anew. TCP gives itself away:
// the next segment of either end is no SYN, and is dropped. With UDP the next packet of the end that did not begin, judged
// alone, may well be allowed, and would open the connection again from behind. So the flow stands in a set of the table, in
// the direction in which it began, and packets of both directions are dropped while either end goes on.
type cutting struct {
	flows map[Flow]time.Time  // what we put there, and when: for a table that has to be written anew
	maybe bool                // the kernel's set may have something
	due   bool                // connections have not been looked at since something was taken away
	own   map[netip.Addr]bool // the node's own addresses, as they were at the last look
}

// forgetCut is when a cut flow is no longer written into a new table: the set's own time-out is long over.
const forgetCut = 10 * time.Minute

// cut ends the connections that the rules do not allow, and lets those begin again that they do.
func (m *Manager) cut(ctx context.Context, r Ruleset, d Difference, held func(netip.Addr) bool) ([]string, error) {
	if r.Empty() || !r.cuts() {
		m.cutting = cutting{due: true}
		return nil, nil
	}
	if m.cutting.own == nil {
		own, err := m.host.Addresses()
		if err != nil {
			return nil, err
		}
		m.cutting.own = own
	}
	m.cutting.due = m.cutting.due || d.cuts(held)
	if d.Empty() && !m.cutting.due {
		return nil, nil
	}
	if err := m.allowAgain(ctx, r); err != nil || !m.cutting.due {
		return nil, err
	}
	doomed, err := m.doomed(r)
	if err != nil {
		return nil, err
	}
	cut, err := m.end(ctx, doomed)
	m.cutting.due = err != nil
	return cut, err
}

// end ends connections, and names them.
func (m *Manager) end(ctx context.Context, doomed []tracked) ([]string, error) {
	if len(doomed) == 0 {
		return nil, nil
	}
	texts := make([]string, len(doomed))
	list := make([]netfilter.Connection, len(doomed))
	for i, c := range doomed {
		texts[i], list[i] = c.flow.String(), c.conn
	}
	blocked := m.block(ctx, doomed) // before the entries go, lest the other end is quicker; without it they go all the same
	return texts, errors.Join(blocked, m.host.Forget(list))
}

// Forbidden is a connection that is open and that the policies do not allow.
type Forbidden struct {
	Flow     Flow
	Policies []string // those that deny it, by Key
}

// Forbidden lists the open connections of this node's pods that the World's policies do not allow: what enforcing them would
// cut. It changes nothing. Like Sync it is not to be called beside another.
func (m *Manager) Forbidden(w World) ([]Forbidden, error) {
	r := Compile(w, Config{})
	if r.Empty() {
		return nil, nil
	}
	list, err := m.doomed(r)
	var out []Forbidden
	for _, c := range list {
		f := Forbidden{Flow: c.flow}
		for _, s := range c.verdict.Steps {
			f.Policies = append(f.Policies, s.Policies...)
		}
		out = append(out, f)
	}
	return out, err
}

// cuts tells whether connections follow the rules.
func (r Ruleset) cuts() bool {
	for _, s := range r.Sets {
		if s.Kind == Timed {
			return true
		}
	}
	return false
}

// tracked is a connection with the flow that it is to the rules.
type tracked struct {
	conn    netfilter.Connection
	flow    Flow
	verdict Verdict
}

// doomed finds the connections that are not allowed.
func (m *Manager) doomed(r Ruleset) ([]tracked, error) {
	var err error
	if m.cutting.own, err = m.host.Addresses(); err != nil {
		return nil, err
	}
	guarded := r.guarded()
	var out []tracked
	list, err := m.host.Connections(func(c netfilter.Connection) bool {
		t := c.Forwarded()
		if !guarded[t.Src] && !guarded[t.Dst] {
			return false
		}
		f := Flow{Src: t.Src, Dst: t.Dst, Proto: Proto(t.Proto), SrcPort: t.SrcPort, DstPort: t.DstPort}
		if _, back := m.cutting.flows[f.reversed()]; back {
			f = f.reversed() // it came up again from behind, while our table was not in force
		}
		v := m.judge(r, f)
		if !v.Allowed {
			out = append(out, tracked{flow: f, verdict: v})
		}
		return !v.Allowed
	})
	for i, c := range list {
		out[i].conn = c
	}
	return out, err
}

// judge judges a flow that may be from this node, which is allowed, or to it.
func (m *Manager) judge(r Ruleset, f Flow) Verdict {
	switch {
	case m.cutting.own[f.Src]:
		return Verdict{Allowed: true}
	case m.cutting.own[f.Dst]:
		return r.JudgeToNode(f)
	}
	return r.Judge(f)
}

// guarded are the addresses of this node that policies have a say over.
func (r Ruleset) guarded() map[netip.Addr]bool {
	out := map[netip.Addr]bool{}
	for _, f := range families() {
		s, _ := r.set(setName("guarded", f))
		for _, e := range s.Elements {
			out[netipOf(e)] = true
		}
	}
	return out
}
