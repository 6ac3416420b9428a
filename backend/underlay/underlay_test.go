package underlay

import (
	"errors"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// Two NICs: the default route on the first, as with Vagrant's NAT interface.
const twoNICs = `
	link lo
	link eth0
	link eth1 mtu 9000
	addr lo 127.0.0.1/8
	addr lo ::1/128
	addr eth0 10.0.2.15/24 dynamic
	addr eth0 fd00:2::15/64
	addr eth0 fe80::1/64
	addr eth1 192.168.0.11/24
	addr eth1 fd00:5::11/64
	addr eth1 fe80::2/64
	route default via 10.0.2.2 dev eth0 metric 100
	route 10.0.2.0/24 dev eth0 src 10.0.2.15
	route 192.168.0.0/24 dev eth1 src 192.168.0.11
	route default6 via fe80::ff dev eth0 metric 1024
`

func TestPickLooksWhereTheOptionsSay(t *testing.T) {
	tests := map[string]struct {
		opt  Options
		want string
	}{
		"nothing given":                     {Options{}, "eth0 10.0.2.15"},
		"empty iface":                       {Options{Iface: []string{""}}, "eth0 10.0.2.15"},
		"name":                              {Options{Iface: []string{"eth1"}}, "eth1 192.168.0.11"},
		"address":                           {Options{Iface: []string{"192.168.0.11"}}, "eth1 192.168.0.11"},
		"second of the list":                {Options{Iface: []string{"wg0", "eth1", "eth0"}}, "eth1 192.168.0.11"},
		"iface before regex":                {Options{Iface: []string{"eth1"}, IfaceRegex: []string{"eth0"}}, "eth1 192.168.0.11"},
		"regex after a missing iface":       {Options{Iface: []string{"wg0"}, IfaceRegex: []string{"^eth1$"}}, "eth1 192.168.0.11"},
		"can-reach last":                    {Options{IfaceRegex: []string{"^eno"}, CanReach: "192.168.0.99"}, "eth1 192.168.0.11"},
		"can-reach through the default":     {Options{CanReach: "198.51.100.1"}, "eth0 10.0.2.15"},
		"can-reach an own address":          {Options{CanReach: "192.168.0.11"}, "eth1 192.168.0.11"},
		"public IP that is local":           {Options{PublicIP: ip("192.168.0.11")}, "eth1 192.168.0.11"},
		"annotation replaces the public IP": {Options{PublicIP: ip("10.0.2.15"), NodePublicIP: ip("192.168.0.11")}, "eth1 192.168.0.11"},
		"public IP of the other family":     {Options{PublicIP: ip("fd00:5::11")}, "eth0 10.0.2.15"},
		"internal IP":                       {Options{From: FromInternalIP, InternalIP: ip("192.168.0.11")}, "eth1 192.168.0.11"},
		"iface beats internal IP":           {Options{Iface: []string{"eth0"}, From: FromInternalIP, InternalIP: ip("192.168.0.11")}, "eth0 10.0.2.15"},
		"public IP beats internal IP":       {Options{PublicIP: ip("10.0.2.15"), From: FromInternalIP, InternalIP: ip("192.168.0.11")}, "eth0 10.0.2.15"},
		"IPv6 default":                      {Options{Family: v6}, "eth0 fd00:2::15"},
		"IPv6 name":                         {Options{Family: v6, Iface: []string{"eth1"}}, "eth1 fd00:5::11"},
		"IPv6 internal IP":                  {Options{Family: v6, From: FromInternalIP, InternalIP: ip("fd00:5::11")}, "eth1 fd00:5::11"},
		"IPv6 can-reach":                    {Options{Family: v6, CanReach: "2001:db8::1"}, "eth0 fd00:2::15"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, pick(t, tt.opt, host(t, twoNICs))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestPickIsTheSameForTheSameHostAndLeavesItAlone(t *testing.T) {
	h := host(t, twoNICs)
	slices.Reverse(h.Links) // dump order is not index order
	before := slices.Clone(h.Links)
	first, err := Pick(Options{IfaceRegex: []string{"eth"}}, h)
	if err != nil || first.Link != "eth0" {
		t.Fatalf("picked %q, %v; want eth0, the lowest index", first.Link, err)
	}
	for range 20 {
		again, err := Pick(Options{IfaceRegex: []string{"eth"}}, h)
		if diff := cmp.Diff(first.Reason, again.Reason); err != nil || diff != "" {
			t.Fatal(err, diff)
		}
	}
	if diff := cmp.Diff(before, h.Links); diff != "" {
		t.Error("Pick sorted its caller's links", diff)
	}
}

func TestTheReasonSaysWhatAndWhyOnOneLine(t *testing.T) {
	tests := map[string]struct {
		opt  Options
		want string
	}{
		"default": {
			Options{},
			"Using interface with name eth0 and address 10.0.2.15 (the route to 0.0.0.0/0 via 10.0.2.2 leaves through it, " +
				"metric 100; the address is in the gateway's subnet; MTU 1500). " +
				"Defaulting external address to interface address (10.0.2.15)",
		},
		"passed over, NAT and overwrite": {
			Options{Iface: []string{"wg0", "eth1"}, PublicIP: ip("203.0.113.7"), Overwrite: ip("203.0.113.8")},
			"Using interface with name eth1 and address 192.168.0.11 (--iface names it; the first address of the interface; " +
				"MTU 9000). Using 203.0.113.7 as external address (--public-ip), announcing 203.0.113.8 instead " +
				"(public-ip-overwrite). Passed over: --iface=wg0: no interface of that name",
		},
		"internal IP": {
			Options{From: FromInternalIP, InternalIP: ip("192.168.0.11")},
			"Using interface with name eth1 and address 192.168.0.11 (it has the Node's InternalIP; MTU 9000). " +
				"Defaulting external address to interface address (192.168.0.11)",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			u, err := Pick(tt.opt, host(t, twoNICs))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(tt.want, u.Reason); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestErrorsNameEachCandidateAndWhatToDo(t *testing.T) {
	tests := map[string]struct {
		opt      Options
		sentinel error
		want     string
	}{
		"nothing matches": {
			Options{Iface: []string{"wg0", "10.9.9.9", "lo"}, IfaceRegex: []string{"^eno"}, CanReach: "x"}, ErrNotYet,
			"pick the IPv4 underlay: --iface=wg0: no interface of that name; --iface=10.9.9.9: no interface has the address " +
				"10.9.9.9; --iface=lo: lo is the loopback; --iface-regex=^eno: no interface has a matching address or name; " +
				"--iface-can-reach=x: want an address; there are eth0, eth1: waiting for the host to have one",
		},
		"bad regex": {
			Options{IfaceRegex: []string{"(eth"}}, ErrOptions,
			"pick the IPv4 underlay: --iface-regex=(eth: error parsing regexp: missing closing ): `(eth`: " +
				"the options need a change",
		},
		"can-reach a name": {
			Options{CanReach: "example.org"}, ErrOptions,
			"pick the IPv4 underlay: --iface-can-reach=example.org: want an address: the options need a change",
		},
		"unknown way to choose": {
			Options{From: "external-ip"}, ErrOptions,
			`pick the IPv4 underlay: --iface-from=external-ip: want "internal-ip" or nothing: the options need a change`,
		},
		"public IP before a NAT": {
			Options{PublicIP: ip("203.0.113.7")}, ErrNotYet,
			"pick the IPv4 underlay: --public-ip 203.0.113.7: no interface has the address 203.0.113.7 (if it is the address " +
				"before a NAT, name the interface with --iface): waiting for the host to have one",
		},
		"no InternalIP yet": {
			Options{From: FromInternalIP}, ErrNotYet,
			"pick the IPv4 underlay: --iface-from=internal-ip: the Node has no IPv4 InternalIP: waiting for the host to have one",
		},
		"InternalIP that is not local": {
			Options{From: FromInternalIP, InternalIP: ip("10.7.7.7")}, ErrNotYet,
			"pick the IPv4 underlay: --iface-from=internal-ip: no interface has the address 10.7.7.7: " +
				"waiting for the host to have one",
		},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			_, err := Pick(tt.opt, host(t, twoNICs))
			if !errors.Is(err, tt.sentinel) {
				t.Fatalf("error %v is not %v", err, tt.sentinel)
			}
			if diff := cmp.Diff(tt.want, err.Error()); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestExtraRulesAreWarnedAbout(t *testing.T) {
	h := host(t, twoNICs+"rules 2\n")
	u, err := Pick(Options{}, h)
	if err != nil {
		t.Fatal(err)
	}
	want := []string{"2 ip rules beyond the usual three: routes outside the main table are not looked at " +
		"(see ip rule; --iface settles the choice)"}
	if diff := cmp.Diff(want, u.Warnings); diff != "" {
		t.Error(diff)
	}
	h.Routes = nil
	if _, err = Pick(Options{}, h); err == nil || !strings.Contains(err.Error(), "2 ip rules") {
		t.Errorf("error %v does not mention the rules", err)
	}
}

func TestDefaultRoutesAreFollowedByMetricAndHop(t *testing.T) {
	const links = `
		link lo
		link docker0 kind bridge
		link eth0
		link eth1
		link eth2 down
		link cni0 kind bridge
		addr docker0 172.17.0.1/16
		addr eth0 10.0.0.11/24
		addr eth1 10.1.0.11/24
		addr eth2 10.2.0.11/24
		addr cni0 10.244.1.1/24
	`
	tests := map[string]struct{ routes, want string }{
		"lowest metric wins, not the dump's order": {
			"route default via 10.0.0.1 dev eth0 metric 200\nroute default via 10.1.0.1 dev eth1 metric 100", "eth1 10.1.0.11"},
		"equal metrics: the dump's order": {
			"route default via 10.1.0.1 dev eth1\nroute default via 10.0.0.1 dev eth0", "eth1 10.1.0.11"},
		"ECMP takes the first hop": {
			"route default via 10.0.0.1 dev eth0 via 10.1.0.1 dev eth1", "eth0 10.0.0.11"},
		"ECMP passes over a hop that is down": {
			"route default via 10.2.0.1 dev eth2 via 10.1.0.1 dev eth1", "eth1 10.1.0.11"},
		"a default route through the pods is passed over": {
			"route default via 10.244.1.9 dev cni0\nroute default via 10.0.0.1 dev eth0 metric 5", "eth0 10.0.0.11"},
		"a default route through a guest bridge is passed over": {
			"route default via 172.17.0.9 dev docker0\nroute default via 10.0.0.1 dev eth0 metric 5", "eth0 10.0.0.11"},
		"an unreachable default is passed over": {
			"route default type unreachable metric 1\nroute default via 10.0.0.1 dev eth0 metric 5", "eth0 10.0.0.11"},
		"on-link default": {"route default dev eth1", "eth1 10.1.0.11"},
		"no default route": {"route 10.0.0.0/24 dev eth0", "error: pick the IPv4 underlay: default route: " +
			"unable to find default route for IPv4 in the main table (set one, or name the interface with --iface): waiting for the host to have one"},
		"none that is usable": {
			"route default via 10.2.0.1 dev eth2\nroute default type blackhole metric 9\nroute default dev gone metric 10",
			"error: pick the IPv4 underlay: default route: no IPv4 default route through a usable interface (eth2 is down, " +
				"the route to 0.0.0.0/0 is a blackhole, the route to 0.0.0.0/0 has no interface): " +
				"waiting for the host to have one"},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, pick(t, Options{}, host(t, links+tt.routes))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestCanReachFollowsTheLongestMatch(t *testing.T) {
	const text = `
		link lo
		link eth0
		link eth1
		addr eth0 10.0.0.11/24
		addr eth1 10.1.0.11/24
		addr eth1 10.2.0.11/24
		route default via 10.0.0.1 dev eth0
		route 10.1.0.0/24 dev eth1
		route 10.2.0.0/24 dev eth1
		route 172.16.0.0/12 via 10.2.0.1 dev eth1
		route 172.16.5.0/24 via 10.0.0.1 dev eth0 metric 50
		route 172.16.5.0/24 via 10.1.0.1 dev eth1 metric 20
		route 172.16.6.0/24 type blackhole
		route 172.16.7.0/24 via 10.1.0.1 dev eth1 src 10.2.0.11
	`
	tests := map[string]string{
		"10.2.0.99":   "eth1 10.2.0.11",
		"10.1.0.99":   "eth1 10.1.0.11",
		"172.16.1.1":  "eth1 10.2.0.11",
		"172.16.5.1":  "eth1 10.1.0.11",
		"172.16.7.1":  "eth1 10.2.0.11",
		"192.0.2.1":   "eth0 10.0.0.11",
		"172.16.6.1":  "error: pick the IPv4 underlay: --iface-can-reach=172.16.6.1: the route to 172.16.6.0/24 is a blackhole: waiting for the host to have one",
		"10.2.0.11":   "eth1 10.2.0.11",
		"not-an-addr": "error: pick the IPv4 underlay: --iface-can-reach=not-an-addr: want an address: the options need a change",
	}
	for target, want := range tests {
		t.Run(target, func(t *testing.T) {
			if diff := cmp.Diff(want, pick(t, Options{CanReach: target}, host(t, text))); diff != "" {
				t.Error(diff)
			}
		})
	}
	h := host(t, text)
	h.Routes = h.Routes[1:]
	want := "error: pick the IPv4 underlay: --iface-can-reach=192.0.2.1: no route to it in the main table: waiting for the host to have one"
	if diff := cmp.Diff(want, pick(t, Options{CanReach: "192.0.2.1"}, h)); diff != "" {
		t.Error(diff)
	}
}

func TestDevicesThatCarryNoTunnelAreNeverPicked(t *testing.T) {
	const text = `
		link lo
		link flannel.1 kind vxlan mtu 1450
		link flannel-v6.1 kind vxlan mtu 1430
		link cni0 kind bridge mtu 1450
		link kube-bridge kind bridge
		link veth0 kind veth master kube-bridge
		link docker0 kind bridge
		link veth1 kind veth master docker0
		link virbr0 kind bridge
		link tap0 kind tun master virbr0
		link br0 kind bridge
		link eno1 master br0
		link tap1 kind tun master br0
		link eno2 down
		link eno3 mtu 0
		addr lo 127.0.0.1/8
		addr lo 10.0.0.5/32
		addr flannel.1 10.244.1.0/32
		addr cni0 10.244.1.1/24
		addr kube-bridge 10.244.1.1/24
		addr kube-bridge 172.30.0.1/24
		addr docker0 172.17.0.1/16
		addr virbr0 192.168.122.1/24
		addr eno2 10.2.0.11/24
		addr eno3 10.3.0.11/24
		addr br0 10.0.0.11/24
	`
	bad := "error: pick the IPv4 underlay: "
	yet := ": waiting for the host to have one"
	tests := map[string]struct {
		opt  Options
		want string
	}{
		"any name":           {Options{IfaceRegex: []string{"."}}, "br0 10.0.0.11"},
		"any address":        {Options{IfaceRegex: []string{`[0-9]+\.`}}, "br0 10.0.0.11"},
		"regex for docker0":  {Options{IfaceRegex: []string{"^docker"}}, bad + "--iface-regex=^docker: docker0 is a bridge without an uplink" + yet},
		"regex for VMs":      {Options{IfaceRegex: []string{`192\.168`}}, bad + `--iface-regex=192\.168: no interface has a matching address or name` + yet},
		"regex for a down":   {Options{IfaceRegex: []string{"eno2"}}, bad + "--iface-regex=eno2: eno2 is down" + yet},
		"regex for a port":   {Options{IfaceRegex: []string{"eno1"}}, bad + "--iface-regex=eno1: eno1 has no usable IPv4 address" + yet},
		"regex for the pods": {Options{IfaceRegex: []string{`10\.244`}}, bad + `--iface-regex=10\.244: no interface has a matching address or name` + yet},
		"docker0 by name":    {Options{Iface: []string{"docker0"}}, "docker0 172.17.0.1"},
		"a down by name":     {Options{Iface: []string{"eno2"}}, "eno2 10.2.0.11"},
		"no MTU":             {Options{Iface: []string{"eno3"}}, bad + "--iface=eno3: eno3 has no MTU" + yet},
		"a port by name":     {Options{Iface: []string{"eno1"}}, bad + "--iface=eno1: eno1 has no usable IPv4 address" + yet},
		"own device":         {Options{Iface: []string{"flannel.1"}}, bad + "--iface=flannel.1: flannel.1 is a tunnel device of this overlay" + yet},
		"own IPv6 device":    {Options{Iface: []string{"flannel-v6.1"}}, bad + "--iface=flannel-v6.1: flannel-v6.1 is a tunnel device of this overlay" + yet},
		"own address":        {Options{Iface: []string{"10.244.1.0"}}, bad + "--iface=10.244.1.0: flannel.1 is a tunnel device of this overlay" + yet},
		"cni0":               {Options{Iface: []string{"cni0"}}, bad + "--iface=cni0: cni0 is the bridge of the pods" + yet},
		"pods by their CIDR": {Options{Iface: []string{"kube-bridge"}}, bad + "--iface=kube-bridge: kube-bridge is a bridge with an address in the pod network" + yet},
		"loopback address":   {Options{Iface: []string{"10.0.0.5"}}, bad + "--iface=10.0.0.5: lo is the loopback" + yet},
	}
	for name, tt := range tests {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tt.want, pick(t, tt.opt, host(t, text))); diff != "" {
				t.Error(diff)
			}
		})
	}
}

func TestAnAddressInThePodNetworkIsNeverTheUnderlay(t *testing.T) {
	text := "link eth0\naddr eth0 10.244.9.9/24\nroute default via 10.244.9.1 dev eth0\n"
	why := "address 10.244.9.9 of eth0 lies in the pod network 10.244.0.0/16: waiting for the host to have one"
	for name, opt := range map[string]Options{
		"default route":      {},
		"--iface=eth0":       {Iface: []string{"eth0"}},
		"--iface=10.244.9.9": {Iface: []string{"10.244.9.9"}},
	} {
		want := "error: pick the IPv4 underlay: " + name + ": " + why
		if diff := cmp.Diff(want, pick(t, opt, host(t, text))); diff != "" {
			t.Error(diff)
		}
	}
	text += "addr eth0 10.0.0.11/24\n"
	if got := pick(t, Options{}, host(t, text)); got != "eth0 10.0.0.11" {
		t.Errorf("picked %s, want the address outside the pod network", got)
	}
}

func TestNoDeviceOfOursCarriesATunnel(t *testing.T) {
	for _, name := range []string{"flannel.1", "flannel.0", "flannel-v6.4096", "flannel-old", "flannel-wg", "flannel-wg-v6", "flannel.ipip", "flannel-v6.ipip", "flannel0"} {
		if got := pick(t, Options{Iface: []string{name}}, host(t, "link "+name+"\naddr "+name+" 10.0.0.1/24")); !strings.Contains(got, "is a tunnel device of this overlay") {
			t.Errorf("%s: %s", name, got)
		}
	}
}
