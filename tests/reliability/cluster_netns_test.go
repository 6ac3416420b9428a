package reliability

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
)

// clusterRows are Nodes that cannot be as they are, and machines that come into a cluster where what they claim is taken.
// Who has been there before goes on undisturbed; who came later is left out on every node, told so, and let in as soon as
// the conflict is over.
func clusterRows() []Fault {
	told := "heals: the newcomer is left out on all nodes, and told of by a metric and an Event"
	stepsBack := "the newcomer steps back and says so; the conflict ends; heals: it is in, everywhere"
	rows := []Fault{
		intruder("a Node with the pod CIDR of another", kube.ReasonPodCIDRConflict, func(p, victim *Peer) { p.CIDR = victim.CIDR }),
		intruder("a Node with a pod CIDR around another's", kube.ReasonPodCIDRConflict, func(p, victim *Peer) {
			p.CIDR = netip.PrefixFrom(victim.CIDR.Addr(), 22).Masked()
		}),
		intruder("a Node with a pod CIDR inside another's", kube.ReasonPodCIDRConflict, func(p, victim *Peer) {
			p.CIDR = netip.PrefixFrom(victim.CIDR.Addr().Next(), 26).Masked()
		}),
		intruder("a Node with the MAC of another", kube.ReasonMACConflict, func(p, victim *Peer) { p.MAC = victim.MAC }),
		intruder("a Node with a pod CIDR outside the Network", kube.ReasonOutsideNetwork, func(p, _ *Peer) {
			p.CIDR = netip.MustParsePrefix("10.99.0.0/24")
		}),
		intruder("a Node with a pod CIDR wider than the Network", kube.ReasonOutsideNetwork, func(p, _ *Peer) {
			p.CIDR = netip.MustParsePrefix("0.0.0.0/0")
		}),
	}
	for i := range rows {
		rows[i].Note = told
	}
	return append(rows,
		Fault{Name: "a Node with the public IP of another", Heal: 2 * time.Second, Do: twinAddress, Healed: twinIsTold, After: allStrangersLeave,
			Note: "the address may have gone to another machine by right, so both stay; heals: it is told by a metric and an Event"},
		Fault{Name: "hostile and half-written Nodes", Heal: 2 * time.Second, Lines: 30, Do: hostileNodes, Healed: hostileAreTold, After: allStrangersLeave,
			Note: "heals: each is left out and named"},
		Fault{Name: "50 nodes join in a second", Heal: 2 * time.Second, Do: fiftyJoin, After: allStrangersLeave, Note: "heals: all are known everywhere"},
		Fault{Name: "a Node deleted and added again with another pod CIDR, address and MAC", Heal: 2 * time.Second, Do: otherIdentity, After: allStrangersLeave,
			Note: "at once, and while the watch is away; heals: the new one is known everywhere, and nothing is left of the old one"},
		Fault{Name: "a running machine's Node deleted and added again", Heal: 2 * time.Second, Lines: 2, Do: sameIdentity,
			Loses: "a Node that is deleted has no part in the cluster", Note: "heals: it announces itself anew"},
		newcomer("a machine whose Node gets its pod CIDR late", reasonNoPodCIDR, "it waits and says so; heals: it is in, everywhere", noRange),
		newcomer("a machine whose Node's pod CIDR is outside the Network", kube.ReasonOutsideNetwork,
			"it announces nothing and says so; the Node is made anew; heals: it is in, everywhere", strayRange),
		newcomer("a machine with the pod CIDR of another", kube.ReasonPodCIDRConflict, stepsBack, takenRange),
		newcomer("a machine with the public IP of another", kube.ReasonPublicIPConflict, stepsBack, takenAddress),
		newcomer("a machine with the MAC of another, as a cloned one has", "", "it makes itself another MAC; heals: it is in, everywhere", takenMAC),
	)
}

