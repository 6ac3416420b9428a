package cli

import (
	"errors"
	"fmt"
	"io"
	"regexp"
	"strings"

	"github.com/spf13/pflag"

	"github.com/weft-cni/weft/subnet"
)

// group is a heading of --help; it is kept as an annotation of each flag.
const group = "group"

// The headings of --help, in order.
func groups() []string {
	return []string{"Kubernetes", "Interface", "Traffic", "NetworkPolicy", "Health", "Files", "Other", "Accepted for compatibility"}
}

// etcdFlags are known so that they can be refused with a reason.
func etcdFlags() []string {
	return []string{"etcd-endpoints", "etcd-prefix", "etcd-keyfile", "etcd-certfile", "etcd-cafile", "etcd-username", "etcd-password"}
}

// define puts the flags of one heading into the set.
type define struct {
	fs    *pflag.FlagSet
	group string
}

func (d define) mark(name string) {
	f := d.fs.Lookup(name)
	f.Annotations = map[string][]string{group: {d.group}}
}

func (d define) str(p *string, name, value, usage string) {
	d.fs.StringVar(p, name, value, usage)
	d.mark(name)
}

func (d define) list(p *[]string, name, usage string) {
	// StringArray, not StringSlice: FLANNELD_IFACE=a,b is one interface called "a,b", as flannel has it.
	d.fs.StringArrayVar(p, name, nil, usage)
	d.mark(name)
}

func (d define) bool(p *bool, name string, value bool, usage string) {
	d.fs.BoolVar(p, name, value, usage)
	d.mark(name)
}

func (d define) int(p *int, name string, value int, usage string) {
	d.fs.IntVar(p, name, value, usage)
	d.mark(name)
}

// flagSet defines every flag. Defaults are flannel's wherever flannel has the flag.
func flagSet(o *options) *pflag.FlagSet {
	fs := pflag.NewFlagSet("flanneld", pflag.ContinueOnError)
	fs.SetOutput(io.Discard)
	fs.SortFlags = false
	fs.Usage = func() {}
	c := &o.config
	in := func(name string) define { return define{fs: fs, group: name} }

	k := in("Kubernetes")
	k.str(&c.Kube.APIURL, "kube-api-url", "", "API server `URL`; empty, with no kubeconfig: the in-cluster one")
	k.str(&c.Kube.Kubeconfig, "kubeconfig-file", "", "kubeconfig `path`")
	k.str(&c.Kube.AnnotationPrefix, "kube-annotation-prefix", "flannel.alpha.coreos.com", "`prefix` of our Node annotations")
	k.bool(&c.SetNetworkUnavailable, "set-node-network-unavailable", true, "clear the Node condition NetworkUnavailable once ready")
	k.bool(&o.kubeSubnetMgr, "kube-subnet-mgr", true, "use the Kubernetes API (the only mode)")

	i := in("Interface")
	i.list(&o.iface, "iface", "underlay interface by `name-or-IP`; repeatable, tried in order")
	i.list(&c.Iface.Regexes, "iface-regex", "underlay interface by `regex` on its addresses, then names; repeatable, after --iface")
	i.str(&c.Iface.CanReach, "iface-can-reach", "", "underlay interface that routes to this `IP`")
	i.str(&c.Iface.From, "iface-from", "", "internal-ip: follow the Node's InternalIP")
	i.str(&o.publicIP, "public-ip", "", "IPv4 `address` to announce to peers")
	i.str(&o.publicIPv6, "public-ipv6", "", "IPv6 `address` to announce to peers")
	i.bool(&c.Iface.AllowShared, "allow-shared-public-ip", false, "go on although another node announces the same public address")

	t := in("Traffic")
	t.bool(&c.Traffic.Masquerade, "ip-masq", false, "masquerade pod traffic that leaves the pod network")
	t.str(&c.Traffic.MasqFamily, "ip-masq-family", "", "masquerade this `family` alone, ipv4 or ipv6; empty: both")
	t.bool(&o.randomOff, "ip-masq-fully-random-disable", false, "keep source ports where possible when masquerading")
	t.list(&o.exclude, "ip-masq-exclude", "`CIDR` towards which pods keep their address, or the word nodes; repeatable")
	t.bool(&c.Traffic.Forward, "iptables-forward-rules", true, "accept forwarded pod traffic")
	t.str(&c.Traffic.ForwardPlace, "forward-rules-place", "auto", "`place` of the jump in an iptables FORWARD chain that needs one: auto, first, last, off")
	t.int(&o.resync, "iptables-resync", 5, "`seconds` between checks of the rules and of the kernel state")
	t.bool(&c.Traffic.AntiSpoof, "anti-spoof", false, "accept encapsulated packets only from announced peers")
	t.bool(&c.BlackholeRoute, "ip-blackhole-route", false, "blackhole what is sent to own pod addresses that nobody has")

	p := in("NetworkPolicy")
	p.str(&c.Policy.Mode, "network-policy", "on", "enforce NetworkPolicies: on, `mode` audit to count what would be denied, or off")
	p.str(&o.established, "policy-established", "follow", "connections that a changed policy forbids: `what`, follow (cut them) or keep")

	h := in("Health")
	h.str(&o.healthIP, "healthz-ip", "0.0.0.0", "`address` of /healthz and /readyz")
	h.int(&c.Health.Port, "healthz-port", 0, "`port` of /healthz, /readyz and /metrics; 0: none")

	f := in("Files")
	f.str(&c.Paths.NetConf, "net-config-path", "/etc/kube-flannel/net-conf.json", "network configuration `file`")
	f.str(&c.Paths.SubnetFile, "subnet-file", "/run/flannel/subnet.env", "subnet `file` for the CNI plugin")
	f.str(&c.Paths.StateDir, "state-dir", "/var/lib/weft", "`directory` for what outlives a reboot")
	f.str(&c.Paths.CNIConf, "cni-conf-dir", "/etc/cni/net.d", "CNI configuration `directory`")
	f.str(&c.Paths.CNIBin, "cni-bin-dir", "/opt/cni/bin", "CNI plugin `directory`")
	f.str(&c.Paths.CNISource, "cni-source-dir", "/opt/weft/cni", "`directory` the plugins are installed from")
	f.str(&c.Paths.CNIData, "cni-data-dir", "/var/lib/cni", "CNI state `directory`")
	f.str(&c.Paths.NetNS, "netns-dir", "/run/netns", "`directory` of pod network namespaces")
	f.str(&c.Paths.SysNet, "sysctl-dir", "", "the host's /proc/sys/net `directory`; empty: /host/proc/sys/net, else /proc/sys/net")

	other := in("Other")
	fs.IntVarP(&o.verbose, "v", "v", 0, "log `level`: 1 logs every change, 4 and more also what the API client does")
	other.mark("v")
	other.bool(&o.version, "version", false, "print version, commit and Go version")
	fs.BoolVarP(&o.help, "help", "h", false, "print this text")
	other.mark("help")

	a := in("Accepted for compatibility")
	a.int(&o.renewMargin, "subnet-lease-renew-margin", 60, "`minutes`; no effect in Kubernetes mode")
	a.str(&o.ignored, "vmodule", "", "no effect")
	a.str(&o.ignored, "log_backtrace_at", "", "no effect")
	return fs
}

