package reliability

import (
	"errors"
	"fmt"
	"os"
	"strings"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// underlayHeal is what a change of the underlay may take.
const underlayHeal = 3 * time.Second

// underlayRows are what happens to the network below the overlay. The damage is always on the first node.
func underlayRows() []Fault {
	rows := append(linkRows(), addressRows()...)
	rows = append(rows, mtuRow(1400), mtuRow(9000))
	for i := range rows {
		rows[i].Heal = underlayHeal
	}
	return rows
}

// defaultRoute is what the host's own network service puts back when a link or an address comes back.
const defaultRoute = "ip route replace default via {gateway}"

// comesBack is what that service does when eth0 is up again: the kernel has forgotten its routes, and IPv6 addresses.
func (b *Bench) comesBack(n *Node) error {
	return b.inEach(func(f subnet.Family) error {
		for _, c := range []string{"ip addr replace " + n.Address(f) + " dev eth0", b.expand(n, f, defaultRoute)} {
			if _, err := n.NS.Try(strings.Fields(c)...); err != nil {
				return err
			}
		}
		return nil
	})
}

// forgotten is why a few packets leave untranslated when a device or its address goes. kube-proxy, which the bench lacks, drops
// what conntrack calls invalid.
const forgotten = "the kernel forgets the translations of what goes; to conntrack the last packets of those connections are invalid, " +
	"and no rule translates such (kube-proxy drops them)"

func linkRows() []Fault {
	const down = "nothing is carried while the link is down"
	flap := Fault{
		Name: "underlay link down and up", Loses: down, Leaks: forgotten, Note: "down for half a second; the kernel takes the routes through it away",
		Do: func(b *Bench) error {
			if err := b.on(b.Nodes[0], "ip link set eth0 down"); err != nil {
				return err
			}
			time.Sleep(500 * time.Millisecond) // a part of the fault
			defer b.Damaged()
			return errors.Join(b.on(b.Nodes[0], "ip link set eth0 up"), b.comesBack(b.Nodes[0]))
		},
	}
	cable := Fault{
		Name: "underlay cable pulled and back", Loses: down, Note: "pulled until /readyz says so",
		Do: func(b *Bench) error {
			port := b.Fabric.Port(1)
			if _, err := b.Fabric.Switch.Try("ip", "link", "set", port, "down"); err != nil {
				return err
			}
			_, unsaid := b.Await(patience, func() error {
				if err := b.Nodes[0].Agent.Ready(); err == nil || !strings.Contains(err.Error(), "eth0 has no carrier") {
					return fmt.Errorf("without a cable /readyz says %v", fmt.Sprint(err))
				}
				return nil
			})
			_, err := b.Fabric.Switch.Try("ip", "link", "set", port, "up")
			b.Damaged()
			return errors.Join(unsaid, err)
		},
	}
	again := Fault{
		Name: "underlay interface removed and made again", Loses: "there is no device in between",
		Leaks: forgotten,
		Note:  "flannel.1 goes with it; the new one has another index",
		Do: func(b *Bench) error {
			n, port := b.Nodes[0], b.Fabric.Port(1)
			mac := ""
			// A NIC keeps its MAC. With another one the other nodes would go on sending pods' packets to the old: Linux asks for
			// the neighbour of a packet that it forwards in the name of a link-local address, from which nobody learns where
			// the node's own address is now. Tunnels' packets come from that address, and so tell.
			if b.Backend == HostGW {
				nic, err := n.device("eth0")
				if err != nil {
					return err
				}
				mac = " address " + nic.HardwareAddr.String()
			}
			if err := b.on(n, "ip link del eth0", "ip link add eth0"+mac+" type veth peer name "+port+" netns "+b.Fabric.Switch.Name); err != nil {
				return err
			}
			if _, err := b.Fabric.Switch.Try("ip", "link", "set", port, "master", "br0", "up"); err != nil {
				return err
			}
			defer b.Damaged()
			return errors.Join(b.on(n, "ip link set eth0 up"), b.comesBack(n))
		},
	}
	return []Fault{flap, cable, again}
}

func addressRows() []Fault {
	moved := Fault{
		Name: "underlay address changed", Loses: "until the others have heard of the new address, they send to the old one",
		Leaks: forgotten,
		Note:  "the Node announces the new one; every peer's entry follows",
		Do:    func(b *Bench) error { return b.inEach(b.move) },
		After: func(b *Bench) error { return b.inEach(b.move) },
	}
	back := Fault{
		Name: "underlay address removed and back", Loses: "without an address nothing is sent", Leaks: forgotten, Note: "gone for half a second",
		Do: func(b *Bench) error {
			n := b.Nodes[0]
			err := b.inEach(func(f subnet.Family) error {
				_, err := n.NS.Try("ip", "addr", "del", fmt.Sprintf("%s/%d", n.Ends[f].IP, wordsFor(f).bits), "dev", "eth0")
				return err
			})
			if err != nil {
				return err
			}
			time.Sleep(500 * time.Millisecond) // a part of the fault
			defer b.Damaged()
			return b.comesBack(n)
		},
	}
	return []Fault{moved, back}
}

// move gives the first node another address, or the first one again, as a DHCP server does, and tells the model.
func (b *Bench) move(f subnet.Family) error {
	n := b.Nodes[0]
	was := n.Ends[f].IP
	_, err := n.NS.Try("ip", "addr", "del", fmt.Sprintf("%s/%d", was, wordsFor(f).bits), "dev", "eth0")
	n.Ends[f].IP = otherAddr(was)
	err = errors.Join(err, b.comesBack(n))
	b.Damaged()
	for _, other := range b.Nodes {
		words := strings.Split(other.rules, "\n")
		for i, w := range words {
			if w == was.String() {
				words[i] = n.Ends[f].IP.String()
			}
		}
		other.rules = ordered(words)
	}
	return err
}

// mtuRow changes the MTU of the underlay. The pod was made at 1500.
func mtuRow(mtu int) Fault {
	set := func(b *Bench, mtu int) error {
		n := b.Nodes[0]
		err := b.Hurt(n, fmt.Sprintf("ip link set eth0 mtu %d", mtu))
		n.MTU = mtu
		return err
	}
	return Fault{
		Name: fmt.Sprintf("underlay MTU set to %d", mtu), Note: "device and subnet.env follow; pods that are too wide are named by /readyz and counted by a metric",
		Do:    func(b *Bench) error { return set(b, mtu) },
		After: func(b *Bench) error { return set(b, 1500) },
		Healed: func(b *Bench) error {
			n := b.Nodes[0]
			env, err := os.ReadFile(n.Path("run/subnet.env"))
			if want := fmt.Sprintf("FLANNEL_MTU=%d\n", podMTU(b.Lane, mtu)); err != nil || !strings.Contains(string(env), want) {
				return fmt.Errorf("subnet.env is %q (%v), want %s", env, fmt.Sprint(err), want)
			}
			if err := b.named(mtu < 1500); err != nil {
				return err
			}
			return b.Restored()
		},
	}
}

// named checks whether the first node's pod is said to be too wide.
func (b *Bench) named(want bool) error {
	a := b.Nodes[0].Agent
	ready, err := a.Get("/readyz")
	if err != nil {
		return err
	}
	metrics, err := a.Get("/metrics")
	if err != nil {
		return err
	}
	said, counted := strings.Contains(ready, "the pod on v"), strings.Contains(metrics, "\nweft_pods_mtu_too_large 1\n")
	if said != want || counted != want {
		return fmt.Errorf("the pod is too wide: %v; /readyz says %q; counted: %v", want, ready, counted)
	}
	return nil
}
