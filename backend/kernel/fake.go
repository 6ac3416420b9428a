package kernel

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// Fake is a kernel for tests, with the kernel's manners as far as weft meets them: what exists cannot be made again,
// what hangs on a device goes with it, routes vanish when their device goes down or loses its last address, a new MAC
// flushes the neighbours, an MTU cannot exceed the underlay's. The conformance test holds it to the real one.
//
// It starts as a host with lo and eth0 (index 2, MTU 1500, 192.168.50.1/24, fd00:50::1/64).
type Fake struct {
	mu       sync.Mutex // guards everything below
	state    State
	host     Host
	index    int // last one given
	ops      []Op
	ranges   map[WGKey][]netip.Prefix // of WireGuard peers, beyond those that the state has room for
	applies  int
	faults   map[int]error // by number of the Apply
	dumpErrs []error
	watchers []watcher
}

type watcher struct{ ours, host chan struct{} }

// NewFake returns a host without anything of ours.
func NewFake() *Fake {
	return &Fake{state: New(), host: fakeHost(), index: 100, faults: map[int]error{}, ranges: map[WGKey][]netip.Prefix{}}
}

// Dump returns what the kernel holds of ours.
func (f *Fake) Dump(ctx context.Context) (State, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return State{}, err
	}
	if len(f.dumpErrs) > 0 {
		err := f.dumpErrs[0]
		f.dumpErrs = f.dumpErrs[1:]
		return State{}, err
	}
	s := f.state.Clone()
	s.Read = time.Now()
	for _, r := range f.host.Routes {
		key := RouteKey{Dst: r.Dst, Metric: r.Metric}
		if _, taken := s.Foreign[key]; r.ByHand && len(r.Hops) > 0 && !taken {
			link, _ := f.parent(r.Hops[0].Index)
			s.Foreign[key] = Route{Link: link.Name, Via: r.Hops[0].Via, Type: r.Type, More: len(r.Hops) - 1}
		}
	}
	return s, nil
}

// Apply carries out one Op, or fails as FailApply said.
func (f *Fake) Apply(ctx context.Context, op Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	if err := ctx.Err(); err != nil {
		return err
	}
	f.applies++
	err := f.faults[f.applies]
	if err == nil {
		err = f.apply(op)
	}
	if err != nil {
		return fmt.Errorf("%s: %w", op, err)
	}
	f.ops = append(f.ops, op)
	return nil
}

// Meddle applies an Op as somebody else: it is not counted, not listed by Ops and never made to fail.
func (f *Fake) Meddle(op Op) error {
	f.mu.Lock()
	defer f.mu.Unlock()
	return f.apply(op)
}

// Edit changes what the kernel holds of ours at will, to make states that Apply does not make: flannel's routes,
// duplicate entries.
func (f *Fake) Edit(change func(s *State)) {
	f.mu.Lock()
	defer f.mu.Unlock()
	change(&f.state)
	f.poke(changeOurs)
}

// Ops returns the Ops that succeeded since the last call.
func (f *Fake) Ops() []Op {
	f.mu.Lock()
	defer f.mu.Unlock()
	ops := f.ops
	f.ops = nil
	return ops
}

// FailApply makes the n-th Apply from now on fail with an error; 1 is the next one.
func (f *Fake) FailApply(n int, err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.faults[f.applies+n] = err
}

// FailDump makes the next Dump fail; called several times, the next ones.
func (f *Fake) FailDump(err error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	f.dumpErrs = append(f.dumpErrs, err)
}

// Watch tells about changes until ctx ends, as Conn's does.
func (f *Fake) Watch(ctx context.Context) (Changes, error) {
	f.mu.Lock()
	defer f.mu.Unlock()
	w := watcher{ours: make(chan struct{}, 1), host: make(chan struct{}, 1)}
	f.watchers = append(f.watchers, w)
	context.AfterFunc(ctx, func() {
		f.mu.Lock()
		defer f.mu.Unlock()
		f.watchers = slices.DeleteFunc(f.watchers, func(o watcher) bool { return o == w })
	})
	return Changes{Ours: w.ours, Host: w.host}, nil
}

func (f *Fake) poke(c change) {
	for _, w := range f.watchers {
		if c == changeOurs {
			poke(w.ours)
		} else {
			poke(w.host)
		}
	}
}

// apply changes the state as the kernel would.
func (f *Fake) apply(op Op) error {
	defer f.poke(changeOurs)
	switch op.Kind {
	case LinkAdd:
		return f.addLink(op)
	case LinkSet:
		return f.setLink(op)
	case LinkDel:
		f.delLink(op.Name)
		return nil
	case LinkMove:
		return f.moveLink(op)
	case AddrSet, AddrDel:
		return f.applyAddr(op)
	case FDBSet, FDBDel, NeighSet, NeighDel:
		return f.applyEntry(op)
	case PeerSet:
		return f.setPeer(op)
	case RangeDel:
		f.takeRanges(op.PeerKey.Link, []netip.Prefix{op.Range})
		return nil
	case PeerDel:
		delete(f.state.Peers, op.PeerKey)
		delete(f.state.Handshakes, op.PeerKey)
		return nil
	case RouteSet:
		return f.setRoute(op)
	case RouteDel:
		if op.Displaces() {
			f.host.Routes = slices.DeleteFunc(f.host.Routes, func(r HostRoute) bool { return r.ByHand && r.Dst == op.Key.Dst && r.Metric == op.Key.Metric })
			return nil
		}
		if have := f.state.Routes[op.Key]; have.Link == op.Route.Link && have.Via == op.Route.Via {
			delete(f.state.Routes, op.Key)
		}
		return nil
	}
	return unix.EINVAL
}

func (f *Fake) applyAddr(op Op) error {
	_, ok := f.state.Links[op.Addr.Link]
	if op.Kind == AddrSet {
		if !ok {
			return unix.ENODEV
		}
		f.state.Addrs[op.Addr] = struct{}{}
		return nil
	}
	if _, ok := f.state.Addrs[op.Addr]; ok {
		delete(f.state.Addrs, op.Addr)
		f.lastAddrGone(op.Addr)
	}
	return nil
}

func (f *Fake) applyEntry(op Op) error {
	link := op.Neigh.Link + op.FDBKey.Link // one of them is empty
	if _, ok := f.state.Links[link]; !ok && (op.Kind == FDBSet || op.Kind == NeighSet) {
		return unix.ENODEV
	}
	switch op.Kind {
	case FDBSet:
		f.setFDB(op)
	case FDBDel:
		delete(f.state.FDB, op.FDBKey)
	case NeighSet:
		f.state.Neighs[op.Neigh] = op.MAC
	case NeighDel:
		delete(f.state.Neighs, op.Neigh)
	}
	return nil
}

func (f *Fake) setFDB(op Op) {
	dest := op.FDB
	if dest.Port == f.state.Links[op.FDBKey.Link].Port {
		dest.Port = 0
	}
	if op.Replace {
		dest.More = f.state.FDB[op.FDBKey].More // a replace changes the first destination only
	}
	f.state.FDB[op.FDBKey] = dest
}
