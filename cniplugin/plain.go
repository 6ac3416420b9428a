package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"strings"

	"github.com/weft-cni/weft/subnet/ipam"
)

// plain is a bridge with host-local that nobody configured in a way that this plugin does not know in all its
// consequences. Then what the delegate does to the bridge can be done in its place, and the delegate need not.
type plain struct {
	conf       object // of the delegate
	management object // its address management
	gateway    gateway
	isDefault  bool // pods get default routes
}

// The keys that change nothing here, or what is looked at.
const (
	plainKeys = " name type cniVersion bridge isGateway isDefaultGateway forceAddress ipMasq ipMasqBackend mtu hairpinMode promiscMode" +
		" portIsolation macspoofchk runtimeConfig ipam "
	plainManagement = " type dataDir ranges routes resolvConf "
)

// plainOf is false for anything else, which the delegate is left to do alone.
func plainOf(r ipam.Record, subnets []netip.Prefix) (plain, bool) {
	b := bridgeOf(r)
	p := plain{conf: object{}, management: object{}, gateway: gateway{bridge: b.name, mtu: b.mtu}}
	if b.name == "" || !b.gateway || r.IPAM.Type != "host-local" || json.Unmarshal(r.Raw, &p.conf) != nil || json.Unmarshal(p.conf["ipam"], &p.management) != nil {
		return p, false
	}
	if !p.conf.hasOnly(plainKeys) || !p.management.hasOnly(plainManagement) || p.conf.hasOwnRanges() {
		return p, false
	}
	_ = json.Unmarshal(p.conf["isDefaultGateway"], &p.isDefault) // bridgeOf has read it
	for _, s := range subnets {
		p.gateway.addrs = append(p.gateway.addrs, netip.PrefixFrom(s.Masked().Addr().Next(), s.Bits()))
	}
	return p, true
}

// hasOnly takes keys only as they are written in the plugins' documentation; Go's JSON takes others for the same.
func (o object) hasOnly(known string) bool {
	for key := range o {
		if strings.Contains(key, " ") || !strings.Contains(known, " "+key+" ") {
			return false
		}
	}
	return true
}

// hasOwnRanges tells that the runtime asks for addresses of other ranges than the node's.
func (o object) hasOwnRanges() bool {
	var conf object
	if raw, ok := o["runtimeConfig"]; ok && json.Unmarshal(raw, &conf) != nil {
		return true
	}
	for key := range conf {
		if strings.EqualFold(key, "ipRanges") {
			return true
		}
	}
	return false
}

// render is the configuration of a delegate that leaves the bridge's addresses and MAC alone. The default routes that it
// would have made of them are written out. Nothing of it is recorded.
func (p plain) render() ([]byte, bare, error) {
	for _, key := range []string{"isGateway", "isDefaultGateway", "forceAddress"} {
		delete(p.conf, key)
	}
	routes, err := p.routes()
	if err != nil {
		return nil, bare{}, err
	}
	left := bareOf(p.gateway.addrs, routes)
	left.direct(routes)
	p.management.set("routes", routes)
	p.conf.set("ipam", p.management)
	out, err := json.Marshal(p.conf)
	return out, left, err
}

// routes are the configured ones and, as the bridge plugin adds them, a default route for each family that has none with a
// gateway.
func (p plain) routes() ([]object, error) {
	var routes []object // readRoutes has looked at them
	if err := json.Unmarshal(p.management["routes"], &routes); err != nil {
		return nil, fmt.Errorf("read the routes: %w", err)
	}
	for _, gw := range p.gateway.addrs {
		all := netip.PrefixFrom(gw.Addr(), 0).Masked()
		found := !p.isDefault
		for _, r := range routes {
			found = found || r["gw"] != nil && r.prefix() == all
		}
		if !found {
			route := object{}
			route.set("dst", all)
			route.set("gw", gw.Addr())
			routes = append(routes, route)
		}
	}
	return routes, nil
}

// prefix is a route's destination.
func (o object) prefix() netip.Prefix {
	text, err := o.text("dst")
	if err != nil {
		return netip.Prefix{}
	}
	p, err := netip.ParsePrefix(text)
	if err != nil {
		return netip.Prefix{}
	}
	return p.Masked()
}
