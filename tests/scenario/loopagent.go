package scenario

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"slices"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
	"github.com/weft-cni/weft/tests/lane"
)

// loopAgent is the daemon's data plane as one loop of this process, put together from the daemon's own parts.
type loopAgent struct {
	name    string
	lane    lane.Lane
	cluster *Cluster
	watch   func() *Source
	box     *counted

	settings Settings
	mac      [2]string
	under    [2]choice // made last
	source   *Source
	loop     *backend.Loop
	stop     context.CancelFunc
	ended    chan struct{}
	ways     mesh.Ways                        // of the last good turn
	kept     mesh.Kept                        // of the last good turn
	want     kernel.State                     // of the last good turn
	failure  atomic.Pointer[string]           // of the last turn
	problems atomic.Pointer[[]subnet.Problem] // of the last plan
}

// choice is what counts of a choice of the underlay.
type choice struct {
	Link            string
	Index, MTU      int
	Addr, Announced netip.Addr
}

// errNoSnapshot is why a daemon waits that was started without an API server.
var errNoSnapshot = errors.New("no snapshot yet")

func (a *loopAgent) start(ctx context.Context, settings Settings, mac [2]string) error {
	a.settings, a.mac, a.under = settings, mac, [2]choice{}
	a.ways, a.kept, a.want = nil, nil, kernel.State{}
	ctx, a.stop = context.WithCancel(ctx)
	events, err := a.box.Watch(ctx)
	if err != nil {
		a.stop()
		return fmt.Errorf("watch the kernel of %s: %w", a.name, err)
	}
	a.source = a.watch()
	a.loop = &backend.Loop{Name: a.name, Sync: a.sync, Settle: 10 * time.Millisecond, Log: slog.New(slog.DiscardHandler), OnResult: a.result}
	a.ended = make(chan struct{})
	for _, c := range []<-chan struct{}{events.Ours, events.Host, a.source.Changed()} {
		go pokeOn(ctx, c, a.loop)
	}
	go func() {
		defer close(a.ended)
		_ = a.loop.Run(ctx) // nil unless it has no Sync
	}()
	return nil
}

// pokeOn pokes a loop for each value of a channel.
func pokeOn(ctx context.Context, c <-chan struct{}, loop *backend.Loop) {
	for {
		select {
		case <-ctx.Done():
			return
		case <-c:
			loop.Poke()
		}
	}
}

func (a *loopAgent) kill() {
	a.stop()
	<-a.ended
	a.source.close()
}

// turn pokes the loop and waits until it has turned.
func (a *loopAgent) turn(w *World) error {
	before := a.loop.LastTurn()
	a.loop.Poke()
	return w.within(func() error {
		if a.loop.LastTurn().After(before) {
			return nil
		}
		return fmt.Errorf("%s takes no turn", a.name)
	})
}

// sees implements agent.
func (a *loopAgent) sees() bool {
	a.source.mu.Lock()
	defer a.source.mu.Unlock()
	return a.source.synced
}

// complains implements agent: by the snapshot's problems, and by the last turn's error.
func (a *loopAgent) complains(about, word string) bool {
	snapshot, _ := a.source.Snapshot()
	problems := snapshot.Problems
	if planned := a.problems.Load(); planned != nil {
		problems = slices.Concat(problems, *planned)
	}
	for _, p := range problems {
		if p.Node == about && (p.Reason == word || word == "") {
			return true
		}
	}
	text := a.failure.Load()
	return text != nil && word != "" && strings.Contains(*text, about) && strings.Contains(*text, word)
}

// result keeps what the last turn failed with.
func (a *loopAgent) result(err error, _ time.Duration) {
	text := fmt.Sprint(err)
	a.failure.Store(&text)
}

