package doctor

import (
	"strings"
	"testing"
)

const ourConf = `{"Network": "10.244.0.0/16", "Backend": {"Type": "vxlan"}}`

func ours() Install {
	return Install{Namespace: "kube-flannel", DaemonSet: "kube-flannel-ds", NetConf: ourConf, CNIName: "cbr0",
		Args: []string{"--ip-masq", "--kube-subnet-mgr", "--healthz-port=8081"}, Plugins: []string{"flannel", "portmap", "bandwidth"}}
}

// stock is flannel's own manifest.
func stock() Install {
	in := ours()
	in.NetConf = `{"Network": "10.244.0.0/16", "EnableNFTables": false, "Backend": {"Type": "vxlan"}}`
	in.Plugins = []string{"flannel", "portmap"}
	return in
}

func TestStockFlannelHasNothingToSettle(t *testing.T) {
	if got := Compare(stock(), ours()); len(got) != 0 {
		t.Errorf("findings: %+v", got)
	}
}

func TestEveryDifferenceThatMattersIsNamed(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Install)
		want   string
		stop   bool
	}{
		"network": {func(i *Install) { i.NetConf = strings.Replace(i.NetConf, "10.244", "10.42", 1) }, "10.42.0.0/16 there, 10.244.0.0/16 in our manifest", true},
		"vni":     {func(i *Install) { i.NetConf = `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","VNI":7}}` }, "Backend.VNI: 7 there, 1", true},
		"port":    {func(i *Install) { i.NetConf = `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","Port":4790}}` }, "Backend.Port: 4790", false},
		"mtu":     {func(i *Install) { i.NetConf = `{"Network":"10.244.0.0/16","Backend":{"Type":"vxlan","MTU":1400}}` }, "Backend.MTU: 1400", false},
		"backend": {func(i *Install) { i.NetConf = `{"Network":"10.244.0.0/16","Backend":{"Type":"udp"}}` }, "weft refuses it", true},
		"typo": {func(i *Install) {
			i.NetConf = `{"Network":"10.244.0.0/16","EnableNFTable":true,"Backend":{"Type":"vxlan"}}`
		}, "EnableNFTables", false},
		"iface":      {func(i *Install) { i.Args = append(i.Args, "--iface=eth1") }, "flag --iface=eth1", true},
		"iface word": {func(i *Install) { i.Args = append(i.Args, "-iface", "eth1") }, "flag --iface=eth1", true},
		"env":        {func(i *Install) { i.Env = map[string]string{"FLANNELD_IFACE": "eth1"} }, "flag --iface=eth1: given there", true},
		"no masq":    {func(i *Install) { i.Args = []string{"--kube-subnet-mgr"} }, "flag --ip-masq: in our manifest, not given there", true},
		"namespace":  {func(i *Install) { i.Namespace = "kube-system" }, "kubectl -n kube-system delete daemonset", true},
		"second":     {func(i *Install) { i.Others = []string{"kube-system/kube-flannel-ds-amd64"} }, "a second one runs", true},
		"netpol":     {func(i *Install) { i.Images = []string{"x/kube-network-policies:v1"} }, "here weft does", false},
		"canal":      {func(i *Install) { i.Images = []string{"calico/node:v3.30", "flannel:v0.28.9"} }, "container calico/node:v3.30: this is Canal", true},
		"etcd":       {func(i *Install) { i.Args = []string{"--etcd-endpoints=https://10.0.0.1:2379", "--ip-masq"} }, "keeps the nodes' ranges in etcd", true},
		"cni name":   {func(i *Install) { i.CNIName = "net0" }, `"net0" there`, true},
		"plugin":     {func(i *Install) { i.Plugins = append(i.Plugins, "sbr") }, "plugin sbr", false},
	} {
		t.Run(name, func(t *testing.T) {
			theirs := stock()
			c.change(&theirs)
			var out strings.Builder
			err := report(&out, theirs, Compare(theirs, ours()))
			if !strings.Contains(out.String(), c.want) {
				t.Errorf("output lacks %q:\n%s", c.want, out.String())
			}
			if (err != nil) != c.stop {
				t.Errorf("error %v, want one: %v\n%s", err, c.stop, out.String())
			}
		})
	}
}

func TestAVariableIsWorthAsMuchAsItsFlag(t *testing.T) {
	theirs := stock()
	theirs.Args = []string{"--kube-subnet-mgr"}
	theirs.Env = map[string]string{"FLANNELD_IP_MASQ": "true", "FLANNELD_V": "1"}
	if got := Compare(theirs, ours()); len(got) != 0 {
		t.Errorf("findings: %+v", got)
	}
}

func TestVerbosityIsNoDifference(t *testing.T) {
	theirs := stock()
	theirs.Args = append(theirs.Args, "-v", "4")
	if got := Compare(theirs, ours()); len(got) != 0 {
		t.Errorf("findings: %+v", got)
	}
}