// intruder is a row in which a Node without a machine comes that claims something of the second node's. It must change nothing.
func intruder(name, reason string, claim func(p, victim *Peer)) Fault {
	return Fault{
		Name: name, Heal: 2 * time.Second, After: allStrangersLeave,
		Do: func(b *Bench) error {
			p := stranger(1)
			claim(&p, &b.Nodes[1].Peer)
			return b.Create(p.Name, p.CIDR.String(), p.annotations())
		},
		Healed: func(b *Bench) error {
			var event error
			if reason != kube.ReasonOutsideNetwork { // which is the intruder's own business
				event = b.event(b.Nodes[1].Name, reason)
			}
			return errors.Join(b.tells(reason, b.Nodes...), event, b.Restored())
		},
	}
}

// tells reports whether nodes do not have a problem in their metrics.
func (b *Bench) tells(reason string, nodes ...*Node) error {
	for _, n := range nodes {
		text, err := n.Agent.Get("/metrics")
		if err != nil {
			return err
		}
		if !strings.Contains(text, fmt.Sprintf("weft_problems{reason=%q}", reason)) {
			return fmt.Errorf("%s has no problem %s in its metrics", n.Name, reason)
		}
	}
	return nil
}

// event reports whether there is no Event with a reason about a Node.
func (b *Bench) event(node, reason string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list, err := b.Client.CoreV1().Events("default").List(ctx, metav1.ListOptions{
		FieldSelector: fmt.Sprintf("involvedObject.kind=Node,involvedObject.name=%s,reason=%s", node, reason),
	})
	if err != nil {
		return err
	}
	if len(list.Items) == 0 {
		return fmt.Errorf("there is no Event %s about node %s", reason, node)
	}
	return nil
}

// allStrangersLeave deletes every Node that has no machine of the bench, and waits until nobody speaks of them any more.
func allStrangersLeave(b *Bench) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	list, err := b.Client.CoreV1().Nodes().List(ctx, metav1.ListOptions{})
	if err != nil {
		return err
	}
	own := map[string]bool{}
	for _, n := range b.Nodes {
		own[n.Name] = true
	}
	for _, n := range list.Items {
		if !own[n.Name] {
			if err := b.remove(n.Name); err != nil {
				return err
			}
		}
	}
	b.Strangers = nil
	_, err = b.Await(patience, func() error {
		for _, n := range b.Nodes {
			if text, err := n.Agent.Get("/metrics"); err != nil || strings.Contains(text, "weft_problems{") {
				return fmt.Errorf("%s still has problems: %w", n.Name, err)
			}
		}
		return nil
	})
	return err
}

// remove deletes a Node; one that is gone is fine.
func (b *Bench) remove(name string) error {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	err := b.Client.CoreV1().Nodes().Delete(ctx, name, metav1.DeleteOptions{GracePeriodSeconds: new(int64)})
	if apierrors.IsNotFound(err) {
		return nil
	}
	return err
}

// twinAddress brings a Node that announces the second node's address.
func twinAddress(b *Bench) error {
	p := stranger(1)
	p.IP = b.Nodes[1].IP
	b.Strangers = []Peer{p}
	return b.Create(p.Name, p.CIDR.String(), p.annotations())
}

// twinIsTold wants both to stay everywhere, but for the second node itself: what it sent would come back to it.
func twinIsTold(b *Bench) error {
	twin := b.Strangers
	victim := b.Nodes[1]
	err := errors.Join(b.Right(b.Nodes[0]), b.Right(b.Nodes[2]), b.tells(kube.ReasonPublicIPConflict, b.Nodes...), b.event(victim.Name, kube.ReasonPublicIPConflict))
	b.Strangers = nil
	defer func() { b.Strangers = twin }()
	return errors.Join(err, b.Right(victim))
}

