package main

import (
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/weft-cni/weft/subnet/ipam"
)

// The texts are what the bridge plugin prints.
func TestAResultGetsBackWhatTheDelegateWasNotTold(t *testing.T) {
	const now = `{
    "cniVersion": "1.0.0",
    "interfaces": [
        {
            "name": "cni0",
            "mac": "0a:00:00:00:00:01"
        }
    ],
    "ips": [
        {
            "interface": 2,
            "address": "10.244.1.2/24",
            "gateway": "10.244.1.1"
        },
        {
            "interface": 2,
            "address": "fd00:10:244:1::2/64"
        }
    ],
    "routes": [
        {
            "dst": "fd00:10:244::/48",
            "gw": "fd00:10:244:1::1"
        },
        {
            "dst": "fd01::/48",
            "gw": "fd00:10:244:1::1",
            "mtu": 1400
        },
        {
            "dst": "::/0",
            "gw": "fd00:10:244:1::1"
        }
    ],
    "dns": {}
}`
	const old = `{
    "cniVersion": "0.2.0",
    "ip6": {
        "ip": "fd00:10:244:1::2/64",
        "routes": [
            {
                "dst": "fd00:10:244::/48",
                "gw": "fd00:10:244:1::1"
            },
            {
                "dst": "::/0",
                "gw": "fd00:10:244:1::1"
            }
        ]
    },
    "dns": {}
}`
	b := bare{netip.MustParseAddr("fd00:10:244:1::1"), map[string]bool{"fd00:10:244::/48": true, "fd01::/48": true}}
	wantNow := strings.NewReplacer(
		`"fd00:10:244:1::2/64"`, `"fd00:10:244:1::2/64",
            "gateway": "fd00:10:244:1::1"`,
		`"fd00:10:244::/48",
            "gw": "fd00:10:244:1::1"`, `"fd00:10:244::/48"`,
		`"fd01::/48",
            "gw": "fd00:10:244:1::1"`, `"fd01::/48"`).Replace(now)
	wantOld := strings.NewReplacer(
		`"fd00:10:244:1::2/64"`, `"fd00:10:244:1::2/64",
        "gateway": "fd00:10:244:1::1"`,
		`"fd00:10:244::/48",
                "gw": "fd00:10:244:1::1"`, `"fd00:10:244::/48"`).Replace(old)
	for in, want := range map[string]string{now: wantNow, old: wantOld, wantNow: wantNow, "": "", "{}": "{}"} {
		if d := cmp.Diff(want, string(b.mend([]byte(in)))); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
		if got := string(bare{}.mend([]byte(in))); got != in {
			t.Errorf("without a gateway: %s", got)
		}
	}
}

func TestOnlyTheGatewaysOfIPv6AreKeptFromTheDelegate(t *testing.T) {
	for in, want := range map[string]string{
		`{"cniVersion":"1.0.0","ips":[{"address":"10.244.1.2/24","gateway":"10.244.1.1"},{"address":"fd00::2/64","gateway":"fd00::1"}],"routes":[]}`://
		`{"cniVersion":"1.0.0","ips":[{"address":"10.244.1.2/24","gateway":"10.244.1.1"},{"address":"fd00::2/64"}],"routes":[]}`,
		`{"ip4":{"gateway":"10.244.1.1","ip":"10.244.1.2/24"},"ip6":{"gateway":"fd00::1","ip":"fd00::2/64"}}`://
		`{"ip4":{"gateway":"10.244.1.1","ip":"10.244.1.2/24"},"ip6":{"ip":"fd00::2/64"}}`,
		`{"ips":7}`: `{"ips":7}`,
		`nothing`:   `nothing`,
	} {
		if d := cmp.Diff(want, string(withoutGateways([]byte(in)))); d != "" {
			t.Errorf("(-want +got):\n%s", d)
		}
	}
}

func TestTheDelegateOfAPlainBridgeLeavesTheBridgeAlone(t *testing.T) {
	v4, both := prefixes("10.244.1.0/24"), prefixes("10.244.1.0/24", "fd00:10:244:1::/64")
	const head, tail = `{"cniVersion":"1.0.0","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[],"routes":[`, `],"type":"host-local"},"mtu":1450,"name":"cbr0","type":"bridge"}`
	gateways := `,"isDefaultGateway":true,"isGateway":true`
	stock := func(routes string) string { return strings.Replace(head+routes+tail, `,"mtu"`, gateways+`,"mtu"`, 1) }
	for name, c := range map[string]struct {
		in      string
		subnets []netip.Prefix
		want    string // "" leaves it to the delegate
		bare    bool
	}{
		"stock": {stock(`{"dst":"10.244.0.0/16"}`), v4, head + `{"dst":"10.244.0.0/16"},{"dst":"0.0.0.0/0","gw":"10.244.1.1"}` + tail, false},
		"both families": {stock(`{"dst":"10.244.0.0/16"},{"dst":"fd00:10:244::/48"}`), both,
			head + `{"dst":"10.244.0.0/16"},{"dst":"fd00:10:244::/48","gw":"fd00:10:244:1::1"},{"dst":"0.0.0.0/0","gw":"10.244.1.1"},{"dst":"::/0","gw":"fd00:10:244:1::1"}` + tail, true},
		"a default route with a gateway, and one without": {stock(`{"dst":"0.0.0.0/0","gw":"10.244.1.9"},{"dst":"::/0"}`), both,
			head + `{"dst":"0.0.0.0/0","gw":"10.244.1.9"},{"dst":"::/0"},{"dst":"::/0","gw":"fd00:10:244:1::1"}` + tail, false},
		"no default gateway":          {strings.Replace(stock(`{"dst":"10.244.0.0/16"}`), `"isDefaultGateway":true`, `"isDefaultGateway":false`, 1), v4, head + `{"dst":"10.244.0.0/16"}` + tail, false},
		"a word nobody knows":         {strings.Replace(stock(``), `"mtu"`, `"later":1,"mtu"`, 1), v4, "", false},
		"a known word, written oddly": {strings.Replace(stock(``), `"isGateway"`, `"isgateway"`, 1), v4, "", false},
		"a VLAN":                      {strings.Replace(stock(``), `"mtu"`, `"vlan":7,"mtu"`, 1), v4, "", false},
		"no gateway":                  {head + tail, v4, "", false},
		"ranges by the runtime":       {strings.Replace(stock(``), `"mtu"`, `"runtimeConfig":{"ipranges":[]},"mtu"`, 1), v4, "", false},
		"another address manager":     {strings.Replace(stock(``), `host-local`, `dhcp`, 1), v4, "", false},
		"a range beside the ranges":   {strings.Replace(stock(``), `"ranges"`, `"subnet":"192.0.2.0/24","ranges"`, 1), v4, "", false},
		"another delegate":            {strings.Replace(stock(``), `"bridge"`, `"ptp"`, 1), v4, "", false},
	} {
		rec, err := ipam.ParseRecord([]byte(c.in))
		if err != nil {
			t.Fatal(err)
		}
		p, ok := plainOf(rec, c.subnets)
		if !ok {
			if c.want != "" {
				t.Errorf("%s: is left to the delegate", name)
			}
			continue
		}
		got, left, err := p.render()
		if d := cmp.Diff(c.want, string(got)); err != nil || d != "" || left.on() != c.bare {
			t.Errorf("%s: %v, bare %t (-want +got):\n%s", name, err, left.on(), d)
		}
	}
}
