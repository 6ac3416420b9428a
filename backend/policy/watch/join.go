package watch

import (
	"cmp"
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/backend/policy"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/attach"
)

// joiner puts together what the API says of the pods of this node and what the CNI plugin noted. The notes know first
// whose an address is, and last: the API tells of it a second after the pod has it, and goes on telling when a container
// was ended and its address given to the next.
type joiner struct {
	made map[variant]*policy.Pod // by the last join, so that what did not change keeps its pointer
}

// variant is a pod with other addresses than the API gives it.
type variant struct {
	of          *policy.Pod
	uid         string // as the CNI plugin knows it: a static pod has another in the API
	addrs       [2]netip.Addr
	terminating bool
}

// local is what is known of this node.
type local struct {
	pods   []*policy.Pod // of all that the API has, sorted
	notes  []attach.Note
	static map[key]string         // static pods: the UID that the kubelet knows them by
	gone   map[string]*policy.Pod // pods that the API does not have any more, by UID
}

// joined is what a join makes.
type joined struct {
	pods  []*policy.Pod // with their addresses as they are now
	local []*policy.Pod // of these, the ones on this node
	gated []netip.Addr  // addresses of this node whose pod is not known
}

// join looks at the pods of this node alone: to look at each of 100,000 takes milliseconds.
func (j *joiner) join(pods []*policy.Pod, l local) joined {
	made := map[variant]*policy.Pod{}
	defer func() { j.made = made }()
	variantOf := func(v variant) *policy.Pod {
		v.uid = cmp.Or(v.uid, v.of.UID)
		if v.uid == v.of.UID && v.addrs == v.of.Addrs && v.terminating == v.of.Terminating {
			return v.of
		}
		p := j.made[v]
		if p == nil {
			next := *v.of
			next.UID, next.Addrs, next.Terminating = v.uid, v.addrs, v.terminating
			p = &next
		}
		made[v] = p
		return p
	}
	holders := holdersOf(l.notes)
	held, uids := map[*policy.Pod][][2]netip.Addr{}, map[*policy.Pod]string{}
	var out joined
	for i := range l.notes {
		n := &l.notes[i]
		addrs := ownOf(n, holders)
		if pod := l.podOf(n); pod != nil {
			held[pod] = append(held[pod], byFamily(addrs)...)
			uids[pod] = cmp.Or(n.UID, uids[pod])
			continue
		}
		out.gated = append(out.gated, addrs...)
	}
	out.pods = slices.Clone(pods)
	extra := func(v variant) {
		p := variantOf(v)
		out.pods, out.local = append(out.pods, p), append(out.local, p)
	}
	at := 0
	for _, p := range l.pods {
		v := variant{of: p, uid: uids[p], addrs: p.Addrs, terminating: p.Terminating}
		for f, a := range v.addrs {
			if n := holders[a]; n != nil && !isPod(n, p, l.static) {
				v.addrs[f] = netip.Addr{} // the next one has it
			}
		}
		sets := held[p]
		delete(held, p)
		if len(sets) > 0 {
			v.addrs = over(v.addrs, sets[0])
		}
		skip, _ := find(pods[at:], key{p.Namespace, p.Name})
		at += skip
		out.pods[at] = variantOf(v)
		out.local = append(out.local, out.pods[at])
		for _, more := range sets[min(len(sets), 1):] {
			extra(variant{of: p, uid: uids[p], addrs: more, terminating: p.Terminating})
		}
	}
	for p, sets := range held { // those that the API has forgotten
		for _, addrs := range sets {
			extra(variant{of: p, addrs: addrs, terminating: true})
		}
	}
	if len(out.pods) > len(pods) {
		slices.SortStableFunc(out.pods, comparePods)
		slices.SortStableFunc(out.local, comparePods)
	}
	slices.SortFunc(out.gated, netip.Addr.Compare)
	out.gated = slices.Compact(out.gated)
	return out
}

// find finds the pod of a name in a sorted list, or where it would stand.
func find(pods []*policy.Pod, k key) (int, bool) {
	return slices.BinarySearchFunc(pods, k, func(p *policy.Pod, k key) int { return key{p.Namespace, p.Name}.compare(k) })
}

func comparePods(a, b *policy.Pod) int {
	return cmp.Or(cmp.Compare(a.Namespace, b.Namespace), cmp.Compare(a.Name, b.Name), cmp.Compare(a.UID, b.UID),
		a.Addrs[subnet.IPv4].Compare(b.Addrs[subnet.IPv4]), a.Addrs[subnet.IPv6].Compare(b.Addrs[subnet.IPv6]))
}

// podOf finds the pod of a note, of those that the API has and of those that it had.
func (l local) podOf(n *attach.Note) *policy.Pod {
	if i, found := find(l.pods, key{n.Namespace, n.Pod}); found && isPod(n, l.pods[i], l.static) {
		return l.pods[i]
	}
	return l.gone[n.UID]
}

// isPod tells whether a note speaks of a pod.
func isPod(n *attach.Note, p *policy.Pod, static map[key]string) bool {
	k := key{p.Namespace, p.Name}
	if k != (key{n.Namespace, n.Pod}) {
		return false
	}
	return n.UID == "" || n.UID == p.UID || n.UID == static[k]
}

// holdersOf gives the latest note of each address.
func holdersOf(notes []attach.Note) map[netip.Addr]*attach.Note {
	slices.SortStableFunc(notes, func(a, b attach.Note) int { return cmp.Compare(b.At, a.At) }) // latest first
	holders := map[netip.Addr]*attach.Note{}
	for i := range notes {
		for _, a := range notes[i].Addrs {
			if holders[a] == nil {
				holders[a] = &notes[i]
			}
		}
	}
	return holders
}

// ownOf are the addresses that no later note names.
func ownOf(n *attach.Note, holders map[netip.Addr]*attach.Note) (own []netip.Addr) {
	for _, a := range n.Addrs {
		if holders[a] == n {
			own = append(own, a)
		}
	}
	return own
}

// byFamily deals addresses out into sets of at most one of a family.
func byFamily(addrs []netip.Addr) (sets [][2]netip.Addr) {
	for _, a := range addrs {
		f := subnet.FamilyOf(a)
		i := slices.IndexFunc(sets, func(s [2]netip.Addr) bool { return !s[f].IsValid() })
		if i < 0 {
			sets, i = append(sets, [2]netip.Addr{}), len(sets)
		}
		sets[i][f] = a
	}
	return sets
}

// over lays the addresses of a note over those of the API.
func over(api, noted [2]netip.Addr) [2]netip.Addr {
	for f, a := range noted {
		if a.IsValid() {
			api[f] = a
		}
	}
	return api
}
