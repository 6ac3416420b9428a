package subnet

import (
	"errors"
	"net/netip"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestRenderEnvIsByteForByteFlannels(t *testing.T) {
	for name, c := range map[string]struct {
		env  Env
		want string
	}{
		"IPv4": {Env{Networks: [2]netip.Prefix{prefix("10.244.0.0/16")}, Subnets: [2]netip.Prefix{prefix("10.244.1.0/24")}, MTU: 1450, IPMasq: true},
			"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"},
		"both": {Env{Networks: [2]netip.Prefix{prefix("10.244.0.0/16"), prefix("fd00:10:244::/56")},
			Subnets: [2]netip.Prefix{prefix("10.244.1.0/24"), prefix("fd00:10:244:1::/64")}, MTU: 1430},
			"FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_IPV6_NETWORK=fd00:10:244::/56\n" +
				"FLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=false\n"},
		"IPv6": {Env{Networks: [2]netip.Prefix{IPv6: prefix("fd00:10:244::/56")}, Subnets: [2]netip.Prefix{IPv6: prefix("fd00:10:244:1::/64")}, MTU: 1430},
			"FLANNEL_IPV6_NETWORK=fd00:10:244::/56\nFLANNEL_IPV6_SUBNET=fd00:10:244:1::1/64\nFLANNEL_MTU=1430\nFLANNEL_IPMASQ=false\n"},
	} {
		if diff := cmp.Diff(c.want, string(c.env.Render())); diff != "" {
			t.Errorf("%s (-want +got):\n%s", name, diff)
		}
		back, err := ParseEnv(c.env.Render())
		if diff := cmp.Diff(c.env, back, comparePrefixes); err != nil || diff != "" {
			t.Errorf("%s: read back: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestParseEnvIsTolerant(t *testing.T) {
	want := Env{Networks: [2]netip.Prefix{prefix("10.244.0.0/16")}, Subnets: [2]netip.Prefix{prefix("10.244.1.0/24")}, MTU: 1450, IPMasq: true}
	const plain = "FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"
	more := want
	more.MoreNetworks = []netip.Prefix{prefix("10.99.0.0/16")}
	for name, c := range map[string]struct {
		in   string
		want Env
	}{
		"plain":                   {plain, want},
		"no newline at the end":   {strings.TrimSuffix(plain, "\n"), want},
		"D-09 CRLF":               {strings.ReplaceAll(plain, "\n", "\r\n"), want},
		"quotes":                  {strings.NewReplacer("=", `="`, "\n", "\"\n").Replace(plain), want},
		"single quotes":           {strings.NewReplacer("=", `='`, "\n", "' # by hand\n").Replace(plain), want},
		"blanks":                  {"  " + strings.NewReplacer("=", " = ", "\n", " \n\n\t").Replace(plain), want},
		"comments":                {"# made by hand\n" + strings.ReplaceAll(plain, "\n", " # so\n"), want},
		"export":                  {"export " + strings.ReplaceAll(strings.TrimSuffix(plain, "\n"), "\n", "\nexport "), want},
		"a byte order mark":       {"\xef\xbb\xbf" + plain, want},
		"unknown keys":            {plain + "FOO=bar\n", want},
		"D-09 a comma list":       {strings.Replace(plain, "10.244.0.0/16", "10.244.0.0/16, 10.99.1.0/16,10.244.0.0/16,", 1), more},
		"D-09 an empty value":     {"FLANNEL_IPV6_SUBNET=\n" + plain, want},
		"the last line counts":    {"FLANNEL_MTU=1\n" + plain, want},
		"masquerade but not true": {strings.Replace(plain, "=true", "=True", 1), func() Env { e := want; e.IPMasq = false; return e }()},
	} {
		got, err := ParseEnv([]byte(c.in))
		if diff := cmp.Diff(c.want, got, comparePrefixes); err != nil || diff != "" {
			t.Errorf("%s: %v (-want +got):\n%s", name, err, diff)
		}
	}
}

func TestParseEnvNamesTheLineOfEachProblem(t *testing.T) {
	for in, want := range map[string]string{
		"FLANNEL_SUBNET":                                   `line 1: "FLANNEL_SUBNET" has no '=': write KEY=value`,
		"\n# x\nGARBAGE HERE\x00\x01":                      `line 3: "GARBAGE HERE  " has no '=': write KEY=value`,
		"FLANNEL_SUBNET=10.244.1.1":                        `line 1: FLANNEL_SUBNET: "10.244.1.1" is not an IPv4 CIDR`,
		"FLANNEL_SUBNET=fd00::1/64":                        `line 1: FLANNEL_SUBNET: "fd00::1/64" is not an IPv4 CIDR`,
		"FLANNEL_IPV6_NETWORK=10.0.0.0/8":                  `line 1: FLANNEL_IPV6_NETWORK: "10.0.0.0/8" is not an IPv6 CIDR`,
		"FLANNEL_SUBNET=10.1.0.1/24,10.2.0.1/24":           `line 1: FLANNEL_SUBNET: "10.1.0.1/24,10.2.0.1/24" holds 2 subnets: a node has one`,
		"FLANNEL_MTU=-50":                                  `line 1: FLANNEL_MTU: "-50" is not an MTU: want 0 to 65535`,
		"FLANNEL_IPMASQ=tru":                               `line 1: FLANNEL_IPMASQ: "tru" is cut short: want true or false`,
		"FLANNEL_IPMASQ=f\n":                               `line 1: FLANNEL_IPMASQ: "f" is cut short: want true or false`,
		"FLANNEL_MTU=70000\nx":                             "line 1: FLANNEL_MTU: \"70000\" is not an MTU: want 0 to 65535\nline 2: \"x\" has no '=': write KEY=value",
		"foo=bar":                                          "is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ",
		"FLANNEL_IPV6_NETWORK=fd00::/56\nFLANNEL_MTU=1400": "is missing FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_IPMASQ",
		"FLANNEL_NETWORK=,\nFLANNEL_SUBNET=10.1.0.1/24\nFLANNEL_MTU=1\nFLANNEL_IPMASQ=": "is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, FLANNEL_IPMASQ",
	} {
		_, err := ParseEnv([]byte(in))
		if err == nil {
			t.Errorf("%q: accepted", in)
		} else if diff := cmp.Diff(want, err.Error()); diff != "" {
			t.Errorf("%q (-want +got):\n%s", in, diff)
		}
	}
}

func TestLoadEnvSpeaksAsFlannelDoes(t *testing.T) {
	path := filepath.Join(t.TempDir(), "subnet.env")
	_, err := LoadEnv(path)
	if !errors.Is(err, os.ErrNotExist) || err.Error() != "failed to load flannel 'subnet.env' file: open "+path+": no such file or directory" {
		t.Errorf("absent: %v", err)
	}
	for in, want := range map[string]string{
		"foo=bar\n": "failed to load flannel 'subnet.env' file: " + path + " is missing FLANNEL_NETWORK, FLANNEL_IPV6_NETWORK, " +
			"FLANNEL_SUBNET, FLANNEL_IPV6_SUBNET, FLANNEL_MTU, FLANNEL_IPMASQ. Check the flannel pod log for this node.",
		"x": "failed to load flannel 'subnet.env' file: " + path + `: line 1: "x" has no '=': write KEY=value`,
	} {
		if err := os.WriteFile(path, []byte(in), 0o644); err != nil {
			t.Fatal(err)
		}
		if _, err := LoadEnv(path); err == nil || err.Error() != want {
			t.Errorf("%q:\n got %v\nwant %s", in, err, want)
		}
	}
	env := Env{Networks: [2]netip.Prefix{prefix("10.244.0.0/16")}, Subnets: [2]netip.Prefix{prefix("10.244.1.0/24")}, MTU: 1450}
	if err := WriteFile(path, env.Render(), 0o644); err != nil {
		t.Fatal(err)
	}
	if got, err := LoadEnv(path); err != nil || !cmp.Equal(env, got, comparePrefixes) {
		t.Errorf("%v %v", got, err)
	}
}

func FuzzParseEnv(f *testing.F) {
	f.Add([]byte("FLANNEL_NETWORK=10.244.0.0/16\nFLANNEL_SUBNET=10.244.1.1/24\nFLANNEL_MTU=1450\nFLANNEL_IPMASQ=true\n"))
	f.Add([]byte("FLANNEL_SUBNET"))
	f.Add([]byte("export FLANNEL_NETWORK='10.0.0.0/8,,x'\r\n=\n'\n\"\n"))
	f.Fuzz(func(t *testing.T, data []byte) {
		env, err := ParseEnv(data)
		if err != nil {
			return
		}
		for _, f := range Families() {
			if s := env.Subnets[f]; s.IsValid() && (s != s.Masked() || FamilyOf(s.Addr()) != f) {
				t.Errorf("subnet %v of %v", s, f)
			}
		}
		if len(env.MoreNetworks) > 0 || env.Subnets[IPv4].IsValid() != env.Networks[IPv4].IsValid() || env.Subnets[IPv6].IsValid() != env.Networks[IPv6].IsValid() {
			return // not what Render makes
		}
		for _, f := range Families() { // the last prefix of a family has no next address
			if s := env.Subnets[f]; s.IsValid() && !s.Contains(s.Addr().Next()) {
				return
			}
		}
		back, err := ParseEnv(env.Render())
		if diff := cmp.Diff(env, back, comparePrefixes); err != nil || diff != "" {
			t.Errorf("%v (-want +got):\n%s", err, diff)
		}
	})
}
