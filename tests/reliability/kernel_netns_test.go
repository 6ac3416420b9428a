package reliability

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"

	"github.com/weft-cni/weft/subnet"
)

// kernelRows are what others do to the node's kernel. The damage is always on the first node.
func kernelRows() []Fault {
	return append(append(deviceRows(), tableRows()...), append(hostRows(), crowdRows()...)...)
}

// command is a fault that commands make, one after the other, in each family. With more than one, or of more than one family,
// the agent is stopped meanwhile: it would be faster.
func command(name, loses string, commands ...string) Fault {
	return Fault{Name: name, Loses: loses, Do: func(b *Bench) error {
		n := b.Nodes[0]
		if len(commands) == 1 {
			return b.Hurt(n, commands[0])
		}
		return b.still(n, func() error { return b.Hurt(n, commands...) })
	}}
}

// still does something while the node's agent is stopped. The damage is done when it goes on.
func (b *Bench) still(n *Node, do func() error) error {
	if err := n.Agent.Signal(syscall.SIGSTOP); err != nil {
		return err
	}
	err := do()
	b.Damaged()
	return errors.Join(err, n.Agent.Signal(syscall.SIGCONT))
}

func deviceRows() []Fault {
	const gone = "what is sent before the device is as it was is lost"
	deleted := command("flannel.1 deleted", gone, "ip link del {device}")
	deleted.Worst = true
	return []Fault{
		deleted,
		command("flannel.1 set down", gone, "ip link set {device} down"),
		command("flannel.1 set down and up", gone, "ip link set {device} down", "ip link set {device} up"),
		command("flannel.1 renamed", gone, "ip link set {device} down", "ip link set {device} name {other}", "ip link set {other} up"),
		command("flannel.1 has another MTU", "", "ip link set {device} mtu 1300"),
		command("flannel.1 has another MAC", gone, "ip link set {device} address 0a:99:99:99:99:99"),
		command("flannel.1 has no address", "with a device's last address the kernel takes its routes away", "{ip} addr flush dev {device}"),
		command("flannel.1 has another address of the pod network", "", "ip addr add {stray} dev {device}"),
		command("flannel.1 made anew by hand, on another port", gone, "ip link del {device}",
			"ip link add {device} mtu {mtu} type vxlan id 1 {tunnel} dstport 8472 nolearning dev eth0", "ip link set {device} up"),
		command("flannel.1 made anew by hand, with another VNI", gone, "ip link del {device}",
			"ip link add {device} mtu {mtu} type vxlan id 7 {tunnel} dstport 4789 nolearning dev eth0", "ip link set {device} up"),
		command("flannel.1 replaced by a bridge", gone, "ip link del {device}", "ip link add {device} type bridge"),
		{
			Name: "a second VXLAN device on the port", Note: "another VNI; the two share the socket",
			Do: func(b *Bench) error {
				return b.Hurt(b.Nodes[0], "ip link add {other} up type vxlan id 9 {tunnel} dstport 4789 dev eth0")
			},
			After: func(b *Bench) error { return b.Hurt(b.Nodes[0], "ip link del {other}") },
		},
	}
}

func tableRows() []Fault {
	const missing = "what is sent before the entry is there again is lost"
	return []Fault{
		command("neighbours flushed", missing, "{ip} neigh flush dev {device} nud permanent"),
		command("neighbours replaced", missing, "ip neigh replace {peer} lladdr 0a:99:99:99:99:99 dev {device} nud permanent"),
		command("forwarding entries flushed", missing, "bridge fdb flush dev {device}"),
		{Name: "forwarding entry replaced", Loses: missing, Do: func(b *Bench) error {
			return b.Hurt(b.Nodes[0], "bridge fdb replace {peermac} dev {device} dst {nowhere}")
		}},
		{Name: "second destination for a forwarding entry", Note: "a copy of each frame went elsewhere", Do: func(b *Bench) error {
			return b.Hurt(b.Nodes[0], "bridge fdb append {peermac} dev {device} dst {nowhere}")
		}},
		command("routes flushed", missing, "{ip} route flush dev {device}"),
		command("route replaced", missing, "ip route replace {peercidr} via {gateway}"),
		command("route replaced by a blackhole", missing, "ip route replace blackhole {peercidr}"),
		command("entry of a stranger", "", "bridge fdb add 0a:99:99:99:99:98 dev {device} dst {nowhere}"),
		{Name: "entries flushed again and again", Note: "20 times, every 50 ms; the log stays short", Loses: missing,
			Do: func(b *Bench) error {
				for range 20 {
					if err := b.Hurt(b.Nodes[0], "bridge fdb flush dev {device}"); err != nil {
						return err
					}
					time.Sleep(50 * time.Millisecond)
				}
				return nil
			}},
	}
}

