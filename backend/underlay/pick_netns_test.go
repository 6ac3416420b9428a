package underlay

import (
	"context"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/tests/lane"
	"github.com/weft-cni/weft/tests/nstest"
	"github.com/weft-cni/weft/tests/terms"
)

// The hosts of the other tests are written by hand; these are what the kernel itself says.
func TestPickReadsARealHostAsItIsMeant(t *testing.T) {
	nstest.NeedRoot(t)
	const wires = `
		link add eth0 type veth peer name far0
		link add eth1 type veth peer name far1
		link add wg0 type veth peer name far2
		link set eth0 up
		link set eth1 up mtu 9000
		link set far0 up
		link set far1 up
		link set far2 up
	`
	const docker = `
		link add docker0 type bridge
		link set docker0 up
		addr add 172.17.0.1/16 dev docker0
	`
	tests := map[string]struct {
		opt   Options
		setup string
		want  string
	}{
		"default route": {Options{}, `
			addr add 10.0.0.11/24 dev eth0
			addr add 10.1.0.11/24 dev eth1
			route add default via 10.1.0.1`, "eth1 10.1.0.11"},
		"metrics": {Options{}, `
			addr add 10.0.0.11/24 dev eth0
			addr add 10.1.0.11/24 dev eth1
			route add default via 10.0.0.1 metric 200
			route add default via 10.1.0.1 metric 100`, "eth1 10.1.0.11"},
		"ECMP": {Options{}, `
			addr add 10.0.0.11/24 dev eth0
			addr add 10.1.0.11/24 dev eth1
			route add default nexthop via 10.0.0.1 nexthop via 10.1.0.1`, "eth0 10.0.0.11"},
		"the router's link-local address": {Options{Family: v6}, `
			addr add 10.1.0.11/24 dev eth1
			route add default via fe80::1 dev eth1`, "eth1 10.1.0.11"},
		"VIPs before and after the primary": {Options{}, `
			addr add 10.0.0.100/32 dev eth0
			addr add 10.0.0.11/24 dev eth0
			addr add 10.0.0.12/24 dev eth0
			route add default via 10.0.0.1`, "eth0 10.0.0.11"},
		"preferred source": {Options{}, `
			addr add 10.0.0.11/24 dev eth0
			addr add 10.0.0.12/24 dev eth0
			route add default via 10.0.0.1 src 10.0.0.12`, "eth0 10.0.0.12"},
		"DHCP": {Options{}, `
			addr add 10.0.0.11/24 dev eth0 valid_lft 3600 preferred_lft 3600
			route add default via 10.0.0.1`, "eth0 10.0.0.11"},
		"deprecated": {Options{}, `
			addr add 10.0.0.11/24 dev eth0 valid_lft 3600 preferred_lft 0
			addr add 10.0.1.12/24 dev eth0
			route add default via 10.0.0.1`, "eth0 10.0.1.12"},
		"can-reach": {Options{CanReach: "172.16.5.9"}, `
			addr add 10.0.0.11/24 dev eth0
			addr add 10.1.0.11/24 dev eth1
			route add default via 10.0.0.1
			route add 172.16.0.0/16 via 10.1.0.1`, "eth1 10.1.0.11"},
		"can-reach a blackhole": {Options{CanReach: "172.16.5.9"}, `
			addr add 10.0.0.11/24 dev eth0
			route add default via 10.0.0.1
			route add blackhole 172.16.0.0/16`,
			"error: pick the IPv4 underlay: --iface-can-reach=172.16.5.9: the route to 172.16.0.0/16 is a blackhole: waiting for the host to have one"},
		"docker0 by regex": {Options{IfaceRegex: []string{`^1(0|72)\.`}}, docker + `
			addr add 10.0.0.11/24 dev eth0`, "eth0 10.0.0.11"},
		"docker0 by regex of the other family": {Options{Family: v6, IfaceRegex: []string{`^fd00:(10|172):`}}, docker + `
			addr add 10.0.0.11/24 dev eth0`, "eth0 10.0.0.11"},
		"the pods' bridge": {Options{IfaceRegex: []string{"."}}, `
			link add cni0 type bridge
			link set cni0 up
			addr add 10.244.1.1/24 dev cni0
			addr add 10.0.0.11/24 dev eth0`, "eth0 10.0.0.11"},
		"a bridge with an uplink": {Options{}, `
			link add up0 type vxlan id 77 dstport 5000 dev eth1
			link set up0 up
			link add br0 type bridge
			link set br0 up
			link set up0 master br0
			addr add 10.0.0.11/24 dev br0
			route add default via 10.0.0.1`, "br0 10.0.0.11"},
		"our device": {Options{IfaceRegex: []string{"flannel|eth"}}, `
			addr add 10.0.0.11/24 dev eth0
			link add flannel.1 type vxlan id 1 dev eth0 dstport 4789
			link set flannel.1 up
			addr add 10.9.0.0/32 dev flannel.1`, "eth0 10.0.0.11"},
		"down": {Options{IfaceRegex: []string{"wg0"}}, `
			addr add 10.8.0.1/24 dev wg0`,
			"error: pick the IPv4 underlay: --iface-regex=wg0: wg0 is down: waiting for the host to have one"},
		"nothing": {Options{}, "", "error: pick the IPv4 underlay: default route: unable to find default route for IPv4 in " +
			"the main table (set one, or name the interface with --iface): waiting for the host to have one"},
	}
	fourOnly := []string{
		"VIPs before and after the primary", // the kernel lists the youngest address of IPv6 first
		"docker0 by regex",
	}
	for name, tt := range tests {
		for _, f := range lane.Of(t).Families() {
			if f != v6 && tt.opt.Family == v6 || f == v6 && slices.Contains(fourOnly, name) {
				continue
			}
			t.Run(f.String()+" "+name, func(t *testing.T) { pickOnRealHost(t, f, tt.opt, wires+tt.setup, tt.want) })
		}
	}
}

// pickOnRealHost picks on a host that commands of ip set up. Options, commands and what is wanted speak of IPv4.
func pickOnRealHost(t *testing.T, f subnet.Family, opt Options, setup, want string) {
	t.Helper()
	ns := nstest.New(t)
	for line := range strings.Lines(setup) {
		line = terms.In(f, strings.TrimSpace(line))
		if f == v6 && strings.HasPrefix(line, "addr add") {
			line += " nodad" // else it cannot be a route's source yet
		}
		if line != "" {
			ns.IP(line)
		}
	}
	conn, err := kernel.OpenAt(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	h, err := conn.Host(context.Background())
	if err != nil {
		t.Fatal(err)
	}
	opt.Family, opt.CanReach = f, terms.In(f, opt.CanReach)
	want = strings.ReplaceAll(terms.In(f, want), "IPv4", f.String())
	if diff := cmp.Diff(want, pick(t, opt, h)); diff != "" {
		t.Error(diff)
	}
	if h.Rules != 0 {
		t.Errorf("%d extra rules in a fresh namespace", h.Rules)
	}
}
