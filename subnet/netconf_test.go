package subnet

import (
	"errors"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

var comparePrefixes = cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })

func prefix(s string) netip.Prefix { return netip.MustParsePrefix(s) }

// conf4 is what the stock file means, after a change.
func conf4(change func(*NetConf)) NetConf {
	c := NetConf{Networks: [2]netip.Prefix{prefix("10.244.0.0/16")}, Enabled: [2]bool{true}, Backend: Backend{Type: "vxlan", VNI: 1}}
	if change != nil {
		change(&c)
	}
	return c
}

func TestParseNetConfReadsWhatFlannelReads(t *testing.T) {
	const vxlan = `"Backend": {"Type": "vxlan"}`
	for name, c := range map[string]struct {
		in       string
		want     NetConf
		warnings string // of all, joined
	}{
		"the stock file":       {`{"Network": "10.244.0.0/16", "EnableNFTables": false, ` + vxlan + `}`, conf4(nil), ""},
		"host bits are masked": {`{"Network": "10.244.7.9/16", ` + vxlan + `}`, conf4(nil), ""},
		"keys in any case": {`{"network": "10.244.0.0/16", "backend": {"TYPE": "VXLAN", "port": 4789, "vni": 7}}`,
			conf4(func(c *NetConf) { c.Backend.Port, c.Backend.VNI = 4789, 7 }), ""},
		"the last of equal keys": {`{"Network": "10.1.0.0/16", "NETWORK": "10.244.0.0/16", "Backend": {"Type":"vxlan","Port":1,"port":2}}`,
			conf4(func(c *NetConf) { c.Backend.Port = 2 }),
			"net-conf.json: Network: is there more than once: the last one counts\nnet-conf.json: Backend.Port: is there more than once: the last one counts"},
		"a second Backend replaces the first": {`{"Network": "10.244.0.0/16", "Backend": {"Type":"vxlan","Port":1}, ` + vxlan + `}`, conf4(nil),
			"net-conf.json: Backend: is there more than once: the last one counts"},
		"null is no value":  {`{"Network": "10.244.0.0/16", "EnableIPv4": null, "Backend": {"Type": "vxlan", "Port": null, "MTU": null}}`, conf4(nil), ""},
		"a byte order mark": {"\xef\xbb\xbf" + `{"Network": "10.244.0.0/16", ` + vxlan + `}`, conf4(nil), ""},
		"no Backend means vxlan": {`{"Network": "10.244.0.0/16"}`, conf4(nil),
			`net-conf.json: Backend: is absent: vxlan is used, where flannel would use udp; write "Backend": {"Type": "vxlan"}`},
		"no Type means vxlan": {`{"Network": "10.244.0.0/16", "Backend": {}}`, conf4(nil),
			`net-conf.json: Backend.Type: is absent: vxlan is used; write "Type": "vxlan"`},
		"all keys of vxlan": {`{"Network": "10.244.0.0/16", "EnableNFTables": true, "Backend": {"VNI": 0, "Port": 65535, "MTU": 9000,
			"GBP": true, "Learning": true, "DirectRouting": true, "MacPrefix": "0E-2A", "Name": "flannel", "Type": "vxlan"}}`,
			conf4(func(c *NetConf) {
				c.EnableNFTables = true
				c.Backend = Backend{Type: "vxlan", VNI: 0, Port: 65535, MTU: 9000, GBP: true, Learning: true, DirectRouting: true}
			}), ""},
		"zero is unset": {`{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "Port": 0, "MTU": 0}}`, conf4(nil), ""},
		"both families": {`{"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "fd00:10:244::1/56", ` + vxlan + `}`,
			conf4(func(c *NetConf) { c.Enabled[IPv6], c.Networks[IPv6] = true, prefix("fd00:10:244::/56") }), ""},
		"IPv6 alone": {`{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00:10:244::/56", ` + vxlan + `}`,
			conf4(func(c *NetConf) {
				c.Enabled, c.Networks = [2]bool{false, true}, [2]netip.Prefix{IPv6: prefix("fd00:10:244::/56")}
			}), ""},
		"a network of a family that is off": {`{"Network": "10.244.0.0/16", "IPv6Network": "fd00::/56", ` + vxlan + `}`, conf4(nil),
			"net-conf.json: IPv6Network: has no effect while EnableIPv6 is false"},
		"D-07 no IPv6, as k3s writes it": {`{"Network": "10.244.0.0/16", "EnableIPv6": false, "EnableIPv4": true, "IPv6Network": "::/0", ` + vxlan + `}`, conf4(nil), ""},
		"D-07 no IPv4, as k3s writes it": {`{"Network": "0.0.0.0/0", "EnableIPv6": true, "EnableIPv4": false, "IPv6Network": "fd00:10:244::/56", ` + vxlan + `}`,
			conf4(func(c *NetConf) {
				c.Enabled, c.Networks = [2]bool{false, true}, [2]netip.Prefix{IPv6: prefix("fd00:10:244::/56")}
			}), ""},
		"keys of the etcd mode": {`{"Network": "10.244.0.0/16", "SubnetLen": 24, "SubnetMin": "10.244.1.0", "SubnetMax": "", ` + vxlan + `}`, conf4(nil),
			strings.Repeat("net-conf.json: SubnetLen: has no effect in Kubernetes: the controller-manager gives each node its pod CIDR\n", 1) +
				"net-conf.json: SubnetMin: has no effect in Kubernetes: the controller-manager gives each node its pod CIDR\n" +
				"net-conf.json: SubnetMax: has no effect in Kubernetes: the controller-manager gives each node its pod CIDR"},
		"D-07 misspelt keys": {`{"Network": "10.244.0.0/16", "EnableNFTable": true, "Port": 4789, "Colour": 1, "Backend": {"Type": "vxlan", "Porrt": 4789}}`, conf4(nil),
			`net-conf.json: EnableNFTable: is not a known key and has no effect: did you mean "EnableNFTables"?` + "\n" +
				"net-conf.json: Port: is not a known key and has no effect: it belongs into Backend\n" +
				"net-conf.json: Colour: is not a known key and has no effect\n" +
				`net-conf.json: Backend.Porrt: is not a known key and has no effect: did you mean "Port"?`},
		"a huge unknown key": {`{"Network": "10.244.0.0/16", "` + strings.Repeat("k", 5000) + `": 1, ` + vxlan + `}`, conf4(nil),
			"net-conf.json: " + strings.Repeat("k", 60) + "...: is not a known key and has no effect"},
		"V-08 TxChecksumOffload off": {`{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "TxChecksumOffload": "off"}}`,
			conf4(func(c *NetConf) { c.Backend.TxChecksum = OffloadOff }), ""},
		"V-08 TxChecksumOffload auto": {`{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "TxChecksumOffload": "auto"}}`, conf4(nil), ""},
		"V-08 TxChecksumOffload on": {`{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "TxChecksumOffload": true}}`,
			conf4(func(c *NetConf) { c.Backend.TxChecksum = OffloadOn }), ""},
	} {
		t.Run(name, func(t *testing.T) {
			got, warnings, err := ParseNetConf([]byte(c.in))
			if err != nil {
				t.Fatal(err)
			}
			if diff := cmp.Diff(c.want, got, comparePrefixes); diff != "" {
				t.Errorf("conf (-want +got):\n%s", diff)
			}
			var lines []string
			for _, w := range warnings {
				lines = append(lines, w.String())
			}
			if diff := cmp.Diff(c.warnings, strings.Join(lines, "\n")); diff != "" {
				t.Errorf("warnings (-want +got):\n%s", diff)
			}
		})
	}
}