// secondDash gives known flags in flannel's single-dash spelling their second dash. The words that follow a flag which
// wants a value are left alone, so "-iface -v" stays what the user wrote.
func secondDash(fs *pflag.FlagSet, args []string) []string {
	single := regexp.MustCompile(`^-[a-z][a-z0-9_-]+(=|$)`)
	out := make([]string, 0, len(args))
	for i := 0; i < len(args); i++ {
		word := args[i]
		if word == "--" {
			return append(out, args[i:]...)
		}
		name, _, hasValue := strings.Cut(strings.TrimLeft(word, "-"), "=")
		if single.MatchString(word) && known(fs, name) {
			word = "-" + word
		}
		out = append(out, word)
		f := fs.Lookup(name)
		if strings.HasPrefix(word, "-") && f != nil && !hasValue && f.NoOptDefVal == "" && i+1 < len(args) {
			i++
			out = append(out, args[i])
		}
	}
	return out
}

func known(fs *pflag.FlagSet, name string) bool {
	if fs.Lookup(name) != nil {
		return true
	}
	for _, e := range etcdFlags() {
		if e == name {
			return true
		}
	}
	return false
}

// explain turns pflag's error into our one line.
func explain(fs *pflag.FlagSet, err error) error {
	var unknown *pflag.NotExistError
	if !errors.As(err, &unknown) {
		return fmt.Errorf("%w; flanneld --help lists the flags", err)
	}
	// A single dash makes pflag read letters; the user meant the whole word.
	name := unknown.GetSpecifiedShortnames()
	if name == "" {
		name = unknown.GetSpecifiedName()
	}
	name, _, _ = strings.Cut(name, "=")
	for _, e := range etcdFlags() {
		if e == name {
			return fmt.Errorf("--%s belongs to flannel's etcd mode, which weft does not have: it keeps no state of its own and reads podCIDRs from Node objects; leave the flag out", name)
		}
	}
	var names []string
	fs.VisitAll(func(f *pflag.Flag) { names = append(names, f.Name) })
	near := subnet.Nearest(name, names)
	for _, longer := range names {
		if near == "" && len(name) > 3 && strings.HasPrefix(longer, name+"-") { // --kubeconfig
			near = longer
		}
	}
	if near != "" {
		return fmt.Errorf("unknown flag --%s: did you mean --%s?", name, near)
	}
	return fmt.Errorf("unknown flag --%s; flanneld --help lists the flags", name)
}
