package watch

import (
	"maps"
	"slices"
	"strings"
	"sync"

	"k8s.io/client-go/tools/cache"
)

// key names an object; the namespace of a cluster-scoped one is empty.
type key struct{ namespace, name string }

func (k key) compare(o key) int {
	if c := strings.Compare(k.namespace, o.namespace); c != 0 {
		return c
	}
	return strings.Compare(k.name, o.name)
}

// parsed is what an API object comes to.
type parsed[V any] struct {
	key
	uid      string   // tells a successor of the same name; empty where that does not matter
	value    *V       // nil: the object is of no interest, as if it were not there
	problems []string // what is wrong with it
	note     string   // something beside the value that is kept by key
}

// kind says how objects of one kind become values.
type kind[V any] struct {
	parse func(obj any) (parsed[V], bool) // false for what is no such object
	key   func(*V) key
	uid   func(*V) string
	same  func(a, b *V) bool
}

// table is where a reflector puts the objects of one kind: it keeps the values, sorted by key, and says that something
// changed only when a value did. There is no queue behind it: however much comes at once, what follows is one list.
type table[V any] struct {
	kind  kind[V]
	dirty func()

	// mu protects the fields below: the reflector writes them, the builder of Worlds reads them.
	mu       sync.Mutex
	items    map[key]*V
	problems map[key][]string
	notes    map[key]string
	gone     map[string]*V    // by UID: values that were taken away or replaced by those of another object, until forgotten
	keep     func(*V) bool    // which of these to keep; nil keeps none
	mine     func(*V) bool    // which of the values are picked; nil picks none
	own      map[key]*V       // those
	changed  map[key]struct{} // since sorted was made
	sorted   []*V             // never changed, only replaced
	synced   bool             // the first complete list is in
}

func newTable[V any](k kind[V], dirty func()) *table[V] {
	return &table[V]{
		kind: k, dirty: dirty, items: map[key]*V{}, problems: map[key][]string{}, notes: map[key]string{},
		gone: map[string]*V{}, changed: map[key]struct{}{}, own: map[key]*V{},
	}
}

// list is the values sorted by key, and whether they are all. The slice is a new one only when something changed.
func (t *table[V]) list() ([]*V, bool) {
	all, _, synced := t.lists()
	return all, synced
}

// lists is list, and those of the values that mine has picked, sorted as well.
func (t *table[V]) lists() (all, own []*V, synced bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if len(t.changed) > 0 {
		t.sorted = t.merge()
		clear(t.changed)
	}
	return t.sorted, t.inOrder(t.own), t.synced
}

func (t *table[V]) inOrder(values map[key]*V) []*V {
	return slices.SortedFunc(maps.Values(values), func(a, b *V) int { return t.kind.key(a).compare(t.kind.key(b)) })
}

// merge copies sorted with what changed worked in: of 100,000 pods one changes at a time, and sorting them all takes a
// hundred times as long.
func (t *table[V]) merge() []*V {
	keys := slices.SortedFunc(maps.Keys(t.changed), key.compare)
	out := make([]*V, 0, len(t.items))
	old := t.sorted
	for _, k := range keys {
		at, found := slices.BinarySearchFunc(old, k, func(v *V, k key) int { return t.kind.key(v).compare(k) })
		out = append(out, old[:at]...)
		if old = old[at:]; found {
			old = old[1:]
		}
		if v := t.items[k]; v != nil {
			out = append(out, v)
		}
	}
	return append(out, old...)
}

