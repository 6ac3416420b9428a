// Package cli turns the command line and the environment into a daemon.Config: every setting is a flag, every flag has
// a FLANNELD_ variable, and this is the only place that reads the environment.
package cli

import (
	"cmp"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/spf13/pflag"

	"github.com/weft-cni/weft/backend/daemon"
	"github.com/weft-cni/weft/backend/policy/ask"
	"github.com/weft-cni/weft/subnet"
)

// Usage is a mistake on the command line: one line, exit code 2.
type Usage struct{ err error }

// Error is the one line.
func (u Usage) Error() string { return u.err.Error() }

// Unwrap gives the cause.
func (u Usage) Unwrap() error { return u.err }

// Input is what the process was started with.
type Input struct {
	Verb string   // "run", "install-cni", "uninstall", "doctor", "policy audit" or "policy trace"
	Args []string // what follows the verb
	Env  []string // KEY=value, as os.Environ
	Out  io.Writer
}

// Parsed is a command line understood.
type Parsed struct {
	Config    daemon.Config
	Verbosity int      // -v
	Notes     []string // accepted without effect, or odd: logged at start
	Help      bool     // --help was asked for and printed
	Version   bool

	BeforeMigration bool         // doctor: compare a running flannel with us
	Question        ask.Question // policy trace: what is asked
	KeepDataplane   bool         // uninstall: leave flannel a network that works
}

// options holds the flags' raw values until they are checked together.
type options struct {
	config                       daemon.Config
	iface                        []string
	publicIP, publicIPv6         string
	exclude                      []string
	healthIP                     string
	randomOff                    bool
	resync, renewMargin, verbose int
	version, help                bool
	kubeSubnetMgr                bool
	beforeMigration              bool
	keepDataplane                bool
	ignored                      string
	established                  string
	question                     ask.Question
}

// Parse reads flags and environment. The error is a Usage for whatever the user can mend on the command line.
func Parse(in Input) (Parsed, error) {
	var o options
	fs := flagSet(&o)
	switch in.Verb {
	case "uninstall":
		define{fs: fs, group: "Other"}.bool(&o.keepDataplane, "keep-dataplane", false, "give the node back to flannel: pods and traffic go on")
	case "doctor":
		define{fs: fs, group: "Other"}.bool(&o.beforeMigration, "before-migration", false, "compare the flannel of this cluster with weft")
	}
	if in.Verb == "policy trace" {
		d := define{fs: fs, group: "Other"}
		d.str(&o.question.From, "from", "", "`pod` as namespace/name, or an IP address")
		d.str(&o.question.To, "to", "", "`pod` as namespace/name, or an IP address")
		d.str(&o.question.Port, "port", "", "`port` and protocol: 80/tcp, 53/udp, 3868/sctp")
	}
	if err := fs.Parse(secondDash(fs, in.Args)); err != nil {
		return Parsed{}, Usage{explain(fs, err)}
	}
	if o.help {
		printHelp(in.Out, fs)
		return Parsed{Help: true}, nil
	}
	if o.version {
		return Parsed{Version: true}, nil
	}
	if rest := fs.Args(); len(rest) > 0 {
		return Parsed{}, Stray(rest[0])
	}
	if in.Verb == "policy trace" && (o.question.From == "" || o.question.To == "" || o.question.Port == "") {
		return Parsed{}, Usage{errors.New("policy trace wants --from, --to and --port, as in --from=shop/web-0 --to=shop/db-0 --port=5432/tcp")}
	}
	notes, err := applyEnv(fs, in.Env)
	if err != nil {
		return Parsed{}, Usage{err}
	}
	cfg, err := o.finish(environ(in.Env), in.Verb == "run")
	if err != nil {
		return Parsed{}, Usage{oneLine(err)}
	}
	return Parsed{Config: cfg, Question: o.question, BeforeMigration: o.beforeMigration, KeepDataplane: o.keepDataplane, Verbosity: o.verbose, Notes: append(notes, o.notes(fs)...)}, nil
}

// oneLine joins several complaints on one line, so that a bad start is one line in any log.
func oneLine(err error) error {
	return errors.New(strings.ReplaceAll(err.Error(), "\n", "; "))
}