// sysctl is a switch turned by hand, and what has to come of it. The files are those of the families, below /proc/sys/net; a
// family without one has no such switch.
func sysctl(name, value, loses string, files [2]string) Fault {
	fault := Fault{
		Name: fmt.Sprintf("%s set to %s", name, value), Loses: loses,
		Do: func(b *Bench) error {
			err := b.inEach(func(f subnet.Family) error {
				_, err := b.Nodes[0].NS.Input(value, "tee", "/proc/sys/net/"+b.expand(b.Nodes[0], f, files[f]))
				return err
			})
			b.Damaged()
			return err
		},
		Healed: func(b *Bench) error {
			err := b.inEach(func(f subnet.Family) error {
				text, err := b.Nodes[0].NS.Try("cat", "/proc/sys/net/"+b.expand(b.Nodes[0], f, files[f]))
				if err == nil && strings.TrimSpace(text) == value {
					err = fmt.Errorf("%s is still %s", files[f], value)
				}
				return err
			})
			if err == nil {
				err = b.Restored()
			}
			return err
		},
	}
	for _, f := range subnet.Families() {
		if files[f] != "" {
			fault.Families = append(fault.Families, f)
		}
	}
	return fault
}

// switchRows are those without which the kernel forwards nothing.
func switchRows() []Fault {
	const off = "what is sent before the switch is on again is lost"
	return []Fault{
		sysctl("ip_forward", "0", off, [2]string{"ipv4/ip_forward", "ipv6/conf/all/forwarding"}),
		sysctl("conf.flannel.1.forwarding", "0", off, [2]string{"ipv4/conf/{device}/forwarding", "ipv6/conf/{device}/forwarding"}),
		sysctl("conf.cni0.forwarding", "0", off, [2]string{"ipv4/conf/cni0/forwarding", "ipv6/conf/cni0/forwarding"}),
		sysctl("conf.eth0.forwarding", "0", off, [2]string{"ipv4/conf/eth0/forwarding", "ipv6/conf/eth0/forwarding"}),
	}
}

func hostRows() []Fault {
	strict := sysctl("conf.all.rp_filter", "1", "", [2]string{"ipv4/conf/all/rp_filter"})
	strict.Note, strict.Healed = "strict: answers take the way that the packets came, so nothing needs to be done", nil
	strict.After = func(b *Bench) error {
		_, err := b.Nodes[0].NS.Input("0", "tee", "/proc/sys/net/ipv4/conf/all/rp_filter")
		return err
	}
	return append(switchRows(), strict)
}

func crowdRows() []Fault {
	return []Fault{
		{Name: "20,000 links made and deleted", Long: true, Note: "dumps are interrupted again and again", Do: churn(20000)},
		flushInTheCrowd(),
		{Name: "notifications lost", Note: "SIGSTOP, 20,000 changes, all entries flushed, SIGCONT: the kernel drops what nobody reads",
			Long: true, Loses: "the entries are gone until the agent runs again", Do: overflow},
	}
}

// flushInTheCrowd takes the routes away while links come and go, so that the agent reads tables that change.
func flushInTheCrowd() Fault {
	var crowd chan error
	return Fault{
		Name: "routes flushed while 2,000 links are made and deleted", Loses: "the routes are gone until they are made again",
		Do: func(b *Bench) error {
			crowd = make(chan error, 1)
			go func() { crowd <- links(b, 2000) }()
			time.Sleep(100 * time.Millisecond)
			return b.Hurt(b.Nodes[0], "{ip} route flush dev {device}")
		},
		After: func(*Bench) error { return <-crowd },
	}
}

// churn makes links and deletes them again, a thousand at a time: deleting them one by one takes the kernel much longer.
func churn(count int) func(*Bench) error {
	return func(b *Bench) error {
		err := links(b, count)
		b.Damaged()
		return err
	}
}

func links(b *Bench, count int) error {
	const batch = 1000
	var script strings.Builder
	for i := range batch / 2 {
		fmt.Fprintf(&script, "link add churn%d group 7 type veth peer name nruhc%d\n", i, i)
	}
	script.WriteString("link del group 7\n")
	for range count / batch {
		if _, err := b.Nodes[0].NS.Input(script.String(), "ip", "-batch", "-"); err != nil {
			return err
		}
	}
	return nil
}

func overflow(b *Bench) error {
	n := b.Nodes[0]
	return b.still(n, func() error {
		if err := churn(10000)(b); err != nil {
			return err
		}
		return b.Hurt(n, "{ip} route flush dev {device}", "bridge fdb flush dev {device}", "{ip} neigh flush dev {device} nud permanent")
	})
}
