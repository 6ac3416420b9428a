package reliability

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"

	"github.com/weft-cni/weft/tests/nstest"
)

// Network is the pod network of the bench.
const Network = "10.244.0.0/16"

// patience is how long the bench waits for anything before it gives up: bounds of the product are asserted apart from it.
const patience = time.Minute

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

	hurt    time.Time // since when the present fault has done damage
	runtime *Runtime  // of the first node, for rows that make pods
}

// OutsideAddr is the address of the host outside.
func OutsideAddr() netip.Addr { return netip.AddrFrom4([4]byte{203, 0, 113, 9}) }

// NewBench makes a cluster of n nodes, with agents that are ready.
func NewBench(t testing.TB, s *Site, n int) *Bench {
	t.Helper()
	b := &Bench{Site: s, T: t, Fabric: nstest.NewFabric(t, n)}
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
	b.Router.IP("addr add " + gateway + "/24 dev eth0")
	b.Router.SetSysctl("net.ipv4.ip_forward", "1")
	nstest.Veth(b.T, b.Router, "eth1", b.Outside, "eth0")
	b.Router.IP("addr add 203.0.113.1/24 dev eth1")
	b.Outside.IP("addr add " + OutsideAddr().String() + "/24 dev eth0")
	b.Outside.IP("route add default via 203.0.113.1")
}

// gateway is the router's address on the switch.
const gateway = "192.168.50.254"

// Hurt runs a command on a node as somebody else would, and notes the time: from then on the node heals. The command is
// split at blanks.
func (b *Bench) Hurt(n *Node, command string) error {
	_, err := n.NS.Try(strings.Fields(command)...)
	b.Damaged()
	return err
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

// Create makes the Node of a machine, or of a peer without one, with a pod range.
func (b *Bench) Create(name, cidr string, annotations map[string]string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	_, err := b.Client.CoreV1().Nodes().Create(ctx, &corev1.Node{
		ObjectMeta: metav1.ObjectMeta{Name: name, Annotations: annotations},
		Spec:       corev1.NodeSpec{PodCIDR: cidr, PodCIDRs: []string{cidr}},
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
