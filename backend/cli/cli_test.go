package cli

import (
	"errors"
	"net/netip"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func parse(t *testing.T, env []string, args ...string) (Parsed, error) {
	t.Helper()
	return Parse(Input{Verb: "run", Args: args, Env: append([]string{"NODE_NAME=n1"}, env...), Out: &strings.Builder{}})
}

func TestFlannelsCommandLinesAreUnderstood(t *testing.T) {
	for _, args := range [][]string{
		{"--ip-masq", "--kube-subnet-mgr", "--healthz-port=8081"},
		{"-ip-masq", "-kube-subnet-mgr", "-healthz-port", "8081"},
		{"-ip-masq=true", "-kube-subnet-mgr=true", "--healthz-port", "8081", "-v", "10"},
		{"--ip-masq", "-iface=eth0", "-iface", "eth1", "--healthz-port=8081", "-v=4"},
		{"--ip-masq", "--healthz-ip=", "--healthz-port=8081"},                 // everywhere
		{"--ip-masq", "--healthz-port=8081", "--kube-api-url=192.0.2.1:6443"}, // client-go adds the scheme
		{"--ip-masq", "--healthz-port=8081", "--kube-api-url=[fd00::1]:6443"},
	} {
		p, err := parse(t, nil, args...)
		if err != nil {
			t.Errorf("%q: %v", args, err)
			continue
		}
		if !p.Config.Traffic.Masquerade || p.Config.Health.Port != 8081 {
			t.Errorf("%q: masquerade %v, port %d", args, p.Config.Traffic.Masquerade, p.Config.Health.Port)
		}
	}
}

func TestInterfacesAccumulateInOrder(t *testing.T) {
	p, err := parse(t, nil, "-iface=b", "--iface", "a", "--iface=", "-iface-regex", "^e", "--iface-regex=", "-iface-regex=x")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"b", "a"}, p.Config.Iface.Names); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff([]string{"^e", "x"}, p.Config.Iface.Regexes); diff != "" {
		t.Error(diff)
	}
}

// $(IFACE) and $(PUBLIC_IP) in a manifest, of which one is not set: the address may be that of a NAT.
func TestI04AnEmptyInterfaceAloneIsTheDefaultRoute(t *testing.T) {
	for _, arg := range []string{"--iface=", "--iface-regex="} {
		p, err := parse(t, nil, arg, "--public-ip=203.0.113.7")
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{""}, p.Config.Iface.Names); diff != "" || len(p.Config.Iface.Regexes) > 0 {
			t.Errorf("%s: names %q, regexes %q", arg, p.Config.Iface.Names, p.Config.Iface.Regexes)
		}
	}
	p, err := parse(t, []string{"FLANNELD_IFACE="}, "--public-ip=203.0.113.7")
	if err != nil || len(p.Config.Iface.Names) > 0 {
		t.Errorf("an empty variable is none: %q, %v", p.Config.Iface.Names, err)
	}
}

func TestMistakesAreOneLineWithTheCure(t *testing.T) {
	for _, c := range []struct{ args, want string }{
		{"--ip-mask", "did you mean --ip-masq"},
		{"-ip-mask", "ip-mask"},
		{"--kubeconfig /x", "unknown flag --kubeconfig: did you mean --kubeconfig-file?"},
		{"-kubeconfig=/x", "unknown flag --kubeconfig: did you mean --kubeconfig-file?"},
		{"--etcd-endpoints=http://127.0.0.1:2379", "etcd mode"},
		{"-etcd-prefix /x", "etcd mode"},
		{"--kube-subnet-mgr=false", "--kube-subnet-mgr=false asks for flannel's etcd mode, which weft does not have: leave the flag out"},
		{"--ip-masq false", "takes its value with ="},
		{"--healthz-port=x", "healthz-port"},
		{"--healthz-port=70000", "want 0 to 65535"},
		{"--iptables-resync=0", "at least 1 second"},
		{"--iface-regex=(", "--iface-regex"},
		{"--public-ip=::1", "want an IPv4 address"},
		{"--public-ip=127.0.0.1", `--public-ip="127.0.0.1": not an address that other nodes can send to: name one of the underlay, or leave it out`},
		{"--public-ip=0.0.0.0", `--public-ip="0.0.0.0": not an address that other nodes can send to`},
		{"--public-ip=224.0.0.9", `--public-ip="224.0.0.9": not an address that other nodes can send to`},
		{"--public-ipv6=fe80::1", `--public-ipv6="fe80::1": not an address that other nodes can send to`},
		{"--public-ipv6=::ffff:192.0.2.1", `--public-ipv6="::ffff:192.0.2.1": want an IPv6 address`},
		{"--ip-masq-exclude=::ffff:10.0.0.0/104", "want a CIDR like 192.0.2.0/24"},
		{"--ip-masq-exclude=10.0.0.0/8,172.16.0.0/12", "want a CIDR like 192.0.2.0/24, or the word nodes; for several, repeat the flag"},
		{"--iface-can-reach=fe80::1%eth0", "want an IP address"},
		{"--kube-api-url=ftp://192.0.2.1", `--kube-api-url="ftp://192.0.2.1": want a URL like https://192.0.2.1:6443`},
		{"--kube-api-url=https:/192.0.2.1", `--kube-api-url="https:/192.0.2.1": want a URL like https://192.0.2.1:6443`},
		{"--kube-api-url=https://", `--kube-api-url="https://": want a URL like https://192.0.2.1:6443`},
		{"--kube-annotation-prefix=-x", `--kube-annotation-prefix="-x": `},
		{"--ip-masq-exclude=10.0.0.0", "want a CIDR"},
		{"--iface-from=dns", "want internal-ip"},
		{"--forward-rules-place=middle", "want auto, first, last or off"},
		{"--iface-can-reach=host", "want an IP address"},
		{"--subnet-lease-renew-margin=1440", "1 to 1439"},
		{"--state-dir=here", "absolute path"},
		{"--healthz-ip=all", "want an IP address"},
	} {
		_, err := parse(t, nil, strings.Fields(c.args)...)
		var usage Usage
		if !errors.As(err, &usage) {
			t.Errorf("%s: error %v is no usage error", c.args, err)
			continue
		}
		if !strings.Contains(err.Error(), c.want) || strings.Contains(err.Error(), "\n") {
			t.Errorf("%s: got %q, want one line with %q", c.args, err, c.want)
		}
	}
}