// hostile is what others' Nodes say: each with the reason for which it is left out.
func hostile() []struct{ reason, key, value string } {
	return []struct{ reason, key, value string }{
		{kube.ReasonBadBackendData, "backend-data", `{"VNI":1,"VtepMAC":"` + strings.Repeat("A", 200<<10) + `"}`},
		{kube.ReasonBadBackendData, "backend-data", strings.Repeat("[", 100<<10)},
		{kube.ReasonBadBackendData, "backend-data", `{"VNI":NaN,"VtepMAC":"0a:00:00:00:00:09"}`},
		{kube.ReasonBadBackendData, "backend-data", "\x1b[2J\x00\r\n"},
		{kube.ReasonBadBackendData, "backend-data", ""},
		{kube.ReasonBadPublicIP, "public-ip", "127.0.0.1"},
		{kube.ReasonBadPublicIP, "public-ip", "224.0.0.1"},
		{kube.ReasonBadPublicIP, "public-ip", "fd00::2"},
		{kube.ReasonBadPublicIP, "public-ip", "$(reboot)\n"},
		{kube.ReasonBadPublicIP, "public-ip", ""},
		{kube.ReasonBadBackendPort, "backend-port", "99999"},
		{kube.ReasonOtherBackend, "backend-type", "udp; rm -rf /"},
	}
}

func hostileNodes(b *Bench) error {
	for i, h := range hostile() {
		p := stranger(1 + i)
		notes := p.annotations()
		notes["flannel.alpha.coreos.com/"+h.key] = h.value
		if err := b.Create(p.Name, p.CIDR.String(), notes); err != nil {
			return err
		}
	}
	return nil
}

func hostileAreTold(b *Bench) error {
	for _, h := range hostile() {
		if err := b.tells(h.reason, b.Nodes...); err != nil {
			return err
		}
	}
	return b.Restored()
}

// fiftyJoin makes them all known before one is waited for.
func fiftyJoin(b *Bench) error {
	for i := range 50 {
		p := stranger(1 + i)
		if err := b.Create(p.Name, p.CIDR.String(), p.annotations()); err != nil {
			return err
		}
		b.Strangers = append(b.Strangers, p)
	}
	return nil
}

// otherIdentity brings a Node back under its name with everything else new, twice: seen, and behind the agents' backs.
func otherIdentity(b *Bench) error {
	if err := strangerJoins(b); err != nil {
		return err
	}
	if _, err := b.Await(patience, b.Restored); err != nil {
		return err
	}
	again := func(i int) error {
		p := stranger(i)
		p.Name = stranger(1).Name
		err := b.remove(p.Name)
		if err == nil {
			err = b.Create(p.Name, p.CIDR.String(), p.annotations())
		}
		b.Strangers = []Peer{p}
		return err
	}
	if err := again(2); err != nil {
		return err
	}
	if _, err := b.Await(patience, b.Restored); err != nil {
		return err
	}
	b.API.Proxy.Close()
	err := again(3)
	b.API.Proxy.Open()
	b.Damaged()
	return err
}

// sameIdentity deletes the last node's Node and makes it anew, as a kubelet does that registers again.
func sameIdentity(b *Bench) error {
	n := b.Nodes[len(b.Nodes)-1]
	err := b.remove(n.Name)
	if err == nil {
		err = b.Create(n.Name, n.CIDR.String(), nil)
	}
	b.Damaged()
	return err
}

// claims begins a conflict of a machine that is not started yet and returns how it is started, and what ends the conflict.
type claims func(b *Bench, n *Node) (Options, func() error, error)

