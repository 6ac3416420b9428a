package daemon

import (
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

// shared tells that another node announces our address of a family, unless that was asked for.
func (p *plane) shared(u underlay.Underlay, s subnet.Snapshot) error {
	if p.cfg.Iface.AllowShared {
		return nil
	}
	return underlay.Duplicate(u, s)
}

// overlaps tells of devices of the host inside the pod network.
func overlaps(a applied, host kernel.Host) error {
	return underlay.Overlaps(networks(a.Conf), ownRanges(a), host)
}

// ownRanges are the node's pod ranges.
func ownRanges(a applied) []netip.Prefix {
	return slices.DeleteFunc(slices.Clone(a.Snapshot.Self.PodCIDRs[:]), func(p netip.Prefix) bool { return !p.IsValid() })
}
