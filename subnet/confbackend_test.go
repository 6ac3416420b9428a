package subnet

import (
	"encoding/base64"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// clusters are the top-level keys of a single-stack, a dual-stack and an IPv6-only cluster.
var clusters = map[string]string{
	"4":  `"Network": "10.244.0.0/16"`,
	"46": `"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10:244::/56"`,
	"6":  `"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:10:244::/56"`,
}

func parseBackend(cluster, backend string) (Backend, string, error) {
	conf, warnings, err := ParseNetConf([]byte(`{` + clusters[cluster] + `, "Backend": {` + backend + `}}`))
	var lines []string
	for _, w := range warnings {
		lines = append(lines, strings.TrimPrefix(w.String(), "net-conf.json: Backend."))
	}
	return conf.Backend, strings.Join(lines, "\n"), err
}

func TestEachBackendHasItsKeysAndDefaults(t *testing.T) {
	secret := Secret{1, 2, 3}
	psk := Key(secret).String()
	for in, c := range map[string]struct {
		clusters []string
		want     Backend
		warnings string
	}{
		`"Type": "host-gw"`:                                               {[]string{"4", "46", "6"}, Backend{Type: HostGW, VNI: 1}, ""},
		`"Type": "HOST-GW", "MTU": 1400`:                                  {[]string{"4", "46", "6"}, Backend{Type: HostGW, VNI: 1, MTU: 1400}, ""},
		`"Type": "alloc"`:                                                 {[]string{"4", "46", "6"}, Backend{Type: Alloc, VNI: 1}, ""},
		`"Type": "ipip"`:                                                  {[]string{"4", "46", "6"}, Backend{Type: IPIP, VNI: 1}, ""},
		`"DirectRouting": true, "Type": "ipip"`:                           {[]string{"4", "46", "6"}, Backend{Type: IPIP, VNI: 1, DirectRouting: true}, ""},
		`"DirectRouting": true, "Type": "vxlan"`:                          {[]string{"4", "46", "6"}, Backend{Type: VXLAN, VNI: 1, DirectRouting: true}, ""},
		`"Type": "wireguard"`:                                             {[]string{"4", "46", "6"}, Backend{Type: WireGuard, VNI: 1, WireGuard: WireGuardConf{Ports: [2]uint16{51820, 51821}, Mode: ModeSeparate}}, ""},
		`"Type": "wireguard", "Mode": "auto"`:                             {[]string{"4", "46", "6"}, Backend{Type: WireGuard, VNI: 1, WireGuard: WireGuardConf{Ports: [2]uint16{51820}, Mode: ModeAuto}}, ""},
		`"Type": "wireguard", "Mode": "ipv4"`:                             {[]string{"4", "46"}, Backend{Type: WireGuard, VNI: 1, WireGuard: WireGuardConf{Ports: [2]uint16{51820}, Mode: ModeIPv4}}, ""},
		`"Type": "wireguard", "Mode": "ipv6"`:                             {[]string{"46", "6"}, Backend{Type: WireGuard, VNI: 1, WireGuard: WireGuardConf{Ports: [2]uint16{51820}, Mode: ModeIPv6}}, ""},
		`"Type": "wireguard", "ListenPort": 51821, "ListenPortV6": 51821`: {[]string{"4", "6"}, Backend{Type: WireGuard, VNI: 1, WireGuard: WireGuardConf{Ports: [2]uint16{51821, 51821}, Mode: ModeSeparate}}, ""},
		`"Type": "wireguard", "ListenPort": 1, "ListenPortV6": 2, "PSK": "` + psk + `", "PersistentKeepaliveInterval": 25, "MTU": 1400, "Mode": ""`: {[]string{"4", "46", "6"},
			Backend{Type: WireGuard, VNI: 1, MTU: 1400, WireGuard: WireGuardConf{Ports: [2]uint16{1, 2}, PSK: secret, Keepalive: 25 * time.Second, Mode: ModeSeparate}}, ""},
		`"Type": "wireguard", "Mode": "auto", "ListenPortV6": 7`: {[]string{"46"}, Backend{Type: WireGuard, VNI: 1, WireGuard: WireGuardConf{Ports: [2]uint16{51820}, Mode: ModeAuto}},
			`ListenPortV6: has no effect in Mode "auto", which has one device: it listens on ListenPort`},
		`"Type": "wireguard", "ListenPort": 0, "PSK": null, "PersistentKeepaliveInterval": 0`: {[]string{"4"}, Backend{Type: WireGuard, VNI: 1, WireGuard: WireGuardConf{Ports: [2]uint16{51820, 51821}, Mode: ModeSeparate}}, ""},
		`"Type": "host-gw", "DirectRouting": true, "VNI": 9, "psk": "` + psk + `"`: {[]string{"4"}, Backend{Type: HostGW, VNI: 1},
			"DirectRouting: has no effect with this Type: it is a key of vxlan and ipip\nVNI: has no effect with this Type: it is a key of vxlan\n" +
				"psk: has no effect with this Type: it is a key of wireguard"},
		`"Type": "vxlan", "PSK": 7`: {[]string{"4"}, Backend{Type: VXLAN, VNI: 1}, "PSK: has no effect with this Type: it is a key of wireguard"},
		`"Type": "wireguard", "PKS": "` + psk + `"`: {[]string{"4"}, Backend{Type: WireGuard, VNI: 1, WireGuard: WireGuardConf{Ports: [2]uint16{51820, 51821}, Mode: ModeSeparate}},
			`PKS: is not a known key and has no effect`},
	} {
		for _, cluster := range c.clusters {
			got, warnings, err := parseBackend(cluster, in)
			if err != nil {
				t.Errorf("%s %s: %v", cluster, in, err)
				continue
			}
			if got != c.want {
				t.Errorf("%s %s:\ngot  %+v\nwant %+v", cluster, in, got, c.want)
			}
			if diff := cmp.Diff(c.warnings, warnings); diff != "" {
				t.Errorf("%s %s: warnings (-want +got):\n%s", cluster, in, diff)
			}
		}
	}
}

func TestEachWrongValueOfABackendIsRefusedWithItsCure(t *testing.T) {
	const wg = `"Type": "wireguard", `
	for in, c := range map[string]struct{ clusters, want string }{
		wg + `"ListenPort": 70000`:                  {"4 46 6", "ListenPort: 70000 is out of range: use 1 to 65535, or leave it out"},
		wg + `"ListenPortV6": "51821"`:              {"4 46 6", `ListenPortV6: "51821" is text: write a whole number without quotes, or leave it out`},
		wg + `"ListenPort": 51821`:                  {"46", `ListenPortV6: 51821 is also ListenPort: the two devices of Mode "separate" need a port each`},
		wg + `"ListenPort": 7, "ListenPortV6": 7`:   {"46", `ListenPortV6: 7 is also ListenPort: the two devices of Mode "separate" need a port each`},
		wg + `"PersistentKeepaliveInterval": "25"`:  {"4", `PersistentKeepaliveInterval: "25" is text: write a whole number without quotes (seconds; 0 is off)`},
		wg + `"PersistentKeepaliveInterval": 65536`: {"4", `PersistentKeepaliveInterval: 65536 is out of range: use 0 to 65535 (seconds; 0 is off)`},
		wg + `"Mode": "Auto"`:                       {"4", `Mode: "Auto" is no mode: use one of ["separate" "auto" "ipv4" "ipv6"], in small letters`},
		wg + `"Mode": "dual"`:                       {"4", `Mode: "dual" is no mode: use one of ["separate" "auto" "ipv4" "ipv6"]`},
		wg + `"Mode": 4`:                            {"4", `Mode: 4 is not text: write it in double quotes`},
		wg + `"Mode": "ipv6"`:                       {"4", `Mode: "ipv6" sends everything over IPv6, and EnableIPv6 is false: use "separate" or "auto"`},
		wg + `"Mode": "ipv4"`:                       {"6", `Mode: "ipv4" sends everything over IPv4, and EnableIPv4 is false: use "separate" or "auto"`},
		wg + `"MTU": 1359`:                          {"46 6", "MTU: 1359 leaves IPv6 pods less than the 1280 bytes that IPv6 needs: use at least 1360"},
		wg + `"MTU": 575`:                           {"4", "MTU: 575 is out of range: use 576 to 65535, or leave it out"},
		`"Type": "vxlan", "MTU": 1349`:              {"46 6", "MTU: 1349 leaves IPv6 pods less than the 1280 bytes that IPv6 needs: use at least 1350"},
		`"Type": "ipip", "MTU": 1319`:               {"46 6", "MTU: 1319 leaves IPv6 pods less than the 1280 bytes that IPv6 needs: use at least 1320"},
		`"Type": "host-gw", "MTU": 1279`:            {"46 6", "MTU: 1279 leaves IPv6 pods less than the 1280 bytes that IPv6 needs: use at least 1280"},
		`"Type": "ipip", "DirectRouting": "yes"`:    {"4", `DirectRouting: "yes" is not a boolean: write true or false, without quotes`},
		wg + `"PSK": "` + base64.StdEncoding.EncodeToString(make([]byte, 32)) + `"`: {"4", "PSK: is all zero, which WireGuard takes for none: write the line that wg genpsk prints, or leave it out"},
	} {
		for cluster := range strings.FieldsSeq(c.clusters) {
			_, _, err := parseBackend(cluster, in)
			if got := fmt.Sprint(err); got != "net-conf.json: Backend."+c.want {
				t.Errorf("%s %s:\ngot  %s\nwant %s", cluster, in, got, c.want)
			}
		}
	}
}

func TestNoErrorShowsThePreSharedKey(t *testing.T) {
	const secret = "c2VjcmV0IHdvcmRzIHRoYXQgbm9ib2R5IHNlZXMh"
	for _, psk := range []string{`"` + secret + `"`, `["` + secret + `"]`, `{"` + secret + `":1}`, `"` + secret + `\n"`, `"` + secret + `AAAA="`, "[" + strings.Repeat("7,", 40) + "7]"} {
		for _, in := range []string{`"Type": "wireguard", "PSK": ` + psk, `"PSK": ` + psk + `, "Type": "udp"`, `"PSK": ` + psk + `, "Type": "vxlan"`, `"Type": "wireguard", "PKS": ` + psk} {
			_, warnings, err := parseBackend("4", in)
			text := warnings + fmt.Sprint(err)
			if strings.Contains(text, secret[:6]) || strings.Contains(text, "7,7") {
				t.Errorf("%s: %s", in, text)
			}
			if strings.Contains(in, `"wireguard", "PSK"`) && err == nil {
				t.Errorf("%s is accepted", in)
			}
		}
	}
}

func TestOverheadIsWhatTheWireShows(t *testing.T) {
	want := map[string][2]int{VXLAN: {50, 70}, HostGW: {}, WireGuard: {80, 80}, IPIP: {20, 40}, Alloc: {}}
	got := map[string][2]int{}
	for _, kind := range BackendKinds() {
		got[kind] = [2]int{Overhead(kind, IPv4), Overhead(kind, IPv6)}
	}
	if diff := cmp.Diff(want, got); diff != "" {
		t.Error(diff)
	}
}

func TestTunnelsOfBothFamiliesArriveAtTheOneDevicesPort(t *testing.T) {
	for mode, want := range map[string][2]uint16{ModeSeparate: {1, 2}, ModeAuto: {1, 1}, ModeIPv4: {1, 1}, ModeIPv6: {1, 1}} {
		b, _, err := parseBackend("46", `"Type": "wireguard", "ListenPort": 1, "ListenPortV6": 2, "Mode": "`+mode+`"`)
		if got := [2]uint16{b.WireGuard.Port(IPv4), b.WireGuard.Port(IPv6)}; err != nil || got != want {
			t.Errorf("%s: %v, want %v; %v", mode, got, want, err)
		}
	}
	if got := (WireGuardConf{}).Port(IPv6); got != 0 {
		t.Errorf("another backend's port is %d", got)
	}
}
