package watch

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"github.com/weft-cni/weft/backend/policy"
)

// interner gives equal texts and equal sets of labels one place in memory: the pods of a workload differ in name and
// address, and in little else. It holds on to what it has seen, so it is emptied whenever it has outgrown what is in use;
// sharing is then lost between older and newer objects, and nothing else is.
type interner struct {
	// mu protects the fields below: a list that was given up may still be decoded while the next one is.
	mu     sync.Mutex
	texts  map[string]string
	labels map[string]policy.Labels
	ports  map[string][]policy.NamedPort
	limit  int    // entries, at which it is emptied
	line   []byte // of labels or ports, to look them up by
}

const leastInterned = 8192

func newInterner() *interner {
	in := &interner{limit: leastInterned}
	in.reset()
	return in
}

func (in *interner) reset() {
	in.texts, in.labels, in.ports = map[string]string{}, map[string]policy.Labels{}, map[string][]policy.NamedPort{}
}

// tidy is told now and then how many objects there are.
func (in *interner) tidy(objects int) {
	in.mu.Lock()
	defer in.mu.Unlock()
	in.limit = max(leastInterned, 4*objects)
	if len(in.texts) > in.limit || len(in.labels) > in.limit {
		in.reset()
	}
}

// text returns the one copy of a string. It is a copy of its own, which keeps no decoded message alive.
func (in *interner) text(s string) string {
	in.mu.Lock()
	defer in.mu.Unlock()
	return in.share(s)
}

func (in *interner) share(s string) string {
	if have, ok := in.texts[s]; ok {
		return have
	}
	s = strings.Clone(s)
	in.texts[s] = s
	return s
}

// labelsOf is policy.LabelsOf, shared.
func (in *interner) labelsOf(m map[string]string) policy.Labels {
	if len(m) == 0 {
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.line = in.line[:0]
	for _, k := range slices.Sorted(maps.Keys(m)) {
		in.line = append(append(in.line, k...), 0)
		in.line = append(append(in.line, m[k]...), 0)
	}
	if have, ok := in.labels[string(in.line)]; ok {
		return have
	}
	labels := policy.LabelsOf(m)
	for i, l := range labels {
		labels[i] = policy.Label{Key: in.share(l.Key), Value: in.share(l.Value)}
	}
	in.labels[string(in.line)] = labels
	return labels
}

// portsOf shares lists of ports, which are the same for all pods of a workload.
func (in *interner) portsOf(ports []policy.NamedPort) []policy.NamedPort {
	if len(ports) == 0 {
		return nil
	}
	in.mu.Lock()
	defer in.mu.Unlock()
	in.line = in.line[:0]
	for _, p := range ports {
		in.line = append(append(in.line, p.Name...), 0, byte(p.Proto), byte(p.Port>>8), byte(p.Port))
	}
	if have, ok := in.ports[string(in.line)]; ok {
		return have
	}
	for i := range ports {
		ports[i].Name = in.share(ports[i].Name)
	}
	in.ports[string(in.line)] = ports
	return ports
}
