package scenario

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"strings"
	"sync/atomic"
	"time"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/backend/vxlan"
	"github.com/weft-cni/weft/subnet"
)

// loopAgent is the daemon's data plane as one loop of this process, put together from the daemon's own parts.
type loopAgent struct {
	name    string
	cluster *Cluster
	watch   func() *Source
	box     *counted

	settings Settings
	mac      string
	source   *Source
	loop     *backend.Loop
	stop     context.CancelFunc
	ended    chan struct{}
	failure  atomic.Pointer[string] // of the last turn
}

// errNoSnapshot is why a daemon waits that was started without an API server.
var errNoSnapshot = errors.New("no snapshot yet")

func (a *loopAgent) start(ctx context.Context, settings Settings, mac string) error {
	a.settings, a.mac = settings, mac
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
	for _, p := range snapshot.Problems {
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
	under, err := underlay.Pick(underlay.Options{
		Iface: []string{underlayDevice}, Overwrite: snapshot.Self.Overwrite[family], PodNetworks: []netip.Prefix{network},
	}, host)
	if err != nil {
		return err
	}
	a.cluster.announce(a.name, Announcement{
		IP: under.Announced.String(), MAC: a.mac,
		Port: strconv.Itoa(int(a.settings.Port)), VNI: strconv.Itoa(int(a.settings.VNI)),
	})
	if !snapshot.Self.PodCIDRs[family].IsValid() {
		return nil // waiting for a pod CIDR: what is there stays
	}
	want, err := a.plan(snapshot, under)
	if err != nil {
		return err
	}
	have, err := a.box.Dump(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, op := range kernel.Diff(have, want) {
		if op.Guard && len(errs) > 0 {
			continue // pods' packets would have nowhere to go
		}
		if err := a.box.Apply(ctx, op); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op, err))
		}
	}
	return backend.Join(errs)
}

func (a *loopAgent) plan(snapshot subnet.Snapshot, under underlay.Underlay) (kernel.State, error) {
	mac, err := subnet.ParseMAC(a.mac)
	if err != nil {
		return kernel.State{}, err
	}
	cfg := vxlan.Config{
		VNI: a.settings.VNI, Port: a.settings.Port, MTU: a.settings.MTU, Networks: [2]netip.Prefix{family: network},
	}
	cfg.VTEPs[family] = vxlan.VTEP{
		PodCIDR: snapshot.Self.PodCIDRs[family], Local: under.Addr, Parent: under.Index, ParentName: under.Link,
		UnderlayMTU: under.MTU, MAC: mac,
	}
	return vxlan.Plan(cfg, snapshot)
}
