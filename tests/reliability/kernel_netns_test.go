package reliability

import (
	"errors"
	"fmt"
	"strings"
	"syscall"
	"time"
)

// kernelRows are what others do to the node's kernel. The damage is always on the first node.
func kernelRows() []Fault {
	return append(append(deviceRows(), tableRows()...), append(hostRows(), crowdRows()...)...)
}

// command is a fault that commands make, one after the other. With more than one, the agent is stopped meanwhile: it would
// be faster.
func command(name, loses string, commands ...string) Fault {
	return Fault{Name: name, Loses: loses, Do: func(b *Bench) error {
		n := b.Nodes[0]
		if len(commands) == 1 {
			return b.Hurt(n, commands[0])
		}
		return b.still(n, func() error {
			for _, c := range commands {
				if err := b.Hurt(n, c); err != nil {
					return err
				}
			}
			return nil
		})
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
	deleted := command("flannel.1 deleted", gone, "ip link del flannel.1")
	deleted.Worst = true
	return []Fault{
		deleted,
		command("flannel.1 set down", gone, "ip link set flannel.1 down"),
		command("flannel.1 set down and up", gone, "ip link set flannel.1 down", "ip link set flannel.1 up"),
		command("flannel.1 renamed", gone, "ip link set flannel.1 down", "ip link set flannel.1 name tunnel0", "ip link set tunnel0 up"),
		command("flannel.1 has another MTU", "", "ip link set flannel.1 mtu 1300"),
		command("flannel.1 has another MAC", gone, "ip link set flannel.1 address 0a:99:99:99:99:99"),
		command("flannel.1 has no address", "with a device's last address the kernel takes its routes away", "ip addr flush dev flannel.1"),
		command("flannel.1 has another address of the pod network", "", "ip addr add 10.244.1.77/32 dev flannel.1"),
		command("flannel.1 made anew by hand, on another port", gone, "ip link del flannel.1",
			"ip link add flannel.1 mtu 1450 type vxlan id 1 dstport 8472 nolearning dev eth0", "ip link set flannel.1 up"),
		command("flannel.1 made anew by hand, with another VNI", gone, "ip link del flannel.1",
			"ip link add flannel.1 mtu 1450 type vxlan id 7 dstport 4789 nolearning dev eth0", "ip link set flannel.1 up"),
		command("flannel.1 replaced by a bridge", gone, "ip link del flannel.1", "ip link add flannel.1 type bridge"),
		{
			Name: "a second VXLAN device on the port", Note: "another VNI; the two share the socket",
			Do: func(b *Bench) error {
				return b.Hurt(b.Nodes[0], "ip link add other up type vxlan id 9 dstport 4789 dev eth0")
			},
			After: func(b *Bench) error { return b.Hurt(b.Nodes[0], "ip link del other") },
		},
	}
}

func tableRows() []Fault {
	const missing = "what is sent before the entry is there again is lost"
	return []Fault{
		command("neighbours flushed", missing, "ip neigh flush dev flannel.1 nud permanent"),
		command("neighbours replaced", missing, "ip neigh replace 10.244.2.0 lladdr 0a:99:99:99:99:99 dev flannel.1 nud permanent"),
		command("forwarding entries flushed", missing, "bridge fdb flush dev flannel.1"),
		{Name: "forwarding entry replaced", Loses: missing, Do: func(b *Bench) error {
			return b.Hurt(b.Nodes[0], fmt.Sprintf("bridge fdb replace %s dev flannel.1 dst 192.168.50.99", b.Nodes[1].MAC))
		}},
		{Name: "second destination for a forwarding entry", Note: "a copy of each frame went elsewhere", Do: func(b *Bench) error {
			return b.Hurt(b.Nodes[0], fmt.Sprintf("bridge fdb append %s dev flannel.1 dst 192.168.50.99", b.Nodes[1].MAC))
		}},
		command("routes flushed", missing, "ip route flush dev flannel.1"),
		command("route replaced", missing, "ip route replace 10.244.2.0/24 via "+gateway),
		command("route replaced by a blackhole", missing, "ip route replace blackhole 10.244.2.0/24"),
		command("entry of a stranger", "", "bridge fdb add 0a:99:99:99:99:98 dev flannel.1 dst 192.168.50.98"),
		{Name: "entries flushed again and again", Note: "20 times, every 50 ms; the log stays short", Loses: missing,
			Do: func(b *Bench) error {
				for range 20 {
					if err := b.Hurt(b.Nodes[0], "bridge fdb flush dev flannel.1"); err != nil {
						return err
					}
					time.Sleep(50 * time.Millisecond)
				}
				return nil
			}},
	}
}

// sysctl is a switch turned by hand, and what has to come of it.
func sysctl(name, value, loses string) Fault {
	return Fault{
		Name: fmt.Sprintf("%s set to %s", strings.ReplaceAll(name, "/", "."), value), Loses: loses,
		Do: func(b *Bench) error {
			_, err := b.Nodes[0].NS.Input(value, "tee", "/proc/sys/net/ipv4/"+name)
			b.Damaged()
			return err
		},
		Healed: func(b *Bench) error {
			text, err := b.Nodes[0].NS.Try("cat", "/proc/sys/net/ipv4/"+name)
			if err == nil && strings.TrimSpace(text) == value {
				err = fmt.Errorf("%s is still %s", name, value)
			}
			if err == nil {
				err = b.Restored()
			}
			return err
		},
	}
}

func hostRows() []Fault {
	const off = "what is sent before the switch is on again is lost"
	strict := sysctl("conf/all/rp_filter", "1", "")
	strict.Note, strict.Healed = "strict: answers take the way that the packets came, so nothing needs to be done", nil
	strict.After = func(b *Bench) error {
		_, err := b.Nodes[0].NS.Input("0", "tee", "/proc/sys/net/ipv4/conf/all/rp_filter")
		return err
	}
	return []Fault{
		sysctl("ip_forward", "0", off),
		sysctl("conf/flannel.1/forwarding", "0", off),
		sysctl("conf/cni0/forwarding", "0", off),
		sysctl("conf/eth0/forwarding", "0", off),
		strict,
	}
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
			return b.Hurt(b.Nodes[0], "ip route flush dev flannel.1")
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
		for _, c := range []string{"ip route flush dev flannel.1", "bridge fdb flush dev flannel.1", "ip neigh flush dev flannel.1 nud permanent"} {
			if err := b.Hurt(n, c); err != nil {
				return err
			}
		}
		return nil
	})
}
