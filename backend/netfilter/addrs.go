package netfilter

import (
	"fmt"
	"net"
	"net/netip"
)

// Addresses lists the addresses of the namespace's own devices.
func (h Host) Addresses() (map[netip.Addr]bool, error) {
	out := map[netip.Addr]bool{}
	err := h.Inside(func() error {
		list, err := net.InterfaceAddrs()
		for _, a := range list {
			if p, ok := a.(*net.IPNet); ok {
				addr, _ := netip.AddrFromSlice(p.IP)
				out[addr.Unmap()] = true
			}
		}
		return err
	})
	if err != nil {
		return nil, fmt.Errorf("list the node's addresses: %w", err)
	}
	return out, nil
}
