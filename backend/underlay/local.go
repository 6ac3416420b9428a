package underlay

import (
	"fmt"
	"net/netip"

	"github.com/weft-cni/weft/backend/kernel"
)

// Local knows the addresses that no other machine can be reached by from this host.
type Local struct {
	owners     map[netip.Addr]string // the host's own addresses, and on which device
	broadcasts map[netip.Addr]struct{}
}

// NewLocal reads the addresses of a host.
func NewLocal(host kernel.Host) Local {
	l := Local{owners: map[netip.Addr]string{}, broadcasts: map[netip.Addr]struct{}{}}
	v := newView(Options{}, host)
	for _, a := range host.Addrs {
		name := fmt.Sprintf("if%d", a.Index)
		if link, ok := v.link(a.Index); ok {
			name = link.Name
		}
		l.owners[a.Prefix.Addr()] = name
		if last, ok := broadcast(a.Prefix); ok {
			l.broadcasts[last] = struct{}{}
		}
	}
	return l
}

// Has reports whether an address is the host's own.
func (l Local) Has(a netip.Addr) bool { return l.Owner(a) != "" }

// Owner is the device that has an address; "" for none.
func (l Local) Owner(a netip.Addr) string { return l.owners[a] }

// IsBroadcast reports whether an address is that of all machines on one of the host's networks.
func (l Local) IsBroadcast(a netip.Addr) bool {
	_, ok := l.broadcasts[a]
	return ok
}

// broadcast is the last address of an IPv4 network; networks of two addresses or one have none (RFC 3021), and neither has IPv6.
func broadcast(p netip.Prefix) (netip.Addr, bool) {
	if !p.Addr().Is4() || p.Bits() > 30 {
		return netip.Addr{}, false
	}
	last := p.Masked().Addr().As4()
	for i := p.Bits(); i < 32; i++ {
		last[i/8] |= 0x80 >> (i % 8)
	}
	return netip.AddrFrom4(last), true
}
