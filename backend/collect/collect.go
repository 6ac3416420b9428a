// Package collect is the agent's garbage collector of addresses: it frees reservations that no living pod holds, puts
// back those that a living pod lost, and clears away what dead pods left on disk.
//
// No runtime calls the CNI verb GC on its own, and a power cut delivers no DEL. So the agent looks for itself, at its
// start and every minute: at what host-local, the CNI plugin and libcni wrote down, and at which addresses live in the
// namespaces of this node. What cannot be seen counts as in use.
package collect

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"path/filepath"
	"time"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/ipam"
)

// Options say where things are. Zero values are the usual places.
type Options struct {
	Network   string         // name of the CNI network: "cbr0"
	PodCIDRs  []netip.Prefix // of this node; what lives outside is not ours to reserve
	ClusterID string         // UID of kube-system; empty when not known

	Networks string // host-local's folder
	Records  string // the CNI plugin's folder
	Results  string // libcni's folder
	NetnsDir string // where the runtime keeps namespaces
	State    string // file in which a pass remembers its boot and cluster
	Proc     string // /proc

	// Foreign says that the books are not host-local's, or are kept where we do not see them: then no reservation is looked at,
	// and none is put back.
	Foreign bool

	Bridge string // of the stock delegate: "cni0"
	Kernel Kernel
	Files  subnet.Writer // what State is written with
}

// Kernel is what a pass asks of the kernel; *kernel.Conn is one.
type Kernel interface {
	// Pods reads the living namespaces.
	Pods(dir string) (kernel.Pods, error)
	// PruneBridge removes a gateway address of ours that belongs to a range the node no longer has.
	PruneBridge(name string, keep []netip.Prefix, pods kernel.Pods) ([]netip.Prefix, error)
}

// Change is one reservation that was freed or put back.
type Change struct {
	Addr  netip.Addr
	Owner ipam.Owner // zero when the file named none
	Why   string
}

// Report is what a pass did.
type Report struct {
	Freed    []Change
	Restored []Change
	Records  []string       // records of the CNI plugin that were removed
	Results  []string       // cached results that were removed
	Gateways []netip.Prefix // old addresses that were taken off the bridge
	Kept     int            // reservations that stand
	Problems []string       // what a person should look at: two pods with one address, namespaces that cannot be seen
}

// String is one line for the log; empty when the pass did nothing.
func (r Report) String() string {
	if len(r.Freed)+len(r.Restored)+len(r.Records)+len(r.Results)+len(r.Gateways) == 0 {
		return ""
	}
	s := fmt.Sprintf("freed %d reservations, restored %d, kept %d; removed %d records and %d cached results of dead pods",
		len(r.Freed), len(r.Restored), r.Kept, len(r.Records), len(r.Results))
	if len(r.Gateways) > 0 {
		s += fmt.Sprintf("; took %v off the bridge", r.Gateways)
	}
	return s
}

func (o Options) withDefaults() Options {
	set := func(field *string, value string) {
		if *field == "" {
			*field = value
		}
	}
	set(&o.Network, "cbr0")
	set(&o.Networks, ipam.DefaultNetworks)
	set(&o.Records, ipam.DefaultRecords)
	set(&o.Results, ipam.DefaultResults)
	set(&o.NetnsDir, "/run/netns")
	set(&o.State, "/var/lib/weft/collect.json")
	set(&o.Proc, "/proc")
	set(&o.Bridge, "cni0")
	return o
}

// gateways are the addresses that the bridge should have.
func (o Options) gateways() []netip.Prefix {
	var out []netip.Prefix
	for _, p := range o.PodCIDRs {
		out = append(out, netip.PrefixFrom(p.Masked().Addr().Next(), p.Bits()))
	}
	return out
}

func (o Options) store() ipam.Store     { return ipam.Store{Dir: filepath.Join(o.Networks, o.Network)} }
func (o Options) records() ipam.Records { return ipam.Records{Dir: o.Records} }
func (o Options) results() ipam.Results { return ipam.Results{Dir: o.Results} }

// Run makes one pass. On an error part of it may have been done; the next pass goes on from there.
func Run(ctx context.Context, opts Options) (Report, error) {
	opts = opts.withDefaults()
	if opts.Kernel == nil {
		return Report{}, errors.New("collect: no kernel to see living pods in")
	}
	boot, err := readBoot(opts)
	if err != nil {
		return Report{}, err
	}
	seen, err := look(opts, boot)
	if err != nil {
		return Report{}, err
	}
	p := decide(seen)
	report, err := p.apply(ctx, opts)
	var pruneErr error
	report.Gateways, pruneErr = opts.Kernel.PruneBridge(opts.Bridge, opts.gateways(), seen.pods)
	if err := errors.Join(err, pruneErr); err != nil {
		return report, err // the boot is not remembered: what is left of the one before is tried again as such
	}
	return report, boot.remember(opts)
}

// look reads the node. The namespaces come first: a pod that is deleted meanwhile has then lost its reservation but
// still seems alive, which costs nothing; the other way round a pod that is added would have an address and seem dead.
func look(opts Options, boot boot) (view, error) {
	v := view{
		network: opts.Network, cidrs: opts.PodCIDRs, netnsDir: opts.NetnsDir, foreign: opts.Foreign, boot: boot, now: time.Now(),
		recordTypes: map[string]recordInfo{},
	}
	var err error
	if v.pods, err = opts.Kernel.Pods(opts.NetnsDir); err != nil {
		return v, fmt.Errorf("see living pods: %w", err)
	}
	if v.results, v.unreadable, err = opts.results().List(); err != nil {
		return v, err
	}
	if v.records, err = opts.records().List(); err != nil {
		return v, err
	}
	for _, e := range v.records {
		rec, err := opts.records().ReadName(e.Name)
		v.recordTypes[e.Name] = recordInfo{network: rec.Network, delegate: rec.Type, ipam: rec.IPAM.Type, broken: err != nil}
	}
	if !opts.Foreign {
		v.reservations, err = opts.store().List()
	}
	return v, err
}