// sync is one turn of the data plane: choose the underlay, plan, compare, apply, announce.
func (a *loopAgent) sync(ctx context.Context) error {
	snapshot, ok := a.source.Snapshot()
	if !ok {
		return errNoSnapshot
	}
	host, err := a.box.Host(ctx)
	if err != nil {
		return err
	}
	have, err := a.box.Dump(ctx)
	if err != nil {
		return err
	}
	errs := a.choose(snapshot.Self, host)
	if a.under == [2]choice{} {
		return backend.Join(errs) // none when it waits for a pod CIDR: what is there stays
	}
	cfg, err := a.config(snapshot.Self, have)
	if err != nil {
		return backend.Join(append(errs, err))
	}
	plan, err := mesh.Plan(mesh.Input{
		Config: cfg, Snapshot: snapshot, Host: host, Have: have, Last: a.ways, Kept: a.kept, Now: a.source.now(),
	})
	if err != nil {
		return backend.Join(append(errs, err))
	}
	a.problems.Store(&plan.Problems)
	a.announce(cfg, plan)
	applied := a.apply(ctx, kernel.DiffSince(a.want, have, plan.Want), snapshot.Self)
	if len(applied) == 0 {
		a.ways, a.kept, a.want = plan.Ways, plan.Kept, plan.Want
	}
	if plan.Again > 0 {
		time.AfterFunc(plan.Again, a.loop.Poke)
	}
	return backend.Join(append(errs, applied...))
}

// apply carries out the changes. What is there of a family that has no underlay now is not taken away.
func (a *loopAgent) apply(ctx context.Context, ops []kernel.Op, self subnet.Self) []error {
	for _, f := range a.lane.Families() {
		if self.PodCIDRs[f].IsValid() && a.under[f] == (choice{}) {
			ops = kernel.WithoutPruning(ops, f)
		}
	}
	var errs []error
	for _, op := range ops {
		if op.Guard && len(errs) > 0 {
			continue // pods' packets would have nowhere to go
		}
		if err := a.box.Apply(ctx, op); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op, err))
		}
	}
	return errs
}

// choose finds the underlay of each family that the node has a part in. One that has none now keeps what it had, as long as
// that device is there, and stands in nobody's way.
func (a *loopAgent) choose(self subnet.Self, host kernel.Host) []error {
	var errs []error
	for _, f := range a.lane.Families() {
		if !self.PodCIDRs[f].IsValid() {
			a.under[f] = choice{}
			continue
		}
		under, err := underlay.Pick(underlay.Options{
			Family: f, Iface: []string{underlayDevice}, Overwrite: self.Overwrite[f], PodNetworks: []netip.Prefix{lane.Network(f)},
		}, host)
		if err == nil {
			a.under[f] = choice{under.Link, under.Index, under.MTU, under.Addr, under.Announced}
			continue
		}
		errs = append(errs, err)
		if !slices.ContainsFunc(host.Links, func(l kernel.HostLink) bool { return l.Index == a.under[f].Index }) {
			a.under[f] = choice{}
		}
	}
	return errs
}

// config is the own end of the data plane, as the daemon puts it together.
func (a *loopAgent) config(self subnet.Self, have kernel.State) (mesh.Config, error) {
	former := append(self.Also.List(), self.BackendType)
	for _, l := range have.Links {
		if l.Kind == kernel.KindVXLAN {
			former = append(former, subnet.VXLAN)
		}
	}
	kind := a.settings.kind()
	cfg := mesh.Config{
		Kind: kind, Former: subnet.KindsOf(former...) &^ subnet.KindsOf(kind, subnet.Alloc), DirectRouting: a.settings.Direct,
		MTU: a.settings.MTU, Networks: networks(a.lane), VXLAN: mesh.VXLAN{VNI: a.settings.VNI, Port: a.settings.Port},
	}
	for _, f := range a.lane.Families() {
		u := a.under[f]
		if !u.Addr.IsValid() {
			continue
		}
		mac, err := subnet.ParseMAC(a.mac[f])
		if err != nil {
			return cfg, err
		}
		cfg.VXLAN.MACs[f] = mac
		cfg.Ends[f] = mesh.End{PodCIDR: self.PodCIDRs[f], Local: u.Addr, Parent: u.Index, ParentName: u.Link, UnderlayMTU: u.MTU}
	}
	return cfg, nil
}

// announce says what the node has now.
func (a *loopAgent) announce(cfg mesh.Config, plan mesh.Result) {
	said := kube.Announcement{
		BackendType: cfg.Kind, Also: plan.Also, VNI: cfg.VXLAN.VNI, Port: cfg.VXLAN.Port, MAC: cfg.VXLAN.MACs,
	}
	for _, f := range a.lane.Families() {
		if u := a.under[f]; u.Addr.IsValid() {
			said.PublicIP[f] = u.Announced
		}
	}
	a.cluster.announce(a.name, said.Annotations(a.source.rules.Prefix, [2]netip.Addr{}), a.source.rules.Prefix)
}
