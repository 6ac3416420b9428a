package policy_test

import (
	"context"
	"testing"
	"time"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/oracle"
)

// stream sends packets that are allowed and packets that are not, in turn, each as a connection of its own.
type stream struct {
	allowed, denied []uint32
}

// run sends until it is told to stop, or until it has sent as many as the wire's buffer holds.
func (s *stream) run(c *chain, yes, no oracle.Packet, stop chan struct{}) {
	tick := time.NewTicker(4 * time.Millisecond)
	defer tick.Stop()
	for range 3000 {
		select {
		case <-stop:
			return
		case <-tick.C:
		}
		s.allowed = append(s.allowed, c.send(yes))
		s.denied = append(s.denied, c.send(no))
	}
}

// townOfTwo is a World with the pods a, b and c of node 0, of which b lets in c only.
func townOfTwo(t *testing.T) *town {
	w := newTown(t)
	w.protect(only("pod", "b"), policy.Rule{Peers: []policy.Peer{{Namespace: "x", Pods: only("pod", "c")}}, Ports: []policy.Port{port(policy.UDP, 53)}})
	return w
}

func TestNoPacketIsWronglyJudgedWhileAgentsComeAndGo(t *testing.T) { // N-19
	c := newChain(t)
	w := townOfTwo(t)
	host := netfilter.Host{NetNS: c.node[0].Path()}
	enforce := func(m *policy.Manager) {
		t.Helper()
		if res, err := m.Sync(context.Background(), w.World, policy.Config{}); err != nil || res.Unguarded != nil {
			t.Fatal(err, res.Unguarded)
		}
	}
	m := policy.NewGuarded(host)
	enforce(m)
	m.Close()
	to := w.pod("x/b").Addrs[0]
	yes := oracle.Packet{Src: w.pod("x/c").Addrs[0], Dst: to, Proto: policy.UDP, Port: 53}
	no := oracle.Packet{Src: w.pod("x/a").Addrs[0], Dst: to, Proto: policy.UDP, Port: 53}
	stop, done := make(chan struct{}), make(chan struct{})
	var s stream
	go func() {
		defer close(done)
		s.run(c, yes, no, stop)
	}()
	// Agents restart, pods come and go, policies that say the same in other words replace each other: nothing of it
	// concerns the two that send.
	for i := range 20 {
		m := policy.NewGuarded(host)
		enforce(m)
		w.change("y/a", func(p *policy.Pod) { p.Labels = policy.LabelsOf(map[string]string{"pod": []string{"b", "c"}[i%2]}) })
		enforce(m)
		w.change("x/b", func(p *policy.Pod) { p.Created++ })
		np := *w.Policies[0]
		np.Name = []string{"np0", "np1"}[i%2]
		w.Policies = []*policy.NetworkPolicy{&np}
		enforce(m)
		again := newTown(t)
		again.protect(only("pod", "a"))
		w.Policies = append(w.Policies, again.Policies[0])
		w.Policies[1].Name = "zz"
		enforce(m)
		m.Close()
	}
	close(stop)
	<-done
	passed := c.arrived()
	lost, leaked := 0, 0
	for i := range s.allowed {
		if !passed[s.allowed[i]] {
			lost++
		}
		if passed[s.denied[i]] {
			leaked++
		}
	}
	t.Logf("%d packets of each kind during 80 syncs", len(s.allowed))
	if lost > 0 || leaked > 0 || len(s.allowed) < 100 {
		t.Errorf("of %d packets each, %d that are allowed were dropped and %d that are not passed", len(s.allowed), lost, leaked)
	}
}
