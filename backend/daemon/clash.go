package daemon

import (
	"errors"
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/underlay"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
)

// cloned tells whether the MAC is another node's: one that an older node announces besides us, or one that we are about to
// announce. A machine under a new name has both MAC and address of its old Node, and keeps them.
func cloned(mac subnet.MAC, announced netip.Addr, f subnet.Family, s subnet.Snapshot) bool {
	if s.Self.MAC[f] == mac {
		return kube.YieldsMAC(s, mac)
	}
	return slices.ContainsFunc(s.Peers, func(p subnet.Peer) bool {
		return p.Endpoints[f].MAC == mac && p.Endpoints[f].PublicIP != announced
	})
}

// shared tells that another node announces our address, unless that was asked for.
func (p *plane) shared(a applied) error {
	if p.cfg.Iface.AllowShared {
		return nil
	}
	var errs []error
	for _, f := range subnet.Families() {
		errs = append(errs, underlay.Duplicate(a.Underlay[f].Announced, a.Snapshot))
	}
	return errors.Join(errs...)
}

// announcedBefore tells whether this node announces the address already.
func announcedBefore(a applied) bool {
	for _, f := range subnet.Families() {
		if u := a.Underlay[f]; u.Announced.IsValid() && a.Snapshot.Self.PublicIP[f] != u.Announced {
			return false
		}
	}
	return true
}

// overlaps tells of devices of the host inside the pod network.
func overlaps(a applied, host kernel.Host) error {
	var own []netip.Prefix
	for _, p := range a.Snapshot.Self.PodCIDRs {
		if p.IsValid() {
			own = append(own, p)
		}
	}
	return underlay.Overlaps(networks(a.Conf), own, host)
}
