// Package scenario plays stories of whole clusters: a peer joins, leaves, changes its MAC; a device is deleted; the
// API goes away. The scripts are the txtar files in stories, one for each case of the field reports. The same script
// runs on fake kernels, where an hour takes no time, and on real network namespaces.
package scenario

import (
	"cmp"
	"fmt"
	"maps"
	"slices"
	"sync"
	"time"

	"github.com/weft-cni/weft/subnet/kube"
)

// cluster is the API server of a world.
type cluster interface {
	editor
	viewer
}

// editor changes Nodes.
type editor interface {
	// put creates a Node, or replaces it by a younger one of the same name.
	put(r Record) error
	// change edits a Node; one that is not there stays away.
	change(name string, edit func(*Record) error) error
	// remove deletes a Node; one that is not there is no error.
	remove(name string) error
	// leave takes the API server away from the nodes, or brings it back with all that happened meanwhile.
	leave(away bool) error
}

// viewer tells of Nodes.
type viewer interface {
	// record is a Node as it is now.
	record(name string) (Record, bool)
	// view is what the nodes see: the Nodes as they were when the API went away, if it is.
	view() []Record
}

// Cluster is an API server in memory: the Nodes, who watches them, and whether it can be reached.
type Cluster struct {
	mu      sync.Mutex // guards everything below
	records map[string]Record
	served  map[string]Record // what watchers see: the records, frozen while the API is away
	born    int               // Nodes made so far: each is a second younger than the one before
	away    bool
	sources map[*Source]struct{}
}

func newCluster() *Cluster {
	return &Cluster{records: map[string]Record{}, served: map[string]Record{}, sources: map[*Source]struct{}{}}
}

// The first Node of a story is created at this time.
var birth = time.Date(2026, 1, 1, 0, 0, 0, 0, time.UTC)

func (c *Cluster) put(r Record) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.born++
	r.UID = fmt.Sprintf("uid-%d", c.born)
	r.Created = birth.Add(time.Duration(c.born) * time.Second)
	c.records[r.Name] = r
	c.publish()
	return nil
}

func (c *Cluster) change(name string, edit func(*Record) error) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.records[name]
	if !ok {
		return fmt.Errorf("change node %s: it is not in the cluster", name)
	}
	if err := edit(&r); err != nil {
		return err
	}
	c.records[name] = r
	c.publish()
	return nil
}

// announce is what a running node does to its own Node; without API, or without a Node, it is in vain.
func (c *Cluster) announce(name string, annotations map[string]string, prefix kube.Prefix) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.records[name]
	if !ok || c.away {
		return
	}
	was := r
	r.read(func(key string) string { return annotations[prefix.Key(key)] })
	if r != was {
		c.records[name] = r
		c.publish()
	}
}

func (c *Cluster) remove(name string) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.records, name)
	c.publish()
	return nil
}

func (c *Cluster) leave(away bool) error {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = away
	c.publish()
	return nil
}

// publish tells the watchers. The caller holds the lock.
func (c *Cluster) publish() {
	if c.away {
		return
	}
	c.served = maps.Clone(c.records)
	for s := range c.sources {
		select {
		case s.changed <- struct{}{}:
		default:
		}
	}
}

func (c *Cluster) view() []Record {
	c.mu.Lock()
	defer c.mu.Unlock()
	return slices.SortedFunc(maps.Values(c.served), func(a, b Record) int { return cmp.Compare(a.UID, b.UID) })
}

func (c *Cluster) record(name string) (Record, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.records[name]
	return r, ok
}