func TestParseNetConfRefusesEachWrongValueWithItsCure(t *testing.T) {
	backend := func(s string) string { return `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", ` + s + `}}` }
	top := func(s string) string { return `{` + s + `, "Backend": {"Type": "vxlan"}}` }
	kind := func(s string) string { return `{"Network": "10.244.0.0/16", "Backend": {"Type": "` + s + `"}}` }
	for in, want := range map[string]string{
		``:                            `net-conf.json: is empty: write at least {"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}`,
		" \n":                         `net-conf.json: is empty: write at least {"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}`,
		`{"Network": "10.244.0.0/16"`: "net-conf.json: unexpected end of JSON input (line 1, column 27): is a closing bracket or quote missing?",
		"{\n\"Network\": 10.244\n,}":  "net-conf.json: invalid character '}' looking for beginning of object key string (line 3, column 2): is there a comma too many before it?",
		`{'Network': 1}`:              `net-conf.json: invalid character '\'' looking for beginning of object key string (line 1, column 2): JSON has double quotes`,
		`Network: 10.244.0.0/16`:      `net-conf.json: invalid character 'N' looking for beginning of value (line 1, column 1): write JSON, { "Key": value, ... }`,
		"// pods\n{}":                 `net-conf.json: invalid character '/' looking for beginning of value (line 1, column 1): JSON has no comments`,
		`{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "VNI": 10000000}}`: "net-conf.json: Backend.VNI: 10000000 makes a device of the name flannel.10000000, " +
			"which is longer than the 15 letters that Linux allows: use 0 to 9999999",
		`{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00::/48", "Backend": {"Type": "vxlan", "VNI": 10000}}`: "net-conf.json: Backend.VNI: 10000 makes a device of the name flannel-v6.10000, " +
			"which is longer than the 15 letters that Linux allows: use 0 to 9999",
		`[]`:    `net-conf.json: [] is not a JSON object: write { "Key": value, ... }`,
		`{} {}`: "net-conf.json: invalid character '{' after top-level value (line 1, column 4)",
		top(`"EnableNFTables": false`): "net-conf.json: Network: is missing: set it to the IPv4 range that the cluster gives its pods from " +
			"(kubeadm: --pod-network-cidr, controller-manager: --cluster-cidr), or set EnableIPv4 to false",
		top(`"Network": ""`): "net-conf.json: Network: is missing: set it to the IPv4 range that the cluster gives its pods from " +
			"(kubeadm: --pod-network-cidr, controller-manager: --cluster-cidr), or set EnableIPv4 to false",
		top(`"Network": "10.244.0.0"`): `net-conf.json: Network: "10.244.0.0" is not a CIDR: write an IPv4 range like 10.244.0.0/16`,
		top(`"Network": 10`):           `net-conf.json: Network: 10 is not text: write it in double quotes`,
		top(`"Network": "fd00::/56"`):  `net-conf.json: Network: "fd00::/56" is an IPv6 range: it belongs into IPv6Network; Network takes IPv4`,
		top(`"Network": "0.0.0.0/0"`):  `net-conf.json: Network: "0.0.0.0/0" is the whole address space: name the range that pods get their addresses from`,
		top(`"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "::/0"`): `net-conf.json: IPv6Network: "::/0" is the whole address space: name the range that pods get their addresses from`,
		top(`"Network": "10.0.0.0/31"`):                                              `net-conf.json: Network: "10.0.0.0/31" has no room for a pod: use a shorter prefix`,
		top(`"Network": "127.0.0.0/8"`):                                              `net-conf.json: Network: "127.0.0.0/8" is a loopback, link-local or multicast range: pods need a routable one`,
		top(`"Network": "10.244.0.0/16", "EnableIPv4": "yes"`):                       `net-conf.json: EnableIPv4: "yes" is not a boolean: write true or false, without quotes`,
		top(`"EnableIPv4": false`):                                                   "net-conf.json: EnableIPv4: both EnableIPv4 and EnableIPv6 are false: set one of them to true",
		top(`"Network": "10.244.0.0/16", "EnableIPv6": true`): "net-conf.json: IPv6Network: is missing: set it to the IPv6 range that the cluster gives its pods from " +
			"(kubeadm: --pod-network-cidr, controller-manager: --cluster-cidr), or set EnableIPv6 to false",
		top(`"Network": "10.244.0.0/16", "EnableIPv6": true, "IPv6Network": "10.1.0.0/16"`): `net-conf.json: IPv6Network: "10.1.0.0/16" is an IPv4 range: it belongs into Network; IPv6Network takes IPv6`,
		top(`"Network": "10.244.0.0/16", "IPv6Network": "::ffff:10.0.0.0/112"`):             `net-conf.json: IPv6Network: "::ffff:10.0.0.0/112" is an IPv4 address in IPv6 notation: write it as plain IPv4 into Network`,
		top(`"Network": "10.244.0.0/16", "SubnetLen": "24"`):                                `net-conf.json: SubnetLen: "24" is text: write a whole number without quotes`,
		top(`"Network": "10.244.0.0/16", "SubnetMin": "fd00::"`):                            `net-conf.json: SubnetMin: "fd00::" is not an IPv4 address`,
		top(`"Network": "10.244.0.0/16", "SubnetMax": 7`):                                   `net-conf.json: SubnetMax: 7 is not text: write it in double quotes`,
		backend(`"TxChecksumOffload": "maybe"`):                                             `net-conf.json: Backend.TxChecksumOffload: "maybe" is no choice: use "auto", "on" or "off"`,
		backend(`"VNI": 16777216`):                                                          "net-conf.json: Backend.VNI: 16777216 is out of range: use 0 to 16777215",
		backend(`"VNI": -1`):                                                                "net-conf.json: Backend.VNI: -1 is out of range: use 0 to 16777215",
		backend(`"VNI": 1.5`):                                                               "net-conf.json: Backend.VNI: 1.5 is not a whole number",
		backend(`"Port": 70000`):                                                            "net-conf.json: Backend.Port: 70000 is out of range: use 1 to 65535, or leave it out",
		backend(`"Port": "4789"`):                                                           `net-conf.json: Backend.Port: "4789" is text: write a whole number without quotes, or leave it out`,
		backend(`"Port": 99999999999999999999`):                                             "net-conf.json: Backend.Port: 99999999999999999999 is out of range: use 1 to 65535, or leave it out",
		backend(`"MTU": 40`):                                                                "net-conf.json: Backend.MTU: 40 is out of range: use 576 to 65535, or leave it out",
		backend(`"MTU": -1400`):                                                             "net-conf.json: Backend.MTU: -1400 is out of range: use 576 to 65535, or leave it out",
		backend(`"GBP": 1`):                                                                 "net-conf.json: Backend.GBP: 1 is not a boolean: write true or false, without quotes",
		`{"EnableIPv4": false, "EnableIPv6": true, "IPv6Network": "fd00::/56", "Backend": {"Type": "vxlan", "MTU": 1300}}`: "net-conf.json: Backend.MTU: 1300 leaves IPv6 pods less than the 1280 bytes that IPv6 needs: use at least 1350",
		`{"Network": "10.244.0.0/16", "Backend": [{"PSK": "` + strings.Repeat("A", 43) + `="}]}`:                           `net-conf.json: Backend: [...] is not a JSON object: write { "Key": value, ... }`,
		`{"Network": "10.244.0.0/16", "Backend": "vxlan"}`:                                                                 `net-conf.json: Backend: "vxlan" is not a JSON object: write { "Key": value, ... }`,
		`{"Network": "10.244.0.0/16", "Backend": {"Type": 1}}`:                                                             `net-conf.json: Backend.Type: 1 is not text: write it in double quotes`,
		kind("udp"):              `net-conf.json: Backend.Type: "udp" sends every packet through a user-space process and is kept by flannel for debugging only: use "vxlan"`,
		kind("ipsec"):            `net-conf.json: Backend.Type: "ipsec" needs strongSwan and one password for the whole cluster: use "wireguard", which encrypts with a key per node`,
		kind("wireguard-native"): `net-conf.json: Backend.Type: "wireguard-native" is what k3s calls it: use "wireguard"`,
		kind("hostgw"):           `net-conf.json: Backend.Type: "hostgw" is not a known backend type: did you mean "host-gw"?; there are ["vxlan" "host-gw" "wireguard" "ipip" "alloc"]`,
		kind(""):                 `net-conf.json: Backend.Type: "" is not a known backend type; there are ["vxlan" "host-gw" "wireguard" "ipip" "alloc"]`,
	} {
		conf, _, err := ParseNetConf([]byte(in))
		if err == nil {
			t.Errorf("%s: accepted", in)
			continue
		}
		if diff := cmp.Diff(want, err.Error()); diff != "" {
			t.Errorf("%s (-want +got):\n%s", in, diff)
		}
		if conf != (NetConf{}) {
			t.Errorf("%s: a half-read conf came with the error", in)
		}
	}
}

