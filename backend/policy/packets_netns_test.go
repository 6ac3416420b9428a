package policy_test

import (
	"context"
	"net/netip"
	"testing"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/backend/policy/oracle"
)

func TestRealPacketsFareAsTheAPISays(t *testing.T) {
	c := newChain(t)
	managers := [2]*policy.Manager{}
	for n, node := range c.node {
		managers[n] = policy.NewGuarded(netfilter.Host{NetNS: node.Path()})
		defer managers[n].Close()
		stop := watched(t, managers[n])
		defer stop()
	}
	count := map[bool]int{}
	for i := range worlds(t, 60) / 2 { // the smaller half: no world of the largest size
		seed := uint64(i/2*3 + i%2)
		cluster := oracle.Random(seed, 1+int(seed%3))
		for n := range managers {
			if res, err := managers[n].Sync(context.Background(), cluster.View(n), policy.Config{}); err != nil || res.Unguarded != nil {
				t.Fatalf("seed %d: %v %v\n%s", seed, err, res.Unguarded, policy.Compile(cluster.View(n), policy.Config{}))
			}
		}
		sent := map[uint32]oracle.Packet{}
		for _, p := range cluster.Packets {
			if p.OwnNode {
				continue // the wire leads through the nodes, and not to them
			}
			sent[c.send(p)] = p
		}
		passed := c.arrived()
		for tag, p := range sent {
			want := oracle.Allowed(cluster.World, p)
			count[want]++
			if passed[tag] != want {
				t.Fatalf("seed %d: %v: the API's text says %v, the kernel %v\n%s", seed, p, want, passed[tag], describe(cluster, compileBoth(t, cluster)))
			}
		}
	}
	t.Logf("%d packets allowed, %d denied", count[true], count[false])
	if count[true] == 0 || count[false] == 0 {
		t.Errorf("the worlds say too little: %v", count)
	}
}

// watched starts a Manager's Watch, and waits until it hears.
func watched(t *testing.T, m *policy.Manager) (stop func()) {
	t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	pokes := m.Watch(ctx)
	<-pokes // the first says that it listens
	done := make(chan struct{})
	go func() {
		defer close(done)
		for range pokes {
		}
	}()
	return func() {
		cancel()
		<-done
	}
}

func TestTheKernelHoldsWhatWasWrittenAndARestartWritesNothing(t *testing.T) {
	c := newChain(t)
	host := netfilter.Host{NetNS: c.node[0].Path()}
	m := policy.NewGuarded(host)
	defer m.Close()
	defer watched(t, m)()
	for seed := range uint64(min(worlds(t, 25), 500)) {
		w := oracle.Random(seed, 1+int(seed%3)).World
		if _, err := m.Sync(context.Background(), w, policy.Config{Audit: seed%7 == 3, KeepEstablished: seed%5 == 2}); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
		again, err := policy.New(host).Sync(context.Background(), w, policy.Config{Audit: seed%7 == 3, KeepEstablished: seed%5 == 2})
		if err != nil || len(again.Changes) > 0 {
			t.Fatalf("seed %d: a restarted agent writes: %v %v", seed, again.Changes, err)
		}
		if text := policy.Compile(w, policy.Config{}).String(); text != "" {
			if _, err := c.node[1].Input(text, "nft", "-c", "-f", "-"); err != nil {
				t.Fatalf("seed %d: %v\n%s", seed, err, text)
			}
		}
	}
	if _, err := m.Remove(context.Background()); err != nil {
		t.Fatal(err)
	}
	if left := c.node[0].NFT(); left != "" {
		t.Errorf("left behind:\n%s", left)
	}
}

// A pod could write what it likes into a neighbour's question, and send it anywhere.
func TestARoutedQuestionForANeighbourIsJudgedLikeAnyPacket(t *testing.T) {
	c := newChain(t)
	w := newTown(t)
	np := &policy.NetworkPolicy{Namespace: "x", Name: "np", Isolates: [2]bool{false, true}}
	w.Policies = []*policy.NetworkPolicy{np}
	if _, err := policy.New(netfilter.Host{NetNS: c.node[0].Path()}).Sync(context.Background(), w.World, policy.Config{}); err != nil {
		t.Fatal(err)
	}
	for _, kind := range []byte{133, 134, 135, 136, 130, 131, 132, 143} {
		p := oracle.Packet{Src: w.pod("x/a").Addrs[1], Dst: netip.MustParseAddr("2001:db8::1"), Proto: 58}
		for _, hops := range []byte{255, 2} {
			c.tag++
			ip := datagram(p, append([]byte{kind, 0, 0, 0, 0, 0, 0, 0}, c.payload()...))
			ip[7] = hops
			if tag := c.inject(p, ip); c.arrived()[tag] {
				t.Errorf("ICMPv6 type %d with hop limit %d leaves an isolated pod", kind, hops)
			}
		}
	}
}
