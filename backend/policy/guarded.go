package policy

import (
	"net/netip"
	"strings"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy/guard"
)

// NewGuarded makes a Manager for a host whose rules have a guard for the moments in which somebody else takes them away. It
// is to be closed; the rules stay, and the guard goes.
func NewGuarded(h netfilter.Host) *Manager {
	m := New(h)
	m.guard = guard.New(h)
	return m
}

// Close takes the guard away. The rules stay.
func (m *Manager) Close() {
	if m.guard != nil {
		m.guard.Close()
	}
}

// pods are those that the rules have a say over and that are to be guarded: none when nothing is dropped. Where connections are
// cut a pod is guarded in both directions, whichever the rules judge: the other end must not bring up from behind what was cut.
func (r Ruleset) pods(c Config) (out guard.Pods) {
	if c.Audit {
		return out
	}
	for side := range out {
		out[side] = map[netip.Addr]bool{}
		for _, f := range families() {
			name := mapNames(f)[side]
			if side != toNode && r.cuts() {
				name = setName("guarded", f)
			}
			s, _ := r.set(name)
			for _, e := range s.Elements {
				addr, _, _ := strings.Cut(e, " : ")
				out[side][netipOf(addr)] = true
			}
		}
	}
	return out
}

// narrow stops guarding the pods over whom new rules have no say, before these are in force.
func (m *Manager) narrow(want Ruleset, c Config) error {
	if m.guard == nil {
		return nil
	}
	return m.guard.Narrow(want.pods(c))
}

// widen guards the pods over whom the rules that are in force have a say.
func (m *Manager) widen(want Ruleset, c Config, narrows bool) error {
	if m.guard == nil {
		return nil
	}
	return m.guard.Widen(want.pods(c), narrows)
}