func TestD16EveryFlagHasAVariableAndTheCommandLineWins(t *testing.T) {
	env := []string{"FLANNELD_IFACE=a,b", "FLANNELD_PUBLIC_IP=192.0.2.7", "FLANNELD_IP_MASQ=true", "FLANNELD_V=2", "FLANNELD_HEALTHZ_PORT=1"}
	p, err := parse(t, env, "--healthz-port=2")
	if err != nil {
		t.Fatal(err)
	}
	c := p.Config
	if diff := cmp.Diff([]string{"a,b"}, c.Iface.Names); diff != "" {
		t.Error(diff)
	}
	if c.Iface.PublicIP[0] != netip.MustParseAddr("192.0.2.7") || !c.Traffic.Masquerade || c.Health.Port != 2 || p.Verbosity != 2 {
		t.Errorf("environment was not taken: %+v", p)
	}
}

func TestTheEnvironmentIsCheckedLikeTheCommandLine(t *testing.T) {
	for env, want := range map[string]string{
		"FLANNELD_IP_MASQ=perhaps":          `environment FLANNELD_IP_MASQ="perhaps"`,
		"FLANNELD_ETCD_ENDPOINTS=http://x":  "etcd mode",
		"FLANNELD_KUBE_SUBNET_MGR=false":    "etcd mode",
		"FLANNELD_PUBLIC_IP=203.0.113.0/24": "--public-ip",
	} {
		if _, err := parse(t, []string{env}); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: got %v, want %q", env, err, want)
		}
	}
	p, err := parse(t, []string{"FLANNELD_IP_MASK=true", "EVENT_QUEUE_DEPTH=5000", "FLANNELD_IFACE="})
	if err != nil {
		t.Fatal(err)
	}
	notes := strings.Join(p.Notes, "\n")
	if !strings.Contains(notes, "did you mean FLANNELD_IP_MASQ") || !strings.Contains(notes, "EVENT_QUEUE_DEPTH has no effect") {
		t.Errorf("notes: %s", notes)
	}
}

func TestWithoutANodeNameTheAgentSaysWhatToSet(t *testing.T) {
	_, err := Parse(Input{Verb: "run", Env: []string{"POD_NAME=x"}})
	if err == nil || !strings.Contains(err.Error(), "set NODE_NAME") {
		t.Errorf("got %v", err)
	}
	if _, err := Parse(Input{Verb: "install-cni"}); err != nil {
		t.Errorf("install-cni needs no node name: %v", err)
	}
}

// A service of the node has its name from the host, whose name may have capitals; the kubelet registers it in small letters.
func TestTheNodeNameIsWrittenAsTheKubeletWritesIt(t *testing.T) {
	p, err := parse(t, []string{"NODE_NAME=Worker-1.Example.COM\n"})
	if err != nil || p.Config.Kube.NodeName != "worker-1.example.com" {
		t.Errorf("%q, %v", p.Config.Kube.NodeName, err)
	}
}

func TestHelpIsGroupedAndCoversEveryFlag(t *testing.T) {
	var out strings.Builder
	p, err := Parse(Input{Verb: "run", Args: []string{"--help"}, Out: &out})
	if err != nil || !p.Help {
		t.Fatalf("help: %v", err)
	}
	for _, want := range append(groups(), "--ip-masq", "--iface-from", "--net-config-path", "FLANNELD_") {
		if !strings.Contains(out.String(), want) {
			t.Errorf("help lacks %q", want)
		}
	}
	for _, line := range strings.Split(out.String(), "\n") {
		if len(line) > 125 {
			t.Errorf("long line: %q", line)
		}
	}
}

func TestAVerbThatIsNoneIsRefusedWithTheNearest(t *testing.T) {
	if err := Unknown("unistall"); !strings.Contains(err.Error(), "uninstall") {
		t.Error(err)
	}
	if err := Unknown("zzz"); !strings.Contains(err.Error(), "verbs") {
		t.Error(err)
	}
}

func TestAFlagsValueKeepsItsDash(t *testing.T) {
	p, err := parse(t, nil, "--iface", "-v")
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff([]string{"-v"}, p.Config.Iface.Names); diff != "" {
		t.Error(diff)
	}
}
