package main

import (
	"encoding/json"
	"fmt"
	"net/netip"
	"slices"

	"github.com/weft-cni/weft/subnet/ipam"
)

// rebuild makes a delegate's configuration to release with, when the record is lost. The ranges come from subnet.env
// or, before the agent has written it, from the addresses to release: host-local asks for ranges, but releases by
// name. Without any address there is nothing to release, and the delegate gets no address management at all.
func rebuild(c netConf, hints []netip.Addr) (ipam.Record, error) {
	n, err := loadEnv(c.SubnetFile)
	if err != nil {
		n = nodeNet{IPMasq: true} // as nearly everywhere; and a bridge that did not masquerade needs no iptables now
	}
	if !coversAll(n.Subnets, hints) {
		n.Subnets = rangesOf(hints)
	}
	if len(hints) > 0 {
		return recordOf(c, n)
	}
	d, err := buildDelegate(c, n)
	if err != nil {
		return ipam.Record{}, err
	}
	delete(d, "ipam")
	raw, err := json.Marshal(d)
	if err != nil {
		return ipam.Record{}, fmt.Errorf("write the delegate's configuration: %w", err)
	}
	return ipam.ParseRecord(raw)
}

// storeOf is host-local's folder by the configuration alone.
func storeOf(c netConf) (ipam.Store, bool) {
	kind, err := c.IPAM.text("type")
	dir, dirErr := c.IPAM.text("dataDir")
	if err != nil || dirErr != nil {
		return ipam.Store{}, false
	}
	if kind == "" {
		kind = "host-local"
	}
	return ipam.Record{Network: c.Name, IPAM: ipam.IPAM{Type: kind, DataDir: dir}}.Store()
}

func coversAll(ranges []netip.Prefix, addrs []netip.Addr) bool {
	return !slices.ContainsFunc(addrs, func(a netip.Addr) bool { return !inAny(ranges, a) })
}

// rangesOf gives one range a family around the addresses; its size does not matter for a release.
func rangesOf(addrs []netip.Addr) []netip.Prefix {
	var out []netip.Prefix
	seen := map[bool]bool{}
	for _, a := range addrs {
		if bits := a.BitLen() * 3 / 4; !seen[a.Is4()] && bits > 0 {
			seen[a.Is4()] = true
			out = append(out, netip.PrefixFrom(a, bits).Masked())
		}
	}
	return out
}
