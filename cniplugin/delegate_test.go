package main

import (
	"encoding/json"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func prefixes(in ...string) []netip.Prefix {
	var out []netip.Prefix
	for _, s := range in {
		out = append(out, netip.MustParsePrefix(s))
	}
	return out
}

// The wanted texts are what flannel's plugin makes, byte for byte.
func TestTheDelegateIsWhatFlannelMakesOfTheSameInput(t *testing.T) {
	v4 := nodeNet{Networks: prefixes("10.244.0.0/16"), Subnets: prefixes("10.244.1.1/24"), MTU: 1472, IPMasq: true}
	dual := nodeNet{Networks: prefixes("10.244.0.0/16", "fd00:10:244::/56"), Subnets: prefixes("10.244.1.1/24", "fd00:10:244:1::1/64"), MTU: 1450, IPMasq: true}
	two := nodeNet{Networks: prefixes("10.244.0.0/16", "10.245.0.0/16"), Subnets: prefixes("10.244.1.1/24"), MTU: 1450}
	for name, c := range map[string]struct {
		in   string
		net  nodeNet
		want string
	}{
		"stock, dual stack": {`{"cniVersion":"0.3.1","name":"cbr0","type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}}`, dual,
			`{"cniVersion":"0.3.1","hairpinMode":true,"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}],[{"subnet":"fd00:10:244:1::/64"}]],"routes":[{"dst":"10.244.0.0/16"},{"dst":"fd00:10:244::/56"}],"type":"host-local"},"isDefaultGateway":true,"isGateway":true,"mtu":1450,"name":"cbr0","type":"bridge"}`},
		"no version, no delegate": {`{"name":"cbr0","type":"flannel"}`, v4,
			`{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"isGateway":true,"mtu":1472,"name":"cbr0","type":"bridge"}`},
		"delegate null": {`{"name":"cbr0","delegate":null,"ipam":{"type":""}}`, v4,
			`{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"isGateway":true,"mtu":1472,"name":"cbr0","type":"bridge"}`},
		"the operator's words win": {`{"name":"n","cniVersion":"1.0.0","delegate":{"type":"ptp","mtu":1400,"ipMasq":true,"cniVersion":"0.2.0","later":{"x":[1]}}}`, v4,
			`{"cniVersion":"1.0.0","ipMasq":true,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"later":{"x":[1]},"mtu":1400,"name":"n","type":"ptp"}`},
		"ipam is kept, its routes go first, its ranges are the node's": {`{"name":"n","ipam":{"type":"mine","big":12345678901234567890,"ranges":[[{"subnet":"192.0.2.0/24"}]],"routes":[{"dst":"192.168.0.0/24","gw":"10.244.1.7","later":1}],"dataDir":"/x"}}`, two,
			`{"ipMasq":true,"ipam":{"big":12345678901234567890,"dataDir":"/x","ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"192.168.0.0/24","gw":"10.244.1.7","later":1},{"dst":"10.244.0.0/16"},{"dst":"10.245.0.0/16"}],"type":"mine"},"isGateway":true,"mtu":1450,"name":"n","type":"bridge"}`},
		"runtimeConfig replaces": {`{"name":"n","runtimeConfig":{"mac":"0a:00:00:00:00:01"},"delegate":{"runtimeConfig":{"old":1}},"capabilities":{"mac":true},"dns":{},"args":{}}`, v4,
			`{"ipMasq":false,"ipam":{"ranges":[[{"subnet":"10.244.1.0/24"}]],"routes":[{"dst":"10.244.0.0/16"}],"type":"host-local"},"isGateway":true,"mtu":1472,"name":"n","runtimeConfig":{"mac":"0a:00:00:00:00:01"},"type":"bridge"}`},
	} {
		conf, err := parseConf([]byte(c.in))
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		d, err := buildDelegate(conf, c.net)
		if err != nil {
			t.Errorf("%s: %v", name, err)
			continue
		}
		got, err := json.Marshal(d)
		if err != nil {
			t.Fatal(err)
		}
		if d := cmp.Diff(c.want, string(got)); d != "" {
			t.Errorf("%s (-want +got):\n%s", name, d)
		}
	}
}

func TestAnInputThatCannotBeMeantIsRefusedInFlannelsWords(t *testing.T) {
	for in, want := range map[string]string{
		`{"delegate":{"type":1}}`:             "'delegate' dictionary, if present, must have (string) 'type' field",
		`{"delegate":{"type":null}}`:          "'delegate' dictionary, if present, must have (string) 'type' field",
		`{"delegate":{"type":""}}`:            "'delegate' dictionary, if present, must have (string) 'type' field",
		`{"delegate":{"name":"x"}}`:           "'delegate' dictionary must not have 'name' field, it'll be set by flannel",
		`{"delegate":{"ipam":{}}}`:            "'delegate' dictionary must not have 'ipam' field, it'll be set by flannel",
		`{"ipam":{"routes":[{"dst":"nix"}]}}`: "failed to assemble Delegate IPAM: failed to read IPAM routes: failed to parse ipam.routes: ",
		`{"ipam":{"routes":{}}}`:              "failed to assemble Delegate IPAM: failed to read IPAM routes: failed to parse ipam.routes: ",
		`{"ipam":{"type":7}}`:                 "failed to assemble Delegate IPAM: read type: want a string",
		`{"ipam":{"dataDir":null}}`:           "failed to assemble Delegate IPAM: read dataDir: want a string",
		`{"delegate":"bridge"}`:               "failed to load flannel netconf file: ",
		`{"dataDir":7}`:                       "failed to load flannel netconf file: ",
		`[]`:                                  "failed to load flannel netconf file: ",
		``:                                    "failed to load flannel netconf file: ",
	} {
		c, err := parseConf([]byte(in))
		if err == nil {
			_, err = buildDelegate(c, nodeNet{})
		}
		if err == nil || !strings.HasPrefix(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", in, err, want)
		}
	}
}

func TestDefaultsOfTheInput(t *testing.T) {
	c, err := parseConf([]byte(`{"name":"cbr0"}`))
	if err != nil || c.SubnetFile != "/run/flannel/subnet.env" || c.DataDir != "/var/lib/cni/flannel" {
		t.Errorf("%+v, %v", c, err)
	}
}

func TestDelReadsAConfigurationThatAddRefuses(t *testing.T) {
	c, err := parseConfForDel([]byte(`{"name":"cbr0","dataDir":"/x","delegate":"broken"}`))
	if err != nil || c.DataDir != "/x" || c.Name != "cbr0" {
		t.Errorf("%+v, %v", c, err)
	}
	if _, err := parseConfForDel([]byte(`{"dataDir":7}`)); err == nil {
		t.Error("no error for a dataDir that is a number")
	}
}

func TestC03NoCutOfSubnetEnvIsMoreThanAnError(t *testing.T) {
	const whole = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	path := filepath.Join(t.TempDir(), "subnet.env")
	for i := range len(whole) {
		if err := os.WriteFile(path, []byte(whole[:i]), 0o600); err != nil {
			t.Fatal(err)
		}
		if n, err := loadEnv(path); err == nil && i < len(whole)-1 { // without its last line feed it is whole
			t.Errorf("cut at %d: %+v", i, n)
		} else if err != nil && !strings.HasPrefix(err.Error(), "failed to load flannel 'subnet.env' file: ") {
			t.Errorf("cut at %d: %v", i, err)
		}
	}
	if err := os.WriteFile(path, []byte("foo=bar"), 0o600); err != nil {
		t.Fatal(err)
	}
	_, err := loadEnv(path)
	want := "failed to load flannel 'subnet.env' file: " + path + " is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ. Check the flannel pod log for this node."
	if err == nil || err.Error() != want {
		t.Errorf("got %v, want %s", err, want)
	}
}

func TestEnvGivesFamiliesInOrder(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subnet.env")
	text := "FLANNEL_IPV6_NETWORK=fd00::/48\nFLANNEL_IPV6_SUBNET=fd00:0:0:1::1/64\r\n# note\n\nFLANNEL_NETWORK=\"10.244.0.0/16,10.245.0.0/16\"\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=false\n"
	if err := os.WriteFile(path, []byte(text), 0o600); err != nil {
		t.Fatal(err)
	}
	got, err := loadEnv(path)
	want := nodeNet{Networks: prefixes("10.244.0.0/16", "10.245.0.0/16", "fd00::/48"), Subnets: prefixes("10.244.1.0/24", "fd00:0:0:1::/64"), MTU: 1450}
	if d := cmp.Diff(want, got, cmp.Comparer(func(a, b netip.Prefix) bool { return a == b })); err != nil || d != "" {
		t.Errorf("%v (-want +got):\n%s", err, d)
	}
}

func FuzzStdin(f *testing.F) {
	f.Add([]byte(`{"cniVersion":"0.3.1","name":"cbr0","type":"flannel","delegate":{"hairpinMode":true,"isDefaultGateway":true}}`))
	f.Add([]byte(`{"name":"n","ipam":{"routes":[{"dst":"192.168.0.0/24"}],"ranges":1},"runtimeConfig":{},"prevResult":{"ips":[{"address":"10.1.1.1/24","gateway":"::"}]}}`))
	f.Add([]byte(`{"name":"n","cni.dev/valid-attachments":[{"containerID":"a","ifname":"eth0"}],"prevResult":{"ip4":{"ip":"10.1.1.1/24"}}}`))
	f.Add([]byte(`{"delegate":{"type":null},"ipam":{"type":0}}`))
	n := nodeNet{Networks: prefixes("10.244.0.0/16"), Subnets: prefixes("10.244.1.0/24"), MTU: 1450}
	f.Fuzz(func(t *testing.T, in []byte) {
		_, _ = parseConfForDel(in)
		c, err := parseConf(in)
		if err != nil {
			return
		}
		_, _, _ = c.validAttachments()
		_, _ = storeOf(c)
		_ = gatewaysOf(c.PrevResult)
		d, err := buildDelegate(c, n)
		if err != nil {
			return
		}
		raw, err := json.Marshal(d)
		if err != nil || !json.Valid(raw) {
			t.Fatalf("%q gives %q: %v", in, raw, err)
		}
		var back struct {
			Name string `json:"name"`
			IPAM struct {
				Ranges [][]struct {
					Subnet string `json:"subnet"`
				} `json:"ranges"`
			} `json:"ipam"`
		}
		if err := json.Unmarshal(raw, &back); err != nil || len(back.IPAM.Ranges) != 1 || back.IPAM.Ranges[0][0].Subnet != "10.244.1.0/24" {
			t.Fatalf("%q gives %q (%v), whose ranges are not the node's", in, raw, err)
		}
	})
}
