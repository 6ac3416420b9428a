package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/containernetworking/cni/pkg/types"
	"golang.org/x/sys/unix"

	"github.com/weft-cni/weft/subnet"
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

// verify looks whether the bridge is up and has the address that the pod was told as its gateway. Both were so before the
// delegate ran, so what is missing now was taken away by somebody else, and the pod would reach nothing. A dump of all links
// would tell, too, but cost more with every pod.
func (b bridge) verify(c rtnl, gateways []netip.Addr) error {
	if b.name == "" {
		return nil
	}
	dev, err := openDevice(b.name)
	if err != nil {
		return fail(types.ErrTryAgainLater, "the bridge %s went away: %v", b.name, err)
	}
	defer dev.close()
	if !dev.up {
		return fail(types.ErrTryAgainLater, "something on this host set the bridge %s down while a pod was added (NetworkManager?)", b.name)
	}
	if err := b.lowerMTU(dev); err != nil {
		return err
	}
	if !b.gateway {
		return nil
	}
	for _, gw := range gateways {
		has, err := b.hasAddr(c, dev, gw)
		if err != nil {
			return fmt.Errorf("verify %s: %w", b.name, err)
		}
		if !has {
			return fail(types.ErrTryAgainLater, "something on this host took the address %s off the bridge %s while a pod was added (NetworkManager?)", gw, b.name)
		}
	}
	return nil
}

// lowerMTU brings an older bridge down to what new pods have: a larger packet would be dropped on the port without an
// answer to its sender.
func (b bridge) lowerMTU(dev device) error {
	req, err := dev.ask(unix.SIOCGIFMTU)
	if err != nil {
		return fmt.Errorf("read the MTU of %s: %w", b.name, err)
	}
	if b.mtu == 0 || req.Uint32() <= uint32(b.mtu) {
		return nil
	}
	req.SetUint32(uint32(b.mtu))
	if err := unix.IoctlIfreq(dev.fd, unix.SIOCSIFMTU, req); err != nil {
		return fmt.Errorf("set the MTU of %s: %w", b.name, err)
	}
	return nil
}

// hasAddr asks for the first IPv4 address, and only if that is another one for all of the family.
func (b bridge) hasAddr(c rtnl, dev device, want netip.Addr) (bool, error) {
	if req, err := dev.ask(unix.SIOCGIFADDR); err == nil {
		if ip, err := req.Inet4Addr(); err == nil && want == netip.AddrFrom4([4]byte(ip)) {
			return true, nil
		}
	}
	have, err := c.addrs(dev.index, subnet.FamilyOf(want))
	return slices.ContainsFunc(have, func(a address) bool { return a.prefix.Addr() == want }), err
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
