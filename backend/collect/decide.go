package collect

import (
	"fmt"
	"net/netip"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet/ipam"
)

const (
	// grace is how long a reservation is left alone: an ADD reserves before the address is on the pod's interface. An
	// ADD is bounded by a minute and a half.
	grace = 3 * time.Minute
	// unheardGrace is for attachments that the runtime has no result of, where only the missing address tells.
	unheardGrace = 10 * time.Minute
	// resultGrace is for the runtime's own cache, which it may read again on a late DEL.
	resultGrace = time.Hour
)

// plan is what a pass will do.
type plan struct {
	free     []freeing
	restore  []Change
	records  []ipam.Entry
	results  []string
	kept     int
	problems []string
}

type freeing struct {
	ipam.Reservation
	why string
}

// decide compares what is written down with what lives. It is pure.
func decide(v view) plan {
	p := plan{problems: append([]string{}, v.pods.Blind...)}
	kept := map[string]bool{} // record names of those that keep a reservation
	for _, r := range v.reservations {
		if why := v.whyFree(r); why != "" {
			p.free = append(p.free, freeing{r, why})
			continue
		}
		p.kept++
		if !r.Broken {
			kept[ipam.RecordName(r.Owner)] = true
		}
	}
	if !v.foreign {
		p.restore, p.problems = v.lost(p.problems)
	}
	for _, c := range p.restore {
		kept[ipam.RecordName(c.Owner)] = true
	}
	for _, r := range v.results {
		if r.Network == v.network && v.fateOfResult(r) != dead {
			kept[ipam.RecordName(r.Owner)] = true
		}
	}
	p.records = v.staleRecords(kept, p.restore)
	p.results = v.staleResults()
	return p
}

// whyFree is empty for a reservation that has to stand.
func (v view) whyFree(r ipam.Reservation) string {
	if v.lives(r.Addr) {
		return ""
	}
	f := unheard
	if !r.Broken {
		f = v.fateOf(r.Owner)
	}
	age := v.now.Sub(r.ModTime)
	switch {
	case f == alive:
		return "" // its namespace lives; somebody may have taken the address off for a while
	case v.boot.earlier(r.ModTime):
		return "it is from before this boot"
	case f == unseen:
		return ""
	case v.boot.newCluster && v.complete():
		return "it is from another cluster, and no living namespace has it"
	case age >= 0 && age < grace:
		return ""
	case f == dead:
		return "the pod's namespace is gone"
	case !v.complete() || !v.visibleKind(r) || age < unheardGrace:
		return ""
	case r.Broken:
		return "its file names no owner, and no living namespace has it"
	}
	return "no living namespace has it"
}

// visibleKind reports whether a pod of that kind is found even when the runtime keeps its namespace elsewhere: the
// delegates with a veth on the host are.
func (v view) visibleKind(r ipam.Reservation) bool {
	info, ok := v.recordTypes[ipam.RecordName(r.Owner)]
	return r.Broken || !ok || info.broken || info.delegate == "bridge" || info.delegate == "ptp"
}

// lost lists living addresses without a reservation, which host-local would hand out again, and those whose reservation
// was put back before its owner was known.
func (v view) lost(problems []string) ([]Change, []string) {
	reserved, recovered := map[netip.Addr]bool{}, map[netip.Addr]bool{}
	for _, r := range v.reservations {
		reserved[r.Addr], recovered[r.Addr] = true, r.Owner == ipam.Recovered()
	}
	holders := map[netip.Addr]kernel.Space{}
	var out []Change
	for _, s := range v.pods.Spaces {
		for _, a := range s.Addrs {
			ours := slices.ContainsFunc(v.cidrs, func(p netip.Prefix) bool { return p.Contains(a) })
			if !ours || slices.Contains(v.pods.Host, a) {
				continue
			}
			first, twice := holders[a]
			if twice {
				problems = append(problems, fmt.Sprintf("two namespaces have the address %s, %s and %s: delete one of the two pods, which gets another one then "+
					"(crictl inspectp shows a pod's namespace)", a, v.nameOf(first), v.nameOf(s)))
			}
			holders[a] = s
			if twice || reserved[a] && !recovered[a] {
				continue
			}
			if o := v.ownerOf(a, s.Files); !reserved[a] || o != ipam.Recovered() {
				out = append(out, Change{Addr: a, Owner: o, Why: "a living pod has it"})
			}
		}
	}
	return out, problems
}

// nameOf is how a person finds a namespace.
func (v view) nameOf(s kernel.Space) string {
	if len(s.Files) == 0 {
		return fmt.Sprintf("number %d (ip netns list-id)", s.ID)
	}
	return filepath.Join(v.netnsDir, s.Files[0])
}

// ownerOf finds the attachment of a living address among the runtime's results.
func (v view) ownerOf(a netip.Addr, files []string) ipam.Owner {
	for _, r := range v.results {
		name, ours := v.nameInDir(r.Netns)
		if r.Network != v.network || !slices.Contains(r.Addrs, a) || v.fateOfResult(r) == dead {
			continue
		}
		if !ours || len(files) == 0 || slices.Contains(files, name) {
			return r.Owner
		}
	}
	return ipam.Recovered()
}

// staleRecords lists records that tell of nobody. While a living pod's owner is not known, none is: it may be its.
func (v view) staleRecords(kept map[string]bool, restored []Change) []ipam.Entry {
	if slices.ContainsFunc(restored, func(c Change) bool { return c.Owner == ipam.Recovered() }) {
		return nil
	}
	var out []ipam.Entry
	for _, e := range v.records {
		info := v.recordTypes[e.Name]
		young := v.now.Sub(e.ModTime) < grace && !v.boot.earlier(e.ModTime)
		if kept[e.Name] || young || !info.broken && info.network != v.network {
			continue
		}
		// Without host-local there is no reservation to tell that the pod lives.
		if info.broken || info.ipam == "host-local" && !v.foreign || v.boot.earlier(e.ModTime) {
			out = append(out, e)
		}
	}
	return out
}

// staleResults lists cached results of dead attachments, once the runtime had time to ask for them itself.
func (v view) staleResults() []string {
	var out []string
	for _, r := range v.results {
		old := v.boot.earlier(r.ModTime) || v.now.Sub(r.ModTime) > resultGrace && !slices.ContainsFunc(r.Addrs, v.lives)
		if r.Network == v.network && old && v.fateOfResult(r) == dead {
			out = append(out, r.File)
		}
	}
	// An unreadable one is of our network by its name, and of no use to anybody; after a boot it is nobody's.
	for _, name := range v.unreadable {
		if v.boot.newBoot && strings.HasPrefix(name, v.network+"-") {
			out = append(out, name)
		}
	}
	return out
}
