package traffic

import (
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/backend/netfilter"
	"github.com/weft-cni/weft/subnet"
)

// beginAnew forgets connections that began while our rules were away: the kernel decides on translation by the first packet, and
// stays with it as long as somebody sends, which a resolver or a logger does for hours. Where tracking cannot be asked, they
// have to end by themselves.
func (m *Manager) beginAnew(c Config) {
	if list, err := m.host.Connections(c.isBare); err == nil {
		_ = m.host.Forget(list) // what is gone already has begun anew
	}
}

// isBare tells whether a connection keeps a source that masquerade would have changed. One that is answered works as it is.
func (c Config) isBare(x netfilter.Connection) bool {
	src, dst := x.Original.Src, x.Forwarded().Dst
	n := c.Nets[subnet.FamilyOf(src)]
	if !c.Masquerade || !n.Network.IsValid() || n.KeepSource || x.Answered || x.Reply.Dst != src || dst.IsMulticast() {
		return false
	}
	fromPod, toPod := n.Network.Contains(src), n.Network.Contains(dst)
	if toPod {
		return !fromPod && !(n.PodCIDR.IsValid() && n.PodCIDR.Contains(dst))
	}
	return fromPod && !slices.ContainsFunc(c.Exclude, func(p netip.Prefix) bool { return p.Contains(dst) })
}
