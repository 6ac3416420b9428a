package scenario

import (
	"context"
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"strconv"
	"time"

	"github.com/weft-cni/weft/backend"
	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/backend/vxlan"
	"github.com/weft-cni/weft/subnet"
)

// Machine is one node: a host, and the daemon's data-plane loop on it while it is alive.
type Machine struct {
	name     string
	box      *counted
	settings Settings
	mac      string // of its VXLAN device
	counted  int64  // writes at the last "synced"
	wrote    int64  // writes between the last two
	source   *Source
	loop     *backend.Loop
	stop     context.CancelFunc // nil while the daemon is dead
	ended    chan struct{}
}

// errNoSnapshot is why a daemon waits that was started without an API server.
var errNoSnapshot = errors.New("no snapshot yet")

// start brings the daemon up: the loop, and what pokes it.
func (m *Machine) start(ctx context.Context, source *Source) error {
	ctx, m.stop = context.WithCancel(ctx)
	events, err := m.box.Watch(ctx)
	if err != nil {
		m.stop()
		return fmt.Errorf("watch the kernel of %s: %w", m.name, err)
	}
	m.source = source
	m.loop = &backend.Loop{Name: m.name, Sync: m.sync, Settle: 10 * time.Millisecond, Log: slog.New(slog.DiscardHandler)}
	m.ended = make(chan struct{})
	for _, c := range []<-chan struct{}{events.Ours, events.Host, source.Changed()} {
		go pokeOn(ctx, c, m.loop)
	}
	loop := m.loop
	go func() {
		defer close(m.ended)
		_ = loop.Run(ctx) // nil unless it has no Sync
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

// kill ends the daemon at once and leaves everything as it is.
func (m *Machine) kill() {
	if m.stop == nil {
		return
	}
	m.stop()
	<-m.ended
	m.source.close()
	m.stop = nil
}

func (m *Machine) alive() bool { return m.stop != nil }

// sync is one turn of the data plane: choose the underlay, plan, compare, apply, announce.
func (m *Machine) sync(ctx context.Context) error {
	snapshot, ok := m.source.Snapshot()
	if !ok {
		return errNoSnapshot
	}
	host, err := m.box.Host(ctx)
	if err != nil {
		return err
	}
	under, err := underlay.Pick(underlay.Options{
		Iface: []string{underlayDevice}, PodNetworks: []netip.Prefix{network},
	}, host)
	if err != nil {
		return err
	}
	m.source.cluster.announce(m.name, Announcement{
		IP: under.Announced.String(), MAC: m.mac,
		Port: strconv.Itoa(int(m.settings.Port)), VNI: strconv.Itoa(int(m.settings.VNI)),
	})
	if !snapshot.Self.PodCIDRs[family].IsValid() {
		return nil // waiting for a pod CIDR: what is there stays
	}
	want, err := m.plan(snapshot, under)
	if err != nil {
		return err
	}
	have, err := m.box.Dump(ctx)
	if err != nil {
		return err
	}
	var errs []error
	for _, op := range kernel.Diff(have, want) {
		if err := m.box.Apply(ctx, op); err != nil {
			errs = append(errs, fmt.Errorf("%s: %w", op, err))
		}
	}
	return backend.Join(errs)
}

func (m *Machine) plan(snapshot subnet.Snapshot, under underlay.Underlay) (kernel.State, error) {
	mac, err := subnet.ParseMAC(m.mac)
	if err != nil {
		return kernel.State{}, err
	}
	cfg := vxlan.Config{
		VNI: m.settings.VNI, Port: m.settings.Port, MTU: m.settings.MTU, Networks: [2]netip.Prefix{family: network},
	}
	cfg.VTEPs[family] = vxlan.VTEP{
		PodCIDR: snapshot.Self.PodCIDRs[family], Local: under.Addr, Parent: under.Index, ParentName: under.Link,
		UnderlayMTU: under.MTU, MAC: mac,
	}
	return vxlan.Plan(cfg, snapshot)
}
