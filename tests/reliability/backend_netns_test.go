package reliability

import (
	"slices"
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
		Name: name, Heal: 10 * time.Second, Note: "node by node: once by the file that agents watch, once by restarts; heals: nothing of the other is left",
		Before: func(b *Bench) error {
			if err := watchTheClear(b); err != nil {
				return err
			}
			if b.Backend == from {
				return nil
			}
			return b.RollOut(from, true)
		},
		Do: func(b *Bench) error {
			for _, restart := range []bool{false, true} {
				for _, backend := range []string{to, from} {
					if err := b.RollOut(backend, restart); err != nil {
						return err
					}
				}
			}
			b.Damaged()
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
	}, linkRows(), addressRows())
	for i := range rows {
		rows[i].Heal = max(rows[i].Heal, underlayHeal)
	}
	return rows
}