// Add takes an object that is new or has changed.
func (t *table[V]) Add(obj any) error {
	p, ok := t.read(obj)
	if !ok {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.put(p) {
		t.dirty()
	}
	return nil
}

// Update is Add: what counts is what the object says now, not what happened to it.
func (t *table[V]) Update(obj any) error { return t.Add(obj) }

// Delete forgets an object, unless it is there anew under the same name.
func (t *table[V]) Delete(obj any) error {
	if late, ok := obj.(cache.DeletedFinalStateUnknown); ok {
		obj = late.Obj
	}
	p, ok := t.read(obj)
	if !ok {
		return nil
	}
	t.mu.Lock()
	defer t.mu.Unlock()
	if have := t.items[p.key]; have != nil && t.kind.uid(have) != p.uid {
		return nil
	}
	p.value, p.problems, p.note = nil, nil, ""
	if t.put(p) {
		t.dirty()
	}
	return nil
}

// Replace takes a complete list. Values that are as they were keep their pointers.
func (t *table[V]) Replace(list []any, _ string) error {
	t.mu.Lock()
	defer t.mu.Unlock()
	before := t.items
	t.items, t.problems, t.notes, t.own = make(map[key]*V, len(list)), map[key][]string{}, map[key]string{}, map[key]*V{}
	for _, obj := range list {
		p, ok := t.read(obj)
		if !ok {
			continue
		}
		if have := before[p.key]; have != nil && p.value != nil && t.kind.same(have, p.value) {
			p.value = have
		}
		t.keepAll(p)
	}
	for k, have := range before {
		t.bury(have, t.items[k])
	}
	clear(t.changed)
	t.sorted = t.inOrder(t.items)
	t.synced = true
	t.dirty()
	return nil
}

// bury keeps a value that has been taken away, or replaced by that of another object, for who may still need it.
func (t *table[V]) bury(have, now *V) {
	if have != nil && t.keep != nil && t.keep(have) && (now == nil || t.kind.uid(have) != t.kind.uid(now)) {
		t.gone[t.kind.uid(have)] = have
	}
}

// put stores one and tells whether that changed anything.
func (t *table[V]) put(p parsed[V]) bool {
	have := t.items[p.key]
	news := !slices.Equal(t.problems[p.key], p.problems) || t.notes[p.key] != p.note
	switch {
	case have == nil && p.value == nil:
	case have != nil && p.value != nil && t.kind.same(have, p.value):
		p.value = have
	default:
		t.bury(have, p.value)
		t.changed[p.key] = struct{}{}
		news = true
	}
	t.keepAll(p)
	return news
}

// keepAll stores what there is of one.
func (t *table[V]) keepAll(p parsed[V]) {
	set(t.items, p.key, p.value, p.value != nil)
	set(t.own, p.key, p.value, p.value != nil && t.mine != nil && t.mine(p.value))
	set(t.problems, p.key, p.problems, len(p.problems) > 0)
	set(t.notes, p.key, p.note, p.note != "")
}

func set[V any](m map[key]V, k key, v V, keep bool) {
	if keep {
		m[k] = v
	} else {
		delete(m, k)
	}
}

// Resync has nothing to do: there is nobody to tell again.
func (t *table[V]) Resync() error { return nil }

// Transformer makes values of objects as soon as they are decoded, so that a list is never held whole.
func (t *table[V]) Transformer() cache.TransformFunc {
	return func(obj any) (any, error) {
		if _, done := obj.(*slim[V]); done {
			return obj, nil
		}
		if p, ok := t.kind.parse(obj); ok {
			return slimOf(&t.kind, p, obj), nil
		}
		return obj, nil
	}
}

func (t *table[V]) read(obj any) (parsed[V], bool) {
	if s, ok := obj.(*slim[V]); ok {
		return s.parsed(), true
	}
	return t.kind.parse(obj)
}

// forget empties the table, for a kind that is not watched any more.
func (t *table[V]) forget() {
	t.mu.Lock()
	defer t.mu.Unlock()
	clear(t.changed)
	t.items, t.problems, t.notes, t.gone = map[key]*V{}, map[key][]string{}, map[key]string{}, map[string]*V{}
	t.sorted, t.own, t.synced = nil, map[key]*V{}, false
}

// lost gives what is gone and wanted still, and forgets the rest.
func (t *table[V]) lost(wanted func(uid string) bool) map[string]*V {
	t.mu.Lock()
	defer t.mu.Unlock()
	maps.DeleteFunc(t.gone, func(uid string, _ *V) bool { return !wanted(uid) })
	return maps.Clone(t.gone)
}

// aside gives the notes, which are few.
func (t *table[V]) aside() map[key]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.notes)
}

// complaints gives what is wrong with objects.
func (t *table[V]) complaints() map[key][]string {
	t.mu.Lock()
	defer t.mu.Unlock()
	return maps.Clone(t.problems)
}
