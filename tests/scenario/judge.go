package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"slices"

	gocmp "github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet"
)

// living are the machines that can be compared with the model: the daemon runs and has seen the cluster, and it has a Node
// and an underlay.
func (w *World) living() []*Machine {
	var list []*Machine
	for _, name := range slices.Sorted(maps.Keys(w.machines)) {
		m := w.machines[name]
		_, there := w.cluster.record(name)
		if m.alive && !m.blind && there && slices.ContainsFunc(w.lane.Families(), m.connected) {
			list = append(list, m)
		}
	}
	return list
}

// connected reports whether a machine has an underlay for a family.
func (m *Machine) connected(f subnet.Family) bool { return m.box.Underlay(f) != Underlay{} }

// compare is the difference between a machine's kernel and the model, or nil. A family without an underlay cannot be judged.
func (w *World) compare(m *Machine, records []Record) error {
	have, err := m.box.Tables()
	if err != nil {
		return err
	}
	i := slices.IndexFunc(records, func(r Record) bool { return r.Name == m.name })
	if i < 0 || records[i].cidrs() == [2]string{} {
		return fmt.Errorf("%s is not among the %d Nodes that are served, or has no range", m.name, len(records))
	}
	node := records[i]
	if m.adopts && node.Port != "" {
		m.adopt(node)
	}
	self := node
	for _, f := range w.lane.Families() {
		under := m.box.Underlay(f)
		if under == (Underlay{}) {
			continue
		}
		self.Half[f].MAC = m.mac[f]
		want, got := model(f, judged{self, m.settings, under}, records), have.of(f)
		if len(want.Link) == 0 && m.settings.kind() != subnet.VXLAN {
			got.Link, got.Addr = nil, nil // a device of a former backend is kept for a while; stories wait, and look
		}
		if diff := gocmp.Diff(want, got); diff != "" {
			return fmt.Errorf("%s: kernel (+) differs from the model (-):\n%s", m.name, diff)
		}
	}
	if m.unruly && w.flavour.rules != nil {
		if err := w.flavour.rules(w, m, node); err != nil {
			return err
		}
	}
	return w.announced(m, node)
}

// adopt takes the MACs that a Node announces for those that its machine has to have.
func (m *Machine) adopt(node Record) {
	for _, f := range subnet.Families() {
		m.mac[f] = cmp.Or(node.Half[f].MAC, m.mac[f])
	}
	m.adopts = false
}

// announced is what is wrong with a machine's announcement, or nil. While the API is away, nothing can be said.
func (w *World) announced(m *Machine, node Record) error {
	want := node
	want.Type, want.Managed = m.settings.kind(), "true"
	vxlan := want.Type == subnet.VXLAN
	if want.VNI, want.Port = "", ""; vxlan {
		want.VNI, want.Port = fmt.Sprint(m.settings.VNI), fmt.Sprint(m.settings.Port)
	}
	for _, f := range w.lane.Families() {
		node.Half[f].Data = "" // holds what VNI and MAC are
		h, under := node.Half[f], m.box.Underlay(f)
		switch {
		case h.CIDR == "":
			want.Half[f] = Half{Overwrite: h.Overwrite}
		case under == Underlay{}: // what it announced before
			want.Half[f] = h
		default:
			want.Half[f] = Half{CIDR: h.CIDR, IP: cmp.Or(h.Overwrite, under.Addr.String()), Overwrite: h.Overwrite}
			if vxlan {
				want.Half[f].MAC = m.mac[f]
			}
		}
	}
	if diff := gocmp.Diff(want, node); diff != "" && !w.away {
		return fmt.Errorf("%s: announcement (+) is not as it should be (-):\n%s", m.name, diff)
	}
	return nil
}

// synced waits until every living machine's kernel is as the model says of one and the same moment: while a machine
// announces itself, what the others need is about to change.
func (w *World) synced() error {
	return w.within(func() error {
		records := w.cluster.view()
		for _, m := range w.living() {
			if err := w.compare(m, records); err != nil {
				return err
			}
		}
		if diff := gocmp.Diff(records, w.cluster.view()); diff != "" {
			return fmt.Errorf("the cluster changes:\n%s", diff)
		}
		return nil
	})
}
