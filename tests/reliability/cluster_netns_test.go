package reliability

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"slices"
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
	stepsBack := "the newcomer steps back and says so; the conflict ends; heals: it is in, everywhere"
	return slices.Concat(intruderRows(), nodeRows(), []Fault{
		{Name: "50 nodes join in a second", Heal: 2 * time.Second, Do: fiftyJoin, After: allStrangersLeave, Note: "heals: all are known everywhere"},
		{Name: "a Node deleted and added again with another pod CIDR, address and MAC", Heal: 2 * time.Second, Do: otherIdentity, After: allStrangersLeave,
			Note: "at once, and while the watch is away; heals: the new one is known everywhere, and nothing is left of the old one"},
		{Name: "a running machine's Node deleted and added again", Heal: 2 * time.Second, Lines: 2, Do: sameIdentity,
			Loses: "a Node that is deleted has no part in the cluster", Note: "heals: it announces itself anew"},
		newcomer("a machine whose Node gets its pod CIDR late", reasonNoPodCIDR, "it waits and says so; heals: it is in, everywhere", noRange),
		newcomer("a machine whose Node's pod CIDR is outside the Network", kube.ReasonOutsideNetwork,
			"it announces nothing and says so; the Node is made anew; heals: it is in, everywhere", strayRange),
		newcomer("a machine with the pod CIDR of another", kube.ReasonPodCIDRConflict, stepsBack, takenRange),
		newcomer("a machine with the public IP of another", kube.ReasonPublicIPConflict, stepsBack, takenAddress),
		newcomer("a machine with the MAC of another, as a cloned one has", "", "it makes itself another MAC; heals: it is in, everywhere", takenMAC),
	})
}

// intruderRows are Nodes without a machine that claim what others have, or what nobody can have.
func intruderRows() []Fault {
	rows := []Fault{
		intruder("a Node with the pod CIDR of another", kube.ReasonPodCIDRConflict, func(_ subnet.Family, e, victim *End) { e.CIDR = victim.CIDR }),
		intruder("a Node with a pod CIDR around another's", kube.ReasonPodCIDRConflict, func(_ subnet.Family, e, victim *End) {
			e.CIDR = netip.PrefixFrom(victim.CIDR.Addr(), victim.CIDR.Bits()-2).Masked()
		}),
		intruder("a Node with a pod CIDR inside another's", kube.ReasonPodCIDRConflict, func(_ subnet.Family, e, victim *End) {
			e.CIDR = netip.PrefixFrom(victim.CIDR.Addr(), victim.CIDR.Bits()+2).Masked()
		}),
		intruder("a Node with the MAC of another", kube.ReasonMACConflict, func(_ subnet.Family, e, victim *End) { e.MAC = victim.MAC }),
		intruder("a Node with a pod CIDR outside the Network", kube.ReasonOutsideNetwork, func(f subnet.Family, e, _ *End) {
			e.CIDR = netip.MustParsePrefix(wordsFor(f).elsewhere)
		}),
		intruder("a Node with a pod CIDR wider than the Network", kube.ReasonOutsideNetwork, func(f subnet.Family, e, _ *End) {
			e.CIDR = netip.MustParsePrefix(wordsFor(f).all)
		}),
	}
	for i := range rows {
		rows[i].Note = "heals: the newcomer is left out on all nodes, and told of by a metric and an Event"
	}
	return rows
}

// nodeRows are Nodes of which a part is used all the same.
func nodeRows() []Fault {
	return []Fault{
		{Name: "a Node with the public IP of another", Heal: 2 * time.Second, Lines: 4, Do: twinAddress, Healed: twinIsTold, After: allStrangersLeave,
			Note: "the address may have gone to another machine by right, so both stay; heals: it is told by a metric and an Event"},
		{Name: "hostile and half-written Nodes", Heal: 2 * time.Second, Lines: 30, Do: hostileNodes, Healed: hostileAreTold, After: allStrangersLeave,
			Note: "heals: each is left out and named"},
	}
}