// finish checks the values that are more than their type and returns the config. Only the agent itself needs to know
// which node it is on.
func (o *options) finish(env map[string]string, needNode bool) (daemon.Config, error) {
	c := o.config
	var errs []error
	addr := func(flag, s string, want4 bool) netip.Addr {
		if s == "" {
			return netip.Addr{}
		}
		a, err := netip.ParseAddr(s)
		switch {
		case err != nil || a.Is4() != want4 || a.Is4In6() || a.Zone() != "":
			errs = append(errs, fmt.Errorf("--%s=%q: want an %s address", flag, s, map[bool]string{true: "IPv4", false: "IPv6"}[want4]))
		case subnet.CheckPublicIP(subnet.FamilyOf(a), a) != nil:
			errs = append(errs, fmt.Errorf("--%s=%q: not an address that other nodes can send to: name one of the underlay, or leave it out", flag, s))
		}
		return a
	}
	c.Iface.PublicIP = [2]netip.Addr{addr("public-ip", o.publicIP, true), addr("public-ipv6", o.publicIPv6, false)}
	c.Iface.Names, c.Iface.Regexes = places(o.iface, c.Iface.Regexes)
	ip, err := netip.ParseAddr(cmp.Or(o.healthIP, "0.0.0.0")) // nothing is everywhere, as in flannel
	if err != nil {
		errs = append(errs, fmt.Errorf("--healthz-ip=%q: want an IP address", o.healthIP))
	}
	c.Health.IP = ip
	if c.Health.Port < 0 {
		c.Health.Port = 0
	}
	for _, s := range o.exclude {
		if s == "nodes" {
			c.Traffic.ExcludeNodes = true
			continue
		}
		p, err := netip.ParsePrefix(s)
		if err != nil || p.Addr().Is4In6() {
			errs = append(errs, fmt.Errorf("--ip-masq-exclude=%q: want a CIDR like 192.0.2.0/24, or the word nodes; for several, repeat the flag", s))
			continue
		}
		c.Traffic.Exclude = append(c.Traffic.Exclude, p.Masked())
	}
	c.Traffic.RandomFully = !o.randomOff
	switch o.established {
	case "follow", "keep":
		c.Policy.KeepEstablished = o.established == "keep"
	default:
		errs = append(errs, fmt.Errorf("--policy-established=%q: want follow or keep", o.established))
	}
	c.Resync = time.Duration(o.resync) * time.Second
	if !o.kubeSubnetMgr {
		errs = append(errs, errors.New("--kube-subnet-mgr=false asks for flannel's etcd mode, which weft does not have: leave the flag out"))
	}
	if o.renewMargin < 1 || o.renewMargin > 1439 {
		errs = append(errs, fmt.Errorf("--subnet-lease-renew-margin=%d: want 1 to 1439 minutes", o.renewMargin))
	}
	// A Node's name has no capitals: the kubelet writes a host's name small, and so do we.
	c.Kube.NodeName = strings.ToLower(strings.TrimSpace(env["NODE_NAME"]))
	c.Kube.PodName, c.Kube.PodNamespace = env["POD_NAME"], env["POD_NAMESPACE"]
	c.NotifySocket, c.Paths.WireGuardKey = env["NOTIFY_SOCKET"], env["WIREGUARD_KEY_FILE"]
	if needNode && c.Kube.NodeName == "" && (c.Kube.PodName == "" || c.Kube.PodNamespace == "") {
		errs = append(errs, errors.New("node name is not known: set NODE_NAME, or both POD_NAME and POD_NAMESPACE"))
	}
	errs = append(errs, c.Validate())
	return c, errors.Join(errs...)
}

// places are the interfaces and regexes that say something. An empty --iface or --iface-regex is the default route, as flannel
// reads it: beside others it says nothing, and alone it keeps --public-ip from deciding the interface.
func places(names, regexes []string) (some, patterns []string) {
	empty := func(s string) bool { return s == "" }
	some, patterns = slices.DeleteFunc(slices.Clone(names), empty), slices.DeleteFunc(slices.Clone(regexes), empty)
	if len(names)+len(regexes) > 0 && len(some)+len(patterns) == 0 {
		some = []string{""}
	}
	return some, patterns
}

// notes tells of flags that are accepted for compatibility and change nothing.
func (o *options) notes(fs *pflag.FlagSet) []string {
	var out []string
	for _, n := range []struct{ flag, why string }{
		{"vmodule", "logging has one level: use -v"},
		{"log_backtrace_at", "stack traces are not logged"},
		{"subnet-lease-renew-margin", "nodes hold no leases in Kubernetes mode"},
	} {
		if fs.Changed(n.flag) {
			out = append(out, "--"+n.flag+" has no effect: "+n.why)
		}
	}
	return out
}

// Unknown is the answer to a word that is no verb.
func Unknown(word string) error {
	verbs := []string{"run", "install-cni", "uninstall", "doctor", "policy", "version"}
	if near := subnet.Nearest(word, verbs); near != "" {
		return Usage{fmt.Errorf("unknown argument %q: did you mean %s?", word, near)}
	}
	return Usage{fmt.Errorf("unknown argument %q: flanneld takes flags, or one of the verbs %s", word, strings.Join(verbs, ", "))}
}

// WantPolicyVerb is the answer to the verb policy without audit or trace.
func WantPolicyVerb() error {
	return Usage{errors.New("say what to ask: flanneld policy audit, or flanneld policy trace --from=POD --to=POD --port=80/tcp")}
}

// Stray is the answer to a word where only flags can stand.
func Stray(word string) error {
	return Usage{fmt.Errorf("argument %q is not a flag: a switch takes its value with = (--ip-masq=false)", word)}
}
