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

	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"

	"github.com/weft-cni/weft/subnet/kube"
)

// Record is one Node of the cluster as text: what its annotations and its spec say, right or wrong.
type Record struct {
	Name    string
	UID     string
	Created time.Time
	CIDR    string
	IP      string // public-ip
	MAC     string
	Type    string // backend-type
	VNI     string
	Port    string // backend-port; empty as flannel leaves it
	Data    string // backend-data, in place of what VNI and MAC give
	Managed string // kube-subnet-manager
}

// node renders the record as the API server would hold it.
func (r Record) node(prefix kube.Prefix) *corev1.Node {
	data := r.Data
	if data == "" {
		data = fmt.Sprintf(`{"VNI":%s,"VtepMAC":"%s"}`, r.VNI, r.MAC)
	}
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{
		Name: r.Name, UID: types.UID(r.UID), CreationTimestamp: metav1.NewTime(r.Created), Annotations: map[string]string{},
	}}
	for key, value := range map[string]string{
		"kube-subnet-manager": r.Managed, "backend-type": r.Type, "backend-data": data, "public-ip": r.IP, "backend-port": r.Port,
	} {
		if value != "" {
			n.Annotations[prefix.Key(key)] = value
		}
	}
	if r.CIDR != "" {
		n.Spec.PodCIDR, n.Spec.PodCIDRs = r.CIDR, []string{r.CIDR}
	}
	return n
}

// set changes one field by its name in a script.
func (r *Record) set(key, value string) error {
	fields := map[string]*string{
		"cidr": &r.CIDR, "ip": &r.IP, "mac": &r.MAC, "type": &r.Type, "vni": &r.VNI, "port": &r.Port, "data": &r.Data,
		"managed": &r.Managed,
	}
	field, ok := fields[key]
	if !ok {
		return fmt.Errorf("set %s of node %s: want one of %v", key, r.Name, slices.Sorted(maps.Keys(fields)))
	}
	*field = value
	return nil
}

// Cluster is the API server: the Nodes, who watches them, and whether it can be reached.
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

// put creates a Node, or replaces it by a younger one of the same name.
func (c *Cluster) put(r Record) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.born++
	r.UID = fmt.Sprintf("uid-%d", c.born)
	r.Created = birth.Add(time.Duration(c.born) * time.Second)
	c.records[r.Name] = r
	c.publish()
}

// change edits a Node; one that is not there stays away.
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
func (c *Cluster) announce(name string, a Announcement) {
	c.mu.Lock()
	defer c.mu.Unlock()
	r, ok := c.records[name]
	if !ok || c.away {
		return
	}
	was := r
	r.IP, r.MAC, r.Port, r.VNI = a.IP, a.MAC, a.Port, a.VNI
	r.Type, r.Managed, r.Data = "vxlan", "true", ""
	if r != was {
		c.records[name] = r
		c.publish()
	}
}

// Announcement is what a node says about itself.
type Announcement struct{ IP, MAC, Port, VNI string }

func (c *Cluster) remove(name string) {
	c.mu.Lock()
	defer c.mu.Unlock()
	delete(c.records, name)
	c.publish()
}

// leave takes the API server away, or brings it back with all that happened meanwhile.
func (c *Cluster) leave(away bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.away = away
	c.publish()
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

// view is what a watcher sees, oldest Node first.
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
