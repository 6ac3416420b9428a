// Package daemon wires the parts of weft into flanneld: it is the only place that knows everyone.
package daemon

import (
	"errors"
	"fmt"
	"log/slog"
	"net/netip"
	"net/url"
	"path/filepath"
	"regexp"
	"strings"
	"time"

	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/kube"
)

// Config is everything that can be set. It is filled by package cli from flags and environment; nothing else in the
// daemon reads either.
type Config struct {
	Kube    Kube
	Iface   Iface
	Traffic Traffic
	Policy  Policy
	Health  Health
	Paths   Paths

	SetNetworkUnavailable bool // patch the Node condition to False once ready
	BlackholeRoute        bool // keep a last-resort blackhole for the own podCIDR
	Resync                time.Duration
	NotifySocket          string // NOTIFY_SOCKET of systemd
	Version               Version
}

// Kube says how to reach the API server and who we are there.
type Kube struct {
	APIURL           string
	Kubeconfig       string
	AnnotationPrefix string
	NodeName         string // NODE_NAME
	PodName          string // POD_NAME, asked for its node when NodeName is empty
	PodNamespace     string
}

// Iface says how the underlay interface and the public address are chosen.
type Iface struct {
	Names       []string
	Regexes     []string
	CanReach    string
	From        string // "" or "internal-ip"
	PublicIP    [2]netip.Addr
	AllowShared bool // go on although another node announces our public address
}

// Traffic switches the rules for pod traffic.
type Traffic struct {
	Masquerade   bool
	MasqFamily   string // the one family that is masqueraded: ipv4, ipv6; "" is both
	RandomFully  bool
	Exclude      []netip.Prefix
	ExcludeNodes bool // the word "nodes" in --ip-masq-exclude
	Forward      bool
	ForwardPlace string // auto, first, last, off
	AntiSpoof    bool
}

// masquerades tells whether pods of a family leave the pod network as their node.
func (t Traffic) masquerades(f subnet.Family) bool {
	return t.Masquerade && (t.MasqFamily == "" || t.MasqFamily == [2]string{"ipv4", "ipv6"}[f])
}

// The modes of NetworkPolicy.
const (
	PolicyOn    = "on"
	PolicyAudit = "audit" // count what would be denied
	PolicyOff   = "off"
)

// Policy says how NetworkPolicies are enforced.
type Policy struct {
	Mode            string // on, audit, off
	KeepEstablished bool   // a connection is judged when it is set up and never again
}

// Health says where the health server listens; Port 0 means nowhere.
type Health struct {
	IP   netip.Addr
	Port int
}

// Paths are the files and directories the daemon reads and writes.
type Paths struct {
	NetConf    string // net-conf.json
	SubnetFile string // subnet.env; weft.json lies beside it
	StateDir   string // /var/lib/weft: what outlives a reboot

	WireGuardKey string // WIREGUARD_KEY_FILE; "" for a file in StateDir

	CNIConf   string // directory of the conflist
	CNIBin    string // directory of the CNI plugins
	CNISource string // where the image keeps its plugins
	CNIData   string // /var/lib/cni: host-local's reservations, results and the shim's records
	NetNS     string // directory of named network namespaces
	SysNet    string // /proc/sys/net of the host
}

// StatusFile is the agent's word to the shim.
func (p Paths) StatusFile() string { return filepath.Join(filepath.Dir(p.SubnetFile), "weft.json") }

// SnapshotFile is the last good snapshot of the cluster, for a start while the API server is away.
func (p Paths) SnapshotFile() string { return filepath.Join(p.StateDir, "snapshot.json") }

// CollectFile is in which boot and cluster addresses were collected last.
func (p Paths) CollectFile() string { return filepath.Join(p.StateDir, "collect.json") }

// SysctlFile is which switches of the host were off before we came.
func (p Paths) SysctlFile() string { return filepath.Join(p.StateDir, "sysctls.json") }

// PolicyFile is there once policies have been enforced on this node.
func (p Paths) PolicyFile() string { return filepath.Join(p.StateDir, "policy-since") }

// Results is where libcni keeps the results of attachments.
func (p Paths) Results() string { return filepath.Join(p.CNIData, "results") }

// CNITemplate is the ConfigMap's conflist, beside net-conf.json.
func (p Paths) CNITemplate() string { return filepath.Join(filepath.Dir(p.NetConf), "cni-conf.json") }

