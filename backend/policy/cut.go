package policy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	"sigs.k8s.io/knftables"

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
func (m *Manager) cut(ctx context.Context, r Ruleset, d Difference) ([]string, error) {
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
	m.cutting.due = m.cutting.due || d.narrows
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
		w.sign()
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
		text, err := m.list(ctx, "set", "inet", TableName, name)
		if err != nil || text == "" {
			return nil, errors.Join(err)
		}
		err = objects(text, func(kind string, o object) {
			if kind != "set" {
				return
			}
			s, _ := o.set(kind)
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

// reversed is the flow of the answers.
func (f Flow) reversed() Flow {
	return Flow{Src: f.Dst, Dst: f.Src, Proto: f.Proto, SrcPort: f.DstPort, DstPort: f.SrcPort}
}

// String is "10.244.1.5:40000 > 10.244.2.7:53/udp".
func (f Flow) String() string {
	proto := f.Proto.String()
	if f.Proto == 1 || f.Proto == 58 {
		return fmt.Sprintf("%s > %s/icmp", f.Src, f.Dst)
	}
	return fmt.Sprintf("%s > %s/%s", netip.AddrPortFrom(f.Src, f.SrcPort), netip.AddrPortFrom(f.Dst, f.DstPort), proto)
}
