package reliability

import (
	"context"
	"errors"
	"fmt"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/nstest"
)

// patience is how long the bench waits for anything before it gives up, in a virtual machine that is emulated, too: bounds of the
// product are asserted apart from it.
const patience = 3 * time.Minute

// Bench is a cluster: nodes on a switch, a pod on each, and a host outside, behind a router that knows no pod.
type Bench struct {
	*Site
	T       testing.TB // of the bench, which outlives a row
	Fabric  *nstest.Fabric
	Nodes   []*Node
	Router  *nstest.NS
	Outside *nstest.NS
	// Strangers are peers without a machine that a row added to the cluster, for Restored to expect.
	Strangers []Peer
	// Backend is the object of that name in net-conf.json.
	Backend string

	hurt    time.Time       // since when the present fault has done damage
	struck  []subnet.Family // what it damages; empty: all families of the lane
	runtime *Runtime        // of the first node, for rows that make pods
}

// NetConf is the net-conf.json of the bench.
func (b *Bench) NetConf() string { return b.Lane.NetConf(b.Backend) }

// NewBench makes a cluster of n nodes over VXLAN, with agents that are ready.
func NewBench(t testing.TB, s *Site, n int) *Bench {
	t.Helper()
	return NewBenchOver(t, s, n, VXLAN)
}

// NewBenchOver is NewBench with a Backend object of net-conf.json.
func NewBenchOver(t testing.TB, s *Site, n int, backend string) *Bench {
	t.Helper()
	b := &Bench{Site: s, T: t, Fabric: nstest.NewFabric(t, n), Backend: backend}
	s.API.Proxy.Open()
	s.API.Proxy.SetFault(nil)
	if err := b.forgetNodes(); err != nil {
		t.Fatal(err)
	}
	b.wireOutside()
	for i := range b.Fabric.Nodes {
		b.addNode(i + 1)
	}
	for _, node := range b.Nodes {
		if err := node.Agent.Start(Options{}); err != nil {
			t.Fatal(err)
		}
	}
	b.settle("the bench comes up")
	for _, node := range b.Nodes {
		if err := node.remember(); err != nil {
			t.Fatal(err)
		}
	}
	b.settle("the bench is as it should be")
	return b
}

// settle waits until all is as it should be and ends the test when it does not come to that.
func (b *Bench) settle(what string) {
	b.T.Helper()
	if _, err := await(b.Restored, patience); err != nil {
		b.T.Fatalf("%s: %v%s", what, err, b.logs())
	}
}

func (b *Bench) forgetNodes() error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	return b.Client.CoreV1().Nodes().DeleteCollection(ctx, metav1.DeleteOptions{}, metav1.ListOptions{})
}

// wireOutside hangs a router on the switch, and behind it the host outside. The router has no route to any pod: what comes
// with a pod's address is never answered.
func (b *Bench) wireOutside() {
	b.Router, b.Outside = nstest.New(b.T), nstest.New(b.T)
	b.Fabric.Attach(b.Router, "eth0", "uplink")
	b.Router.SetSysctl("net.ipv4.ip_forward", "1")
	b.Router.SetSysctl("net.ipv6.conf.all.forwarding", "1")
	nstest.Veth(b.T, b.Router, "eth1", b.Outside, "eth0")
	for _, f := range b.Lane.Families() {
		w := wordsFor(f)
		b.Router.IP(fmt.Sprintf("addr add %s/%d dev eth0", w.gateway, w.bits))
		b.Router.IP(fmt.Sprintf("addr add %s/%d dev eth1", w.doorstep, w.bits))
		b.Outside.IP(fmt.Sprintf("addr add %s/%d dev eth0", w.outside, w.bits))
		b.Outside.IP("route add default via " + w.doorstep)
	}
}

// Hurt runs commands on a node as somebody else would, and notes the time: from then on the node heals. Each is written once,
// with words in braces for what differs between the families (expand), and split at blanks. They are run one after the other,
// for each family that the row strikes; one that names no such word is run once.
func (b *Bench) Hurt(n *Node, commands ...string) error {
	err := b.on(n, commands...)
	b.Damaged()
	return err
}

// on is Hurt for what is no damage.
func (b *Bench) on(n *Node, commands ...string) error {
	done := map[string]bool{}
	return b.inEach(func(f subnet.Family) error {
		for _, c := range commands {
			text := b.expand(n, f, c)
			if done[text] {
				continue
			}
			done[text] = true
			if _, err := n.NS.Try(strings.Fields(text)...); err != nil {
				return err
			}
		}
		return nil
	})
}

// Damaged notes that the damage is done now.
func (b *Bench) Damaged() { b.hurt = time.Now() }

// Restored reports what is not as it should be: agents that are not ready, and what is ours on each node.
func (b *Bench) Restored() error {
	for _, n := range b.Nodes {
		if err := b.Right(n); err != nil {
			return err
		}
	}
	for _, n := range b.Nodes {
		if err := n.Agent.Ready(); err != nil {
			return err
		}
	}
	return nil
}

// Create makes the Node of a machine, or of a peer without one, with its pod ranges.
func (b *Bench) Create(p Peer, annotations map[string]string) error {
	var cidrs []string
	for _, e := range p.Ends {
		if e.CIDR.IsValid() {
			cidrs = append(cidrs, e.CIDR.String())
		}
	}
	return b.create(p.Name, cidrs, annotations)
}

func (b *Bench) create(name string, cidrs []string, annotations map[string]string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := b.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec:       corev1.NodeSpec{PodCIDR: cidrs[0], PodCIDRs: cidrs},
	}, metav1.CreateOptions{})
	if err != nil {
		return fmt.Errorf("create node %s: %w", name, err)
	}
	return nil
}

// Await waits until a condition holds and returns how long that took. It asks every few milliseconds, for the time is what is
// measured.
func (b *Bench) Await(within time.Duration, condition func() error) (time.Duration, error) {
	return await(condition, within)
}

func await(condition func() error, within time.Duration) (time.Duration, error) {
	start := time.Now()
	for {
		err := condition()
		took := time.Since(start)
		if err == nil {
			return took, nil
		}
		if took > within {
			return took, fmt.Errorf("not within %v: %w", within, err)
		}
		time.Sleep(3 * time.Millisecond)
	}
}

// logs are the ends of the agents' logs.
func (b *Bench) logs() string {
	var text strings.Builder
	for _, n := range b.Nodes {
		fmt.Fprintf(&text, "\n-- %s --\n%s", n.Name, n.Agent.Tail())
	}
	return text.String()
}

// errNotYet is a condition that holds later.
var errNotYet = errors.New("not yet")
