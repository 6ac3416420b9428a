package policy

import (
	"cmp"
	"net/netip"
	"slices"
	"strings"
)

// owners knows which pod has each address. It follows the World from one to the next by comparing pointers, and says which
// addresses have to be looked at again.
type owners struct {
	pods   []*Pod
	spaces []*Namespace
	labels map[string]Labels // of the namespaces
	of     map[netip.Addr]owner
	rivals map[netip.Addr][]*Pod // all claimants, of an address that has several
	local  map[*Pod]struct{}
}

// owner is who has an address. Spelled keeps the address as text, for it stands in several sets.
type owner struct {
	pod     *Pod
	spelled string
}

// touched is an address whose pod, or its namespace, is another than before. Either pod may be nil.
type touched struct {
	addr     netip.Addr
	spelled  string
	old, new *Pod
}

func newOwners() *owners {
	return &owners{
		labels: map[string]Labels{}, of: map[netip.Addr]owner{}, rivals: map[netip.Addr][]*Pod{}, local: map[*Pod]struct{}{},
	}
}

// follow takes over the pods and namespaces of a World. Without anybody who asks, it does not keep what is touched: the first
// time that is everything.
func (o *owners) follow(w World, asked bool) []touched {
	var before map[netip.Addr]*Pod // of every address that is looked at
	if asked {
		before = map[netip.Addr]*Pod{}
	}
	if len(o.of) == 0 {
		o.of = make(map[netip.Addr]owner, len(w.Pods))
	}
	relabelled := o.followNamespaces(w.Namespaces)
	left, came := moves(o.pods, w.Pods)
	for _, p := range left {
		o.leave(p, before)
	}
	for _, p := range came {
		o.claim(p, before)
	}
	for name := range relabelled {
		first, _ := slices.BinarySearchFunc(w.Pods, name, func(p *Pod, ns string) int { return strings.Compare(p.Namespace, ns) })
		for _, p := range w.Pods[first:] {
			if p.Namespace != name {
				break
			}
			for _, a := range p.Addrs {
				o.note(a, before)
			}
		}
	}
	o.pods = w.Pods
	var out []touched
	for a, old := range before {
		now := o.of[a]
		if old == now.pod && (old == nil || !relabelled[old.Namespace]) {
			continue
		}
		out = append(out, touched{addr: a, spelled: cmp.Or(now.spelled, a.String()), old: old, new: now.pod})
	}
	return out
}

// moves finds the pods that went and those that came. A pod may stand in the list several times, as different values, so that
// two lists can meet in another order: what is in both has not moved.
func moves(old, now []*Pod) (left, came []*Pod) {
	mergeSorted(old, now, comparePods, func(a, b *Pod) {
		if a != nil {
			left = append(left, a)
		}
		if b != nil {
			came = append(came, b)
		}
	})
	if len(left) == 0 || len(came) == 0 {
		return left, came
	}
	went := make(map[*Pod]bool, len(left))
	for _, p := range left {
		went[p] = true
	}
	stays := map[*Pod]bool{}
	came = slices.DeleteFunc(came, func(p *Pod) bool {
		stays[p] = went[p]
		return went[p]
	})
	return slices.DeleteFunc(left, func(p *Pod) bool { return stays[p] }), came
}

// followNamespaces returns the names of the namespaces whose labels may be others than before.
func (o *owners) followNamespaces(now []*Namespace) map[string]bool {
	changed := map[string]bool{}
	mergeSorted(o.spaces, now, func(a, b *Namespace) int { return strings.Compare(a.Name, b.Name) }, func(old, now *Namespace) {
		if old != nil {
			delete(o.labels, old.Name)
			changed[old.Name] = true
		}
		if now != nil {
			o.labels[now.Name] = now.Labels
			changed[now.Name] = true
		}
	})
	o.spaces = now
	return changed
}

// note remembers who had an address before the first change to it.
func (o *owners) note(a netip.Addr, before map[netip.Addr]*Pod) {
	if before == nil || !a.IsValid() {
		return
	}
	if _, noted := before[a]; !noted {
		before[a] = o.of[a].pod
	}
}

// claim adds a pod.
func (o *owners) claim(p *Pod, before map[netip.Addr]*Pod) {
	if !p.member() {
		return
	}
	if p.Local {
		o.local[p] = struct{}{}
	}
	for _, a := range p.Addrs {
		if !a.IsValid() {
			continue
		}
		o.note(a, before)
		has, taken := o.of[a]
		switch {
		case !taken:
			o.of[a] = owner{pod: p, spelled: a.String()}
			continue
		case len(o.rivals[a]) == 0:
			o.rivals[a] = []*Pod{has.pod}
		}
		o.rivals[a] = append(o.rivals[a], p)
		o.settle(a)
	}
}

// leave takes a pod away.
func (o *owners) leave(p *Pod, before map[netip.Addr]*Pod) {
	delete(o.local, p)
	if !p.member() {
		return
	}
	for _, a := range p.Addrs {
		if !a.IsValid() {
			continue
		}
		o.note(a, before)
		if len(o.rivals[a]) == 0 {
			if o.of[a].pod == p {
				delete(o.of, a)
			}
			continue
		}
		o.rivals[a] = slices.DeleteFunc(o.rivals[a], func(q *Pod) bool { return q == p })
		o.settle(a)
	}
}

// settle decides between the pods that claim an address.
func (o *owners) settle(a netip.Addr) {
	claimants := o.rivals[a]
	if len(claimants) == 0 {
		delete(o.rivals, a)
		delete(o.of, a)
		return
	}
	o.of[a] = owner{pod: slices.MinFunc(claimants, rank), spelled: o.of[a].spelled}
	if len(claimants) == 1 {
		delete(o.rivals, a)
	}
}

// rank puts the pod first that has the better claim to an address: the one that runs, then the one that stays, then the
// younger, since the address was free when that one got it.
func rank(a, b *Pod) int {
	return cmp.Or(
		-cmp.Compare(a.Phase, b.Phase), // Finished is not among them
		cmp.Compare(last(a.Terminating), last(b.Terminating)),
		-cmp.Compare(a.Created, b.Created),
		comparePods(a, b),
	)
}

// last is 1 for what should stand behind the others.
func last(is bool) int {
	if is {
		return 1
	}
	return 0
}

func comparePods(a, b *Pod) int {
	return cmp.Or(strings.Compare(a.Namespace, b.Namespace), strings.Compare(a.Name, b.Name), strings.Compare(a.UID, b.UID))
}

// mergeSorted walks two sorted lists of pointers and calls f for each place where they differ: an object that went, one that
// came, or both for one that changed. What is the same pointer costs one comparison.
func mergeSorted[T any](old, now []*T, compare func(a, b *T) int, f func(old, now *T)) {
	if len(old) == len(now) && (len(old) == 0 || &old[0] == &now[0]) {
		return
	}
	i, j := 0, 0
	for i < len(old) || j < len(now) {
		switch {
		case i < len(old) && j < len(now) && old[i] == now[j]:
			i, j = i+1, j+1
		case j == len(now):
			f(old[i], nil)
			i++
		case i == len(old):
			f(nil, now[j])
			j++
		default:
			switch c := compare(old[i], now[j]); {
			case c < 0:
				f(old[i], nil)
				i++
			case c > 0:
				f(nil, now[j])
				j++
			default:
				f(old[i], now[j])
				i, j = i+1, j+1
			}
		}
	}
}