func TestParseNetConfTellsAllProblemsAtOnce(t *testing.T) {
	_, warnings, err := ParseNetConf([]byte(`{"EnableNFTable": true, "EnableIPv6": "x", "Backend": {"Type": "vxlan", "VNI": -1, "Port": 70000, "MTU": 40}}`))
	if err == nil {
		t.Fatal("accepted")
	}
	for _, place := range []string{"EnableIPv6:", "Backend.VNI:", "Backend.Port:", "Backend.MTU:", "Network:"} {
		if !strings.Contains(err.Error(), "net-conf.json: "+place) {
			t.Errorf("%s is not named in:\n%v", place, err)
		}
	}
	if n := strings.Count(err.Error(), "\n") + 1; n != 5 || len(warnings) != 1 {
		t.Errorf("%d lines and %d warnings, want 5 and 1:\n%v", n, len(warnings), err)
	}
}

func TestParseNetConfRefusesEveryOtherBackendWithASentence(t *testing.T) {
	for kind, why := range refusedBackends {
		_, _, err := ParseNetConf([]byte(`{"Network": "10.244.0.0/16", "Backend": {"Type": "` + kind + `", "PSK": "x"}}`))
		if err == nil || !strings.Contains(err.Error(), why) || !strings.Contains(why, "use ") {
			t.Errorf("%s: %v", kind, err)
		}
	}
}

