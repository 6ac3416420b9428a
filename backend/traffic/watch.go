package traffic

import (
	"context"
	"slices"
	"time"

	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/backend/netfilter"
)

const legacyPeriod = 200 * time.Millisecond // a legacy flush is noticed within this time

// Watch has a value soon after somebody changed rules that are, or bear on, ours. Our own writes poke too, which costs
// one Sync that finds nothing to do. The channel is closed when ctx ends. The slow poll of whoever calls Sync stays
// necessary: it is the net for what Watch cannot see.
func (m *Manager) Watch(ctx context.Context) <-chan struct{} {
	poked := make(chan struct{}, 1)
	poke := func() {
		select {
		case poked <- struct{}{}:
		default: // one is waiting already, and one is enough
		}
	}
	legacy := make(chan struct{})
	go func() {
		defer close(legacy)
		m.watchLegacy(ctx, poke)
	}()
	go func() {
		defer close(poked)
		m.host.Listen(ctx, func(c netfilter.Change) {
			m.firewall.hear(c)
			m.returns.hear(c)
			if concerns(c) {
				poke()
			}
		})
		<-legacy
	}()
	return poked
}

// concerns tells whether a change is about our table, about a built-in chain of iptables-nft's filter table, or about a whole table.
// kube-proxy's constant changes to chains of its own are not worth a Sync.
func concerns(c netfilter.Change) bool {
	switch {
	case c.Lost || c.End:
		return c.Lost
	case c.Kind == unix.NFT_MSG_NEWTABLE || c.Kind == unix.NFT_MSG_DELTABLE || c.Table == "inet "+TableName:
		return true
	case c.Table != "ip filter" && c.Table != "ip6 filter":
		return false
	}
	return slices.Contains([]string{"FORWARD", "INPUT", "OUTPUT", chainName}, c.Chain)
}

// watchLegacy looks at the size of the iptables-legacy filter tables and at FORWARD's policy, for that engine sends no events.
func (m *Manager) watchLegacy(ctx context.Context, poke func()) {
	before := m.legacyState()
	for ctx.Err() == nil {
		sleep(ctx, legacyPeriod)
		if now := m.legacyState(); now != before {
			before = now
			poke()
		}
	}
}

// legacyLook is what watchLegacy sees of one table.
type legacyLook struct {
	info   legacyInfo
	policy int32
}

// legacyState is the look of both filter tables; zero where there is none.
func (m *Manager) legacyState() [2]legacyLook {
	var state [2]legacyLook
	for i, f := range families() {
		if !m.host.inUse(f, engineLegacy, "filter", nil) {
			continue
		}
		_ = m.host.Inside(func() (err error) {
			if state[i].info, err = legacySize(f, "filter"); err == nil {
				state[i].policy, err = legacyPolicy(f, state[i].info)
			}
			return err
		})
	}
	return state
}

func sleep(ctx context.Context, d time.Duration) {
	timer := time.NewTimer(d)
	defer timer.Stop()
	select {
	case <-ctx.Done():
	case <-timer.C:
	}
}