// intruder is a row in which a Node without a machine comes that claims something of the second node's, in each family that the
// row strikes. It must change nothing there; where it claims nothing of others it takes part.
func intruder(name, reason string, claim func(f subnet.Family, e, victim *End)) Fault {
	return Fault{
		Name: name, Heal: 2 * time.Second, After: allStrangersLeave, Lines: 4, // of both Nodes, in each family
		Do: func(b *Bench) error {
			p := b.stranger(1)
			good := p
			for _, f := range b.hurts() {
				claim(f, &p.Ends[f], &b.Nodes[1].Ends[f])
				good.Ends[f] = End{}
			}
			b.Strangers = []Peer{good}
			return b.Create(p, p.annotations())
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
	p := b.stranger(1)
	for _, f := range b.hurts() {
		p.Ends[f].IP = b.Nodes[1].Ends[f].IP
	}
	b.Strangers = []Peer{p}
	return b.Create(p, p.annotations())
}

// twinIsTold wants both to stay everywhere, but for the second node itself: what it sent would come back to it.
func twinIsTold(b *Bench) error {
	twin, victim := b.Strangers, b.Nodes[1]
	rest := twin[0]
	for _, f := range b.hurts() {
		rest.Ends[f] = End{}
	}
	err := errors.Join(b.Right(b.Nodes[0]), b.Right(b.Nodes[2]), b.tells(kube.ReasonPublicIPConflict, b.Nodes...), b.event(victim.Name, kube.ReasonPublicIPConflict))
	b.Strangers = []Peer{rest}
	defer func() { b.Strangers = twin }()
	return errors.Join(err, b.Right(victim))
}

// hostility is what another's Node says, and the reason for which the family that it is about is left out, or all of it.
type hostility struct {
	reason, key, value string
	families           []subnet.Family // that the key is about
}

// hostile lists them, about the families that the row strikes.
func (b *Bench) hostile() []hostility {
	all := b.Lane.Families()
	out := []hostility{
		{kube.ReasonBadBackendPort, annotationPrefix + "backend-port", "99999", all},
		{kube.ReasonOtherBackend, annotationPrefix + "backend-type", "udp; rm -rf /", all},
	}
	for _, f := range b.hurts() {
		only := []subnet.Family{f}
		for _, data := range []string{
			`{"VNI":1,"VtepMAC":"` + strings.Repeat("A", 200<<10) + `"}`, strings.Repeat("[", 100<<10), `{"VNI":NaN,"VtepMAC":"0a:00:00:00:00:09"}`,
			"\x1b[2J\x00\r\n", "",
		} {
			out = append(out, hostility{kube.ReasonBadBackendData, key(f, "backend-data"), data, only})
		}
		for _, ip := range [2][]string{{"127.0.0.1", "224.0.0.1", "fd00::2"}, {"::1", "ff02::1", "192.0.2.2"}}[f] {
			out = append(out, hostility{kube.ReasonBadPublicIP, key(f, "public-ip"), ip, only})
		}
		for _, ip := range []string{"$(reboot)\n", ""} {
			out = append(out, hostility{kube.ReasonBadPublicIP, key(f, "public-ip"), ip, only})
		}
	}
	return out
}

// hostileNodes come one by one. What is good of them counts: of a Node that is bad in one family, the other one.
func hostileNodes(b *Bench) error {
	for i, h := range b.hostile() {
		p := b.stranger(1 + i)
		notes := p.annotations()
		notes[h.key] = h.value
		if err := b.Create(p, notes); err != nil {
			return err
		}
		for _, f := range h.families {
			p.Ends[f] = End{}
		}
		b.Strangers = append(b.Strangers, p)
	}
	return nil
}

func hostileAreTold(b *Bench) error {
	for _, h := range b.hostile() {
		if err := b.tells(h.reason, b.Nodes...); err != nil {
			return err
		}
	}
	return b.Restored()
}

// fiftyJoin makes them all known before one is waited for.
func fiftyJoin(b *Bench) error {
	for i := range 50 {
		p := b.stranger(1 + i)
		if err := b.Create(p, p.annotations()); err != nil {
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
		p := b.stranger(i)
		p.Name = b.stranger(1).Name
		err := b.remove(p.Name)
		if err == nil {
			err = b.Create(p, p.annotations())
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
		err = b.Create(n.Peer, nil)
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
			if err := n.learn(); err != nil {
				return err
			}
			b.Strangers = []Peer{n.Peer}
			return b.Restored()
		},
		After: func(b *Bench) error {
			n.Agent.Kill()
			for _, f := range n.families() {
				_, _ = n.NS.Try("ip", "link", "del", device(f))
			}
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
		cidrs := texts(n.cidrs())
		patch, err := json.Marshal(map[string]any{"spec": corev1.NodeSpec{PodCIDR: cidrs[0], PodCIDRs: cidrs}})
		if err == nil {
			_, err = b.Client.CoreV1().Nodes().Patch(ctx, n.Name, types.StrategicMergePatchType, patch, metav1.PatchOptions{})
		}
		return err
	}, err
}

// strayRange makes a Node whose ranges are not the overlay's.
func strayRange(b *Bench, n *Node) (Options, func() error, error) {
	stray := n.Peer
	for _, f := range b.hurts() {
		stray.Ends[f].CIDR = netip.MustParsePrefix(wordsFor(f).elsewhere)
	}
	err := b.Create(stray, nil)
	return Options{}, func() error { return errors.Join(b.remove(n.Name), b.Create(n.Peer, nil)) }, err
}

// takenRange gives the newcomer's Node the second node's ranges, and then its own.
func takenRange(b *Bench, n *Node) (Options, func() error, error) {
	thief := n.Peer
	for _, f := range b.hurts() {
		thief.Ends[f].CIDR = b.Nodes[1].Ends[f].CIDR
	}
	err := b.Create(thief, nil)
	return Options{}, func() error { return errors.Join(b.remove(n.Name), b.Create(n.Peer, nil)) }, err
}

// takenAddress lets the newcomer announce the second node's address, and then its own.
func takenAddress(b *Bench, n *Node) (Options, func() error, error) {
	err := b.Create(n.Peer, nil)
	end := func() error {
		n.Agent.Kill()
		return n.Agent.Start(Options{})
	}
	args := []string{"--iface=" + n.Link}
	for _, f := range b.hurts() {
		args = append(args, [2]string{"--public-ip=", "--public-ipv6="}[f]+b.Nodes[1].Ends[f].IP.String())
	}
	return Options{Args: args}, end, err
}

// takenMAC gives the newcomer devices with the second node's MACs, and a Node that announces it.
func takenMAC(b *Bench, n *Node) (Options, func() error, error) {
	clone := n.Peer
	for _, f := range b.hurts() {
		clone.Ends[f].MAC = b.Nodes[1].Ends[f].MAC
	}
	err := b.Create(clone, clone.annotations())
	for _, f := range b.hurts() {
		if err == nil {
			_, err = n.NS.Try("ip", "link", "add", device(f), "address", clone.Ends[f].MAC.String(), "type", "vxlan", "id", "1",
				"local", n.Ends[f].IP.String(), "dev", n.Link, "dstport", "4789", "nolearning")
		}
	}
	return Options{}, func() error {
		_, err := b.Await(patience, func() error {
			have, err := n.Dump()
			for _, f := range b.hurts() {
				if mac := have.Links[device(f)].MAC; err != nil || mac == clone.Ends[f].MAC || mac == (subnet.MAC{}) {
					return fmt.Errorf("the newcomer has the MAC %s, %w", mac, err)
				}
			}
			return nil
		})
		return err
	}, err
}