func TestCheckSelfTellsWhatTheOwnNodeLacks(t *testing.T) {
	dual := conf4(func(c *NetConf) { c.Enabled[IPv6], c.Networks[IPv6] = true, prefix("fd00:10:244::/56") })
	for name, c := range map[string]struct {
		conf  NetConf
		cidrs [2]netip.Prefix
		want  error
		text  string
	}{
		"inside":                     {conf4(nil), [2]netip.Prefix{prefix("10.244.1.0/24")}, nil, ""},
		"the whole network":          {conf4(nil), [2]netip.Prefix{prefix("10.244.0.0/16")}, nil, ""},
		"D-01 none yet":              {conf4(nil), [2]netip.Prefix{}, ErrNoPodCIDR, `node "n1" pod cidr not assigned: does the controller-manager run with --allocate-node-cidrs`},
		"D-02 outside":               {conf4(nil), [2]netip.Prefix{prefix("10.42.1.0/24")}, ErrOutsideNetwork, `subnet "10.244.0.0/16" specified in the flannel net config doesn't contain "10.42.1.0/24" PodCIDR of the "n1" node: pod cidr is outside the configured network: make Network of net-conf.json the range of`},
		"D-02 shorter":               {conf4(nil), [2]netip.Prefix{prefix("10.0.0.0/8")}, ErrOutsideNetwork, ""},
		"D-02 a family that is off":  {conf4(nil), [2]netip.Prefix{prefix("10.244.1.0/24"), prefix("fd99::/64")}, nil, ""},
		"only a family that is off":  {conf4(nil), [2]netip.Prefix{IPv6: prefix("fd99::/64")}, ErrNoPodCIDR, ""},
		"S-02 one of two families":   {dual, [2]netip.Prefix{prefix("10.244.1.0/24")}, nil, ""},
		"one inside and one outside": {dual, [2]netip.Prefix{prefix("10.244.1.0/24"), prefix("fd99::/64")}, nil, ""},
		"both outside":               {dual, [2]netip.Prefix{prefix("10.42.1.0/24"), prefix("fd99::/64")}, ErrOutsideNetwork, ""},
	} {
		err := c.conf.CheckSelf(Self{Name: "n1", Exists: true, PodCIDRs: c.cidrs})
		if !errors.Is(err, c.want) || err != nil && !strings.Contains(err.Error(), c.text) {
			t.Errorf("%s: %v", name, err)
		}
	}
	if err := conf4(nil).CheckSelf(Self{Name: "n1"}); !errors.Is(err, ErrNoNode) {
		t.Errorf("no Node: %v", err)
	}
}

