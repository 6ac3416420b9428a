package daemon

import (
	"context"
	"log/slog"
	"net/netip"
	"reflect"
	"slices"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/traffic"
	"github.com/weft-cni/weft/backend/vxlan"
	"github.com/weft-cni/weft/subnet"
)

// rules is the round of the traffic rules.
type rules struct {
	cfg     Config
	log     *slog.Logger
	manager *traffic.Manager
	metrics *metrics
	told    *told
	warn    func(ctx context.Context, reason, text string) // makes an Event of the own Node
	inForce func(port uint16)                              // is told for which port the rules are in force
	heard   *hearing

	last traffic.Config
}

func (r *rules) sync(ctx context.Context, a *applied) error {
	c := r.config(a)
	result, err := r.manager.Sync(ctx, c)
	drift := reflect.DeepEqual(r.last, c)
	r.metrics.changed(partRules, len(result.Changes), drift)
	if n := len(result.Changes); n > 0 {
		r.log.Info("rules changed", "changes", n, "drift", drift, "first", result.Changes[0])
	}
	r.told.list("traffic", result.Problems)
	for _, p := range result.Problems {
		r.warn(ctx, "TrafficBlocked", p)
	}
	r.heard.failing.Store(err != nil)
	if err != nil {
		return err
	}
	r.last = c
	r.heard.sealed.Store(&c.Sealed)
	r.inForce(c.Port)
	return nil
}

// config is what the rules depend on.
func (r *rules) config(a *applied) traffic.Config {
	t := r.cfg.Traffic
	c := traffic.Config{
		Masquerade: t.Masquerade, RandomFully: t.RandomFully, Exclude: slices.Clone(t.Exclude),
		Forward: t.Forward, ForwardPlace: traffic.Place(t.ForwardPlace), Port: a.vxlanPort(), Mixed: a.Former, AntiSpoof: t.AntiSpoof,
	}
	for _, l := range a.Plan.Want.Links {
		c.IPIP = c.IPIP || l.Kind == kernel.KindIPIP || l.Kind == kernel.KindIP6Tnl
		for _, f := range subnet.Families() {
			if port := a.Net.WireGuard.Conf.Port(f); l.Kind == kernel.KindWireGuard && a.uses(f) {
				c.Listens[f] = []uint16{port}
			}
		}
	}
	if c.Sealed.Ranges = a.Plan.Encrypted; len(a.Plan.Encrypted[subnet.IPv4])+len(a.Plan.Encrypted[subnet.IPv6]) > 0 {
		// A peer that we reach by WireGuard already may still send by the tunnel of before, as long as that is there.
		c.Sealed.Devices = slices.Sorted(slices.Values(a.Plan.Devices))
	}
	for _, f := range subnet.Families() {
		if !a.uses(f) {
			continue
		}
		c.Nets[f] = traffic.Net{Network: a.Conf.Networks[f], PodCIDR: a.Snapshot.Self.PodCIDRs[f], KeepSource: !t.masquerades(f)}
		for _, p := range a.Snapshot.Peers {
			port := uint16(0) // of a peer that sends IP in IP
			if p.Speaks(subnet.VXLAN) {
				port = vxlan.Config{SilentPort: a.Net.VXLAN.SilentPort}.PeerPort(p)
			}
			if e := p.Endpoints[f]; e.PublicIP.IsValid() && (port != 0 || p.Speaks(subnet.IPIP)) {
				c.Peers = append(c.Peers, netip.AddrPortFrom(e.PublicIP, port))
			}
		}
	}
	if t.AntiSpoof {
		c.Inner = innerOf(a)
	}
	if t.ExcludeNodes {
		for _, addr := range a.Snapshot.NodeAddrs {
			c.Exclude = append(c.Exclude, netip.PrefixFrom(addr, addr.BitLen()))
		}
	}
	return c
}

// innerOf are the tunnels that have no keys, and whose pods may be heard through them. WireGuard knows that by itself.
func innerOf(a *applied) (out traffic.Inner) {
	for name, l := range a.Plan.Want.Links {
		if l.Kind != kernel.KindWireGuard {
			out.Devices = append(out.Devices, name)
		}
	}
	slices.Sort(out.Devices)
	for _, f := range subnet.Families() {
		for _, p := range a.Snapshot.Peers {
			if pods := p.Endpoints[f].PodCIDR; pods.IsValid() && (p.Speaks(subnet.VXLAN) || p.Speaks(subnet.IPIP)) {
				out.Ranges[f] = append(out.Ranges[f], pods)
			}
		}
	}
	return out
}