// Version is what the build says of itself.
type Version struct {
	Release string
	Commit  string
}

// Validate returns all that is wrong with the config, joined; each line names the flag.
func (c Config) Validate() error {
	var errs []error
	bad := func(format string, args ...any) { errs = append(errs, fmt.Errorf(format, args...)) }
	for _, re := range c.Iface.Regexes {
		if _, err := regexp.Compile(re); err != nil {
			bad("--iface-regex=%q: %w", re, err)
		}
	}
	if c.Iface.CanReach != "" {
		if a, err := netip.ParseAddr(c.Iface.CanReach); err != nil || a.Zone() != "" {
			bad("--iface-can-reach=%q: want an IP address", c.Iface.CanReach)
		}
	}
	if c.Iface.From != "" && c.Iface.From != "internal-ip" {
		bad("--iface-from=%q: want internal-ip, or leave it out", c.Iface.From)
	}
	switch c.Traffic.ForwardPlace {
	case "auto", "first", "last", "off":
	default:
		bad("--forward-rules-place=%q: want auto, first, last or off", c.Traffic.ForwardPlace)
	}
	switch c.Traffic.MasqFamily {
	case "", "ipv4", "ipv6":
	default:
		bad("--ip-masq-family=%q: want ipv4 or ipv6, or leave it out for both", c.Traffic.MasqFamily)
	}
	switch c.Policy.Mode {
	case PolicyOn, PolicyAudit, PolicyOff:
	default:
		bad("--network-policy=%q: want on, audit or off", c.Policy.Mode)
	}
	if c.Health.Port < 0 || c.Health.Port > 65535 {
		bad("--healthz-port=%d: want 0 to 65535", c.Health.Port)
	}
	if c.Resync < time.Second {
		bad("--iptables-resync=%d: want at least 1 second", int(c.Resync/time.Second))
	}
	if _, err := kube.ParsePrefix(c.Kube.AnnotationPrefix); err != nil {
		bad("--kube-annotation-prefix=%q: %w", c.Kube.AnnotationPrefix, err)
	}
	if c.Kube.APIURL != "" && !isServer(c.Kube.APIURL) {
		bad("--kube-api-url=%q: want a URL like https://192.0.2.1:6443", c.Kube.APIURL)
	}
	for _, p := range []struct{ flag, path string }{
		{"net-config-path", c.Paths.NetConf}, {"subnet-file", c.Paths.SubnetFile}, {"state-dir", c.Paths.StateDir},
	} {
		if !filepath.IsAbs(p.path) {
			bad("--%s=%q: want an absolute path", p.flag, p.path)
		}
	}
	return errors.Join(errs...)
}

// isServer tells whether client-go makes an API server of it: a URL, or a host with or without a port.
func isServer(text string) bool {
	if !strings.Contains(text, ":/") {
		text = "https://" + text
	}
	u, err := url.Parse(text)
	return err == nil && u.Host != "" && (u.Scheme == "https" || u.Scheme == "http")
}

// LogValue is the effective config on one line. The only secret that can be set, a password in the API server's URL, is left out.
func (c Config) LogValue() slog.Value {
	var public []string
	for _, a := range c.Iface.PublicIP {
		if a.IsValid() {
			public = append(public, a.String())
		}
	}
	return slog.GroupValue(
		slog.String("node", c.Kube.NodeName), slog.String("api", kube.Redacted(c.Kube.APIURL)), slog.String("kubeconfig", c.Kube.Kubeconfig),
		slog.String("prefix", c.Kube.AnnotationPrefix),
		slog.Any("iface", c.Iface.Names), slog.Any("ifaceRegex", c.Iface.Regexes), slog.String("ifaceCanReach", c.Iface.CanReach),
		slog.String("ifaceFrom", c.Iface.From), slog.Any("publicIP", public), slog.Bool("allowShared", c.Iface.AllowShared),
		slog.Any("traffic", c.Traffic), slog.Any("policy", c.Policy), slog.Any("health", c.Health), slog.Any("paths", c.Paths),
		slog.Bool("setNetworkUnavailable", c.SetNetworkUnavailable), slog.Bool("blackholeRoute", c.BlackholeRoute),
		slog.Duration("resync", c.Resync),
	)
}