// newcomer is a row in which a real machine joins that claims what the second node has. With a reason it has to say so and
// to stay out until the conflict ends.
func newcomer(name, reason, note string, claim claims) Fault {
	var n *Node
	return Fault{
		Name: name, Note: note, Heal: 10 * time.Second,
		Before: func(b *Bench) error {
			b.Fabric.Add()
			b.addNode(len(b.Fabric.Nodes))
			last := len(b.Nodes) - 1
			n, b.Nodes = b.Nodes[last], b.Nodes[:last]
			return b.remove(n.Name)
		},
		Do: func(b *Bench) error {
			o, end, err := claim(b, n)
			if err == nil {
				err = n.Agent.Start(o)
			}
			if err != nil {
				return err
			}
			if reason != "" {
				_, err = b.Await(patience, func() error {
					if n.Agent.Ready() == nil {
						return errors.New("the newcomer is ready")
					}
					err := errors.Join(b.event(n.Name, reason), b.Restored())
					if strings.HasSuffix(reason, "Conflict") {
						err = errors.Join(err, b.tells(reason, n))
					}
					return err
				})
			}
			err = errors.Join(err, end())
			b.Damaged()
			return err
		},
		Healed: func(b *Bench) error {
			if err := n.Agent.Ready(); err != nil {
				return err
			}
			have, err := n.Dump()
			if err != nil {
				return err
			}
			n.MAC = have.Links[n.Device()].MAC
			b.Strangers = []Peer{n.Peer}
			return b.Restored()
		},
		After: func(b *Bench) error {
			n.Agent.Kill()
			_, _ = n.NS.Try("ip", "link", "del", n.Device())
			return allStrangersLeave(b)
		},
	}
}

// reasonNoPodCIDR is the reason of the Event about a Node that has no range.
const reasonNoPodCIDR = "NoPodCIDR"

// noRange makes a Node that has no range yet, as with a controller-manager that is late.
func noRange(b *Bench, n *Node) (Options, func() error, error) {
	ctx, cancel := context.WithTimeout(context.Background(), patience)
	defer cancel()
	node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: n.Name}}
	_, err := b.Client.CoreV1().Nodes().Create(ctx, node, metav1.CreateOptions{})
	return Options{}, func() error {
		ctx, cancel := context.WithTimeout(context.Background(), patience)
		defer cancel()
		patch := fmt.Sprintf(`{"spec":{"podCIDR":%[1]q,"podCIDRs":[%[1]q]}}`, n.CIDR)
		_, err := b.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, []byte(patch), metav1.PatchOptions{})
		return err
	}, err
}

// strayRange makes a Node whose range is not the overlay's.
func strayRange(b *Bench, n *Node) (Options, func() error, error) {
	err := b.Create(n.Name, "10.99.0.0/24", nil)
	return Options{}, func() error { return errors.Join(b.remove(n.Name), b.Create(n.Name, n.CIDR.String(), nil)) }, err
}

// takenRange gives the newcomer's Node the second node's range, and then one of its own.
func takenRange(b *Bench, n *Node) (Options, func() error, error) {
	err := b.Create(n.Name, b.Nodes[1].CIDR.String(), nil)
	return Options{}, func() error { return errors.Join(b.remove(n.Name), b.Create(n.Name, n.CIDR.String(), nil)) }, err
}

// takenAddress lets the newcomer announce the second node's address, and then its own.
func takenAddress(b *Bench, n *Node) (Options, func() error, error) {
	err := b.Create(n.Name, n.CIDR.String(), nil)
	end := func() error {
		n.Agent.Kill()
		return n.Agent.Start(Options{})
	}
	return Options{Args: []string{"--public-ip=" + b.Nodes[1].IP.String(), "--iface=" + n.Link}}, end, err
}

// takenMAC gives the newcomer a device with the second node's MAC, and a Node that announces it.
func takenMAC(b *Bench, n *Node) (Options, func() error, error) {
	clone := n.Peer
	clone.MAC = b.Nodes[1].MAC
	err := b.Create(n.Name, n.CIDR.String(), clone.annotations())
	if err == nil {
		_, err = n.NS.Try("ip", "link", "add", n.Device(), "address", clone.MAC.String(), "type", "vxlan", "id", "1", "local", n.IP.String(),
			"dev", n.Link, "dstport", "4789", "nolearning")
	}
	return Options{}, func() error {
		_, err := b.Await(patience, func() error {
			have, err := n.Dump()
			if mac := have.Links[n.Device()].MAC; err != nil || mac == clone.MAC || mac == (subnet.MAC{}) {
				return fmt.Errorf("the newcomer has the MAC %s, %w", mac, err)
			}
			return nil
		})
		return err
	}, err
}
