package reliability

import (
	"errors"
	"fmt"
	"slices"
	"strings"
	"time"
)

// rollOutRows take a running cluster from one backend to another and back, node by node. During it every node reaches every other
// by the better of what both announce, so nothing is lost; afterwards nothing is left of the old one.
func rollOutRows() []Fault {
	rows := []Fault{
		rollOut("vxlan to host-gw and back", VXLAN, HostGW),
		rollOut("DirectRouting turned on and off", VXLAN, Direct),
		rollOut("DirectRouting to host-gw and back", Direct, HostGW),
	}
	rows[0].Worst = true
	for _, other := range []struct{ kernel, name, from, to string }{
		{"wireguard", "vxlan to wireguard and back", VXLAN, `{"Type": "wireguard"}`},
		{"wireguard", "host-gw to wireguard and back", HostGW, `{"Type": "wireguard"}`},
		{"ipip", "vxlan to ipip and back", VXLAN, `{"Type": "ipip"}`},
	} {
		row := rollOut(other.name, other.from, other.to)
		row.Kernel = other.kernel
		rows = append(rows, row)
	}
	return rows
}

// rollOut is the row of one way there and back, by the file and by restarts.
func rollOut(name, from, to string) Fault {
	return Fault{
		Name: name, Heal: 30 * time.Second,
		Note: "node by node: once by the file that agents watch, once by restarts; heals: from the last node's change until nothing of the other is left",
		Before: func(b *Bench) error {
			if err := watchTheClear(b); err != nil {
				return err
			}
			if b.Backend == from {
				return nil
			}
			_, err := b.RollOut(from, true)
			return err
		},
		Do: func(b *Bench) error {
			var longest time.Duration
			for _, restart := range []bool{false, true} {
				for _, backend := range []string{to, from} {
					took, err := b.RollOut(backend, restart)
					if err != nil {
						return err
					}
					longest = max(longest, took)
				}
			}
			b.hurt = time.Now().Add(-longest)
			return nil
		},
		Healed: (*Bench).arrived,
	}
}

// hostGWRows are faults of a cluster whose backend is host-gw: routes of ours that lead over the host's own device.
func hostGWRows() []Fault {
	const missing = "what is sent before the route is there again is lost"
	killed := Fault{Name: "SIGKILL, then started again", Heal: 10 * time.Second, Note: "heals: all agents are ready again", Do: eachAgent(kill)}
	rows := slices.Concat([]Fault{
		killed,
		command("routes flushed", missing, "{ip} route flush proto 87"),
		command("route replaced", missing, "ip route replace {peercidr} via {gateway}"),
		command("route replaced by a blackhole", missing, "ip route replace blackhole {peercidr}"),
		routeByHand(), ghost(),
	}, linkRows(), addressRows())
	for i := range rows {
		rows[i].Heal = max(rows[i].Heal, underlayHeal)
		rows[i].Note = strings.TrimPrefix(rows[i].Note, "flannel.1 goes with it; ") // there is none
	}
	return rows
}

// ghost moves a peer while its route is missing, and then lets the link flap: whoever remembers routes has two of it now, and
// brings the dead one back, even after the peer has left.
func ghost() Fault {
	return Fault{
		Name: "12.14: a peer moves while its route is missing, and the link flaps", Loses: "nothing is carried while the link is down", Leaks: forgotten,
		Note: "heals: there is the new route and no other; when the peer has left, there is none", After: strangerLeaves,
		Do: func(b *Bench) error {
			if err := strangerJoins(b); err != nil {
				return err
			}
			if _, err := b.Await(patience, b.Restored); err != nil {
				return err
			}
			n, p := b.Nodes[0], b.Strangers[0]
			err := b.still(n, func() error {
				for _, f := range b.hurts() {
					if _, err := n.NS.Try("ip", "route", "del", p.Ends[f].CIDR.String()); err != nil {
						return err
					}
					p.Ends[f].IP = otherAddr(p.Ends[f].IP)
				}
				b.Strangers = []Peer{p}
				return b.announces(p)
			})
			if err == nil {
				err = b.on(n, "ip link set eth0 down", "ip link set eth0 up")
			}
			err = errors.Join(err, b.comesBack(n))
			b.Damaged()
			return err
		},
	}
}

// routeByHand is an administrator's route to pods of a node that joins later. Only we know the way to them, so that it is
// replaced, and told of.
func routeByHand() Fault {
	said := 0
	return Fault{
		Name: "a route by hand to pods of a node that joins then", Note: "heals: it is replaced, and the log says which one it was", Heal: 2 * time.Second,
		Do: func(b *Bench) error {
			n := b.Nodes[0]
			said = len(n.Agent.Log())
			for _, f := range b.hurts() {
				if _, err := n.NS.Try("ip", "route", "add", b.stranger(1).Ends[f].CIDR.String(), "via", wordsFor(f).nowhere); err != nil {
					return err
				}
			}
			err := strangerJoins(b)
			b.Damaged()
			return err
		},
		Healed: func(b *Bench) error {
			if text := b.Nodes[0].Agent.Log()[said:]; !strings.Contains(text, " in place of ") {
				return fmt.Errorf("nothing is said of the route that was there:\n%s", text)
			}
			return b.Restored()
		},
		After: strangerLeaves,
	}
}