func FuzzParseNetConf(f *testing.F) {
	f.Add([]byte(`{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan", "Port": 8472}}`))
	f.Add([]byte(`{"Network":"10.1.0.0/16","network":null,"EnableIPv6":true,"IPv6Network":"fd00::/56","Backend":{"type":"VXLAN","mtu":1400}}`))
	f.Add([]byte(`{"Backend": {"Type": "udp"}, "SubnetLen": 99}`))
	f.Add([]byte(`{"Network":"10.1.0.0/16","Backend":{"Type":"wireguard","ListenPort":51820,"ListenPortV6":51820,"PSK":"","PersistentKeepaliveInterval":25,"Mode":"auto"}}`))
	f.Add([]byte(`{"Network":"10.1.0.0/16","Backend":{"DirectRouting":true,"Type":"ipip","TxChecksumOffload":"off"}}`))
	f.Add([]byte(`{"Network":"10.1.0.0/16","Backend":{"Type":"host-gw","VNI":1},"backend":{"Type":"alloc"}}`))
	f.Add([]byte("{\"Netwo\\u0072k\": \"10.0.0.0/8\"}"))
	f.Fuzz(func(t *testing.T, data []byte) {
		conf, _, err := ParseNetConf(data)
		if err != nil {
			for line := range strings.Lines(err.Error()) {
				if !strings.HasPrefix(line, "net-conf.json: ") {
					t.Errorf("a line without its file: %q", line)
				}
			}
			return
		}
		if conf.Enabled == [2]bool{} || !slices.Contains(BackendKinds(), conf.Backend.Type) || conf.Backend.VNI >= 1<<24 {
			t.Errorf("accepted: %+v", conf)
		}
		for _, f := range Families() {
			if n := conf.Networks[f]; n.IsValid() != conf.Enabled[f] || n.IsValid() && (n != n.Masked() || FamilyOf(n.Addr()) != f) {
				t.Errorf("%v network %v, enabled %v", f, n, conf.Enabled[f])
			}
		}
		if w := conf.Backend.WireGuard; (w.Mode != "") != (conf.Backend.Type == WireGuard) || (w.Port(IPv4) != 0) != (w.Mode != "") {
			t.Errorf("%s with %+v", conf.Backend.Type, w)
		}
		if m := conf.Backend.MTU; m != 0 && (m < 576 || m > 65535) {
			t.Errorf("MTU %d", m)
		}
	})
}
