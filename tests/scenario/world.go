package scenario

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"sync/atomic"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/terms"
)

// patience is the promise of the contract: after whatever happens, the kernel is right within this time.
const patience = 5 * time.Second

// World is a cluster and its machines.
type World struct {
	ctx      context.Context
	cancel   context.CancelFunc
	cluster  cluster
	away     bool // the API is
	lane     lane.Lane
	prefix   kube.Prefix
	machines map[string]*Machine
	flavour  flavour
	skipped  atomic.Int64 // time that passed without anybody waiting for it, in ns
}

// flavour says what a world is made of.
type flavour struct {
	lane    lane.Lane
	cluster func(w *World) (cluster, error)
	// box makes machine number i, counted from 1. Its underlay addresses are underlayAddr(f, i).
	box func(i int) (Box, error)
	// agent makes the daemon of a machine, not started yet.
	agent func(w *World, m *Machine) (agent, error)
	// ping reports whether a packet of a family from one machine reaches the device of another.
	ping func(w *World, f subnet.Family, from, to *Machine) error
	// rules is what is wrong with a machine's traffic rules; nil where there are none.
	rules func(w *World, m *Machine, node Record) error
	// virtual says that sleeping costs nothing.
	virtual bool
}

// newWorld makes an empty one; end ends it.
func newWorld(f flavour) (*World, error) {
	prefix, err := kube.ParsePrefix(kube.DefaultPrefix)
	if err != nil {
		return nil, err
	}
	ctx, cancel := context.WithCancel(context.Background())
	w := &World{ctx: ctx, cancel: cancel, lane: f.lane, prefix: prefix, machines: map[string]*Machine{}, flavour: f}
	w.cluster, err = f.cluster(w)
	return w, err
}

// end kills all daemons.
func (w *World) end() {
	for _, m := range w.machines {
		w.kill(m)
	}
	w.cancel()
}

// now is the time for everybody in the world.
func (w *World) now() time.Time { return time.Now().Add(time.Duration(w.skipped.Load())) }

// addMachine makes a machine with its Node, which has a part in some families, and starts its daemon.
func (w *World) addMachine(name string, families []subnet.Family) error {
	i, err := number(name)
	if err != nil {
		return err
	}
	r := defaultRecord(name, i, families)
	box, err := w.flavour.box(i)
	if err != nil {
		return err
	}
	m := &Machine{name: name, box: &counted{Box: box}, settings: Settings{VNI: 1, Port: 4789}}
	if m.agent, err = w.flavour.agent(w, m); err != nil {
		return err
	}
	w.machines[name] = m
	for _, f := range w.lane.Families() { // also of those that it may have a part in later
		m.mac[f] = terms.In(f, defaultMAC(i))
		r.Half[f].IP = ""
	}
	r.Type, r.Managed = "", "" // it announces these itself, and its addresses
	if err := w.cluster.put(r); err != nil {
		return err
	}
	return w.start(m)
}

func (w *World) start(m *Machine) error {
	m.blind = w.away
	m.alive = true
	if _, ok := m.agent.(*processAgent); ok {
		m.mac, m.settings.Silent = chosenMAC(w, m), true
		m.former = formerPorts(w, m)
	}
	return m.agent.start(w.ctx, m.settings, m.mac)
}

func (w *World) kill(m *Machine) {
	if m.alive {
		m.agent.kill()
	}
	m.alive = false
}

// leave takes the API away, or brings it back. Who could not be judged when it went may have missed something, and who
// was started meanwhile knows nothing. Both lose a part of their announcement when it is back: that it is there again
// shows that they have seen the cluster.
func (w *World) leave(away bool) error {
	if away && !w.away {
		seen := w.living()
		for _, m := range w.machines {
			// A daemon that was started a moment ago may find its kernel right before it has looked at the cluster.
			m.blind = !slices.Contains(seen, m) || !m.agent.sees()
			p, ok := m.agent.(*processAgent)
			if !ok || m.blind {
				continue
			}
			if err := w.within(p.remembers); err != nil {
				return err
			}
		}
	}
	w.away = away
	if err := w.cluster.leave(away); err != nil || away {
		return err
	}
	for name, m := range w.machines {
		if _, there := w.cluster.record(name); m.blind && m.alive && there {
			if err := w.cluster.change(name, func(r *Record) error { return r.set("port", "") }); err != nil {
				return err
			}
			_, m.adopts = m.agent.(*processAgent)
		}
		m.blind = false
	}
	return nil
}

// number is the number in a node's name: n12 is 12.
func number(name string) (int, error) {
	var i int
	if _, err := fmt.Sscanf(name, "n%d", &i); err != nil || i < 1 || i > 65000 {
		return 0, fmt.Errorf("node %q: want n and a number", name)
	}
	return i, nil
}

// defaultRecord is node number i as a story has it unless it says otherwise.
func defaultRecord(name string, i int, families []subnet.Family) Record {
	r := Record{Name: name, Type: "vxlan", VNI: "1", Port: "4789", Managed: "true"}
	for _, f := range families {
		r.Half[f] = Half{
			CIDR: terms.In(f, fmt.Sprintf("10.244.%d.%d/%d", i/256+i%256, 0, 24)), IP: underlayAddr(f, i).String(), MAC: terms.In(f, defaultMAC(i)),
		}
	}
	return r
}

// defaultMAC is the MAC of node number i, in the terms of stories.
func defaultMAC(i int) string { return fmt.Sprintf("0a:00:00:00:%02x:%02x", i/256, i%256) }

// within waits until a condition holds, but not longer than the promise allows. What counts is time in which a calm machine would have answered: a pause that
// lasts much longer than asked for, or a condition that takes long to look at, says that others use the machine.
func (w *World) within(condition func() error) error {
	start, waited := time.Now(), time.Duration(0)
	for pause := 5 * time.Millisecond; ; pause = min(2*pause, 100*time.Millisecond) {
		before := time.Now()
		err := condition()
		if err == nil {
			return nil
		}
		if waited > patience {
			return fmt.Errorf("not within %v, by the clock %v: %w%s", patience, time.Since(start), err, w.logs())
		}
		time.Sleep(pause)
		waited += min(time.Since(before), 3*pause)
	}
}

// pass lets time pass. On real machines an hour cannot pass; the clock of the daemons is moved instead, and each takes
// one more turn.
func (w *World) pass(d time.Duration) error {
	if w.flavour.virtual {
		time.Sleep(d)
		return nil
	}
	w.skipped.Add(int64(d))
	for _, m := range w.machines {
		if a, ok := m.agent.(inspected); ok && m.alive {
			if err := a.turn(w); err != nil {
				return err
			}
		}
	}
	return nil
}

// logs are the ends of the daemons' logs, where they are processes.
func (w *World) logs() string {
	var text string
	for _, name := range slices.Sorted(maps.Keys(w.machines)) {
		if a, ok := w.machines[name].agent.(*processAgent); ok {
			text += fmt.Sprintf("\n\nlog of %s:\n%s", name, a.log())
		}
	}
	return text
}
