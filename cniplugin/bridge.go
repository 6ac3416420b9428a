package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet/ipam"
)

// bridge is the bridge that a delegate of that type keeps; the zero value is none.
type bridge struct {
	name    string
	gateway bool // it has an address
	mtu     int
}

func bridgeOf(r ipam.Record) bridge {
	var in struct {
		Bridge           string `json:"bridge"`
		IsGateway        bool   `json:"isGateway"`
		IsDefaultGateway bool   `json:"isDefaultGateway"`
		MTU              int    `json:"mtu"`
	}
	if r.Type != "bridge" || json.Unmarshal(r.Raw, &in) != nil {
		return bridge{}
	}
	if in.Bridge == "" {
		in.Bridge = "cni0"
	}
	return bridge{name: in.Bridge, gateway: in.IsGateway || in.IsDefaultGateway, mtu: in.MTU}
}

// verify looks whether the bridge is up and has the address that the pod was told as its gateway. The delegate sets
// both on every ADD, so what is missing now was taken away by somebody else, and the pod would reach nothing. Three
// ioctls tell; a dump of all links would cost more with every pod.
func (b bridge) verify(result []byte) error {
	if b.name == "" {
		return nil
	}
	fd, err := unix.Socket(unix.AF_INET, unix.SOCK_DGRAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return fmt.Errorf("verify %s: %w", b.name, err)
	}
	defer func() { _ = unix.Close(fd) }() // nothing was written
	req, err := unix.NewIfreq(b.name)
	if err != nil {
		return fmt.Errorf("verify %s: %w", b.name, err)
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFFLAGS, req); err != nil {
		return fail(types.ErrTryAgainLater, "the bridge %s went away: %v", b.name, err)
	}
	if req.Uint16()&unix.IFF_UP == 0 {
		return fail(types.ErrTryAgainLater, "something on this host set the bridge %s down while a pod was added (NetworkManager?)", b.name)
	}
	if err := b.lowerMTU(fd, req); err != nil {
		return err
	}
	for _, gw := range gatewaysOf(result) {
		if b.gateway && !b.hasAddr(fd, req, gw) {
			return fail(types.ErrTryAgainLater, "something on this host took the address %s off the bridge %s while a pod was added (NetworkManager?)", gw, b.name)
		}
	}
	return nil
}

// lowerMTU brings an older bridge down to what new pods have: a larger packet would be dropped on the port without an
// answer to its sender.
func (b bridge) lowerMTU(fd int, req *unix.Ifreq) error {
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFMTU, req); err != nil {
		return fmt.Errorf("read the MTU of %s: %w", b.name, err)
	}
	if b.mtu == 0 || req.Uint32() <= uint32(b.mtu) {
		return nil
	}
	req.SetUint32(uint32(b.mtu))
	if err := unix.IoctlIfreq(fd, unix.SIOCSIFMTU, req); err != nil {
		return fmt.Errorf("set the MTU of %s: %w", b.name, err)
	}
	return nil
}

// hasAddr asks for the first IPv4 address, and only if that is another one for all.
func (b bridge) hasAddr(fd int, req *unix.Ifreq, addr netip.Addr) bool {
	if unix.IoctlIfreq(fd, unix.SIOCGIFADDR, req) == nil {
		if ip, err := req.Inet4Addr(); err == nil && addr == netip.AddrFrom4([4]byte(ip)) {
			return true
		}
	}
	l, ok := look(b.name)
	return ok && slices.Contains(l.addrs, addr)
}

// gatewaysOf gives the gateways in a CNI result of any version.
func gatewaysOf(result []byte) []netip.Addr {
	type gateway struct {
		Gateway string `json:"gateway"`
	}
	var in struct {
		IPs []gateway `json:"ips"`
		IP4 gateway   `json:"ip4"` // up to 0.2.0
		IP6 gateway   `json:"ip6"`
	}
	if json.Unmarshal(result, &in) != nil {
		return nil
	}
	var out []netip.Addr
	for _, g := range append(in.IPs, in.IP4, in.IP6) {
		if a, err := netip.ParseAddr(g.Gateway); err == nil {
			out = append(out, a)
		}
	}
	return out
}
