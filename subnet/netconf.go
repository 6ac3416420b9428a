package subnet

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"
	"time"
)

// NetConfFile is the name under which net-conf.json is spoken of in errors and warnings.
const NetConfFile = "net-conf.json"

// Sentinels of the checks of the own Node: each tells the caller to wait, because somebody else has to act first.
var (
	ErrNoNode         = errors.New("node object is not there yet")
	ErrNoPodCIDR      = errors.New("pod cidr not assigned")
	ErrOutsideNetwork = errors.New("pod cidr is outside the configured network")
	ErrAddressTaken   = errors.New("address announced twice") // by us, if we did
)

// Backend is the Backend object of net-conf.json.
type Backend struct {
	Type          string // VXLAN, HostGW, WireGuard, IPIP or Alloc
	VNI           uint32 // 0 to 16777215; 1 when the file does not say, also for other backends
	Port          uint16 // UDP port of VXLAN; 0 when the file does not say
	MTU           int    // of the underlay; 0 when the file does not say
	GBP           bool
	Learning      bool
	TxChecksum    Offload // who computes the checksums of inner packets; VXLAN
	DirectRouting bool    // peers on the same link are reached by plain routes; VXLAN and IPIP
	WireGuard     WireGuardConf
}

// Offload says who computes checksums: the network card, or the kernel before the card sees the packet.
type Offload uint8

// The choices of TxChecksumOffload. Auto leaves it to the card unless the kernel or the card is known to get it wrong.
const (
	OffloadAuto Offload = iota
	OffloadOn
	OffloadOff
)

// String is the word in net-conf.json.
func (o Offload) String() string { return [...]string{"auto", "on", "off"}[o] }

// WireGuardConf is what net-conf.json says of WireGuard, after defaults. It is zero for other backends.
type WireGuardConf struct {
	Ports     [2]uint16 // ListenPort and ListenPortV6: 51820 and 51821 unless the file says otherwise; the second one in Mode separate only
	PSK       Secret
	Keepalive time.Duration // 0 is off
	Mode      string        // ModeSeparate, ModeAuto, ModeIPv4 or ModeIPv6
}

// The modes of WireGuard: a device per family of pods, or one for both over tunnels of the better, or of a certain, family.
const (
	ModeSeparate = "separate"
	ModeAuto     = "auto"
	ModeIPv4     = "ipv4"
	ModeIPv6     = "ipv6"
)

// NetConf is net-conf.json after defaults and checks. It is comparable.
type NetConf struct {
	Networks       [2]netip.Prefix // masked; valid exactly for the families that are enabled
	Enabled        [2]bool
	EnableNFTables bool // accepted for drop-in; changes nothing
	Backend        Backend
}

// Warning is something in net-conf.json that has no effect, or not the one that its author may expect.
type Warning struct {
	Place string // "Backend.Port"
	Text  string
}

// String is one line for the log.
func (w Warning) String() string { return NetConfFile + ": " + w.Place + ": " + w.Text }

// ParseNetConf reads net-conf.json in one pass and returns every problem in one joined error, a line each that names
// the value, its place and the cure. Keys match without regard to case and the last of equal keys counts, as in
// flannel; what the file leaves out has flannel's default, except that an absent Backend means vxlan and not udp.
func ParseNetConf(data []byte) (NetConf, []Warning, error) {
	r := &confReader{}
	conf := NetConf{Enabled: [2]bool{IPv4: true}, Backend: Backend{Type: VXLAN, VNI: 1}}
	hasBackend := false
	r.document(data, []confKey{
		{"EnableIPv4", boolean(&conf.Enabled[IPv4])},
		{"EnableIPv6", boolean(&conf.Enabled[IPv6])},
		{"EnableNFTables", boolean(&conf.EnableNFTables)},
		{"Network", network(IPv4, &conf.Networks[IPv4])},
		{"IPv6Network", network(IPv6, &conf.Networks[IPv6])},
		{"SubnetLen", r.noEffect("SubnetLen", number(0, 32, new(int)))},
		{"SubnetMin", r.noEffect("SubnetMin", address(IPv4))},
		{"SubnetMax", r.noEffect("SubnetMax", address(IPv4))},
		{"IPv6SubnetLen", r.noEffect("IPv6SubnetLen", number(0, 128, new(int)))},
		{"IPv6SubnetMin", r.noEffect("IPv6SubnetMin", address(IPv6))},
		{"IPv6SubnetMax", r.noEffect("IPv6SubnetMax", address(IPv6))},
		{"Backend", func(raw string) error { hasBackend = true; return r.backend(raw, &conf.Backend) }},
	})
	if !hasBackend {
		r.warn("Backend", `is absent: vxlan is used, where flannel would use udp; write "Backend": {"Type": "vxlan"}`)
	}
	r.families(&conf)
	if err := errors.Join(r.errs...); err != nil {
		return NetConf{}, r.warnings, err
	}
	return conf, r.warnings, nil
}

// families checks what no single key can tell: which families are on, and that each has a network and room in the MTU.
func (r *confReader) families(conf *NetConf) {
	if r.unreadable {
		return // then a missing Network is no problem of its own
	}
	if conf.Enabled == [2]bool{} {
		r.fail("EnableIPv4", "both EnableIPv4 and EnableIPv6 are false: set one of them to true")
	}
	for _, f := range Families() {
		key, enable := networkKeys(f)
		switch {
		case conf.Enabled[f] && !conf.Networks[f].IsValid():
			r.missing(key, fmt.Sprintf("is missing: set it to the %v range that the cluster gives its pods from "+
				"(kubeadm: --pod-network-cidr, controller-manager: --cluster-cidr), or set %s to false", f, enable))
		case conf.Enabled[f] && conf.Networks[f].Bits() == 0:
			r.fail(key, fmt.Sprintf("%q is the whole address space: name the range that pods get their addresses from", conf.Networks[f]))
		case !conf.Enabled[f] && conf.Networks[f].IsValid():
			if conf.Networks[f].Bits() > 0 { // else it is flannel's word for none
				r.warn(key, fmt.Sprintf("has no effect while %s is false", enable))
			}
			conf.Networks[f] = netip.Prefix{}
		}
	}
	least := minIPv6MTU + Overhead(conf.Backend.Type, IPv6)
	if mtu := conf.Backend.MTU; conf.Enabled[IPv6] && mtu != 0 && mtu < least {
		r.fail("Backend.MTU", fmt.Sprintf("%d leaves IPv6 pods less than the %d bytes that IPv6 needs: use at least %d", mtu, minIPv6MTU, least))
	}
	for _, f := range Families() {
		device := fmt.Sprintf("%s%d", [2]string{"flannel.", "flannel-v6."}[f], conf.Backend.VNI)
		if conf.Enabled[f] && conf.Backend.Type == VXLAN && len(device) > maxIfName {
			most := strings.Repeat("9", maxIfName-len(device)+len(fmt.Sprint(conf.Backend.VNI)))
			r.missing("Backend.VNI", fmt.Sprintf("%d makes a device of the name %s, which is longer than the %d letters that Linux allows: use 0 to %s",
				conf.Backend.VNI, device, maxIfName, most))
		}
	}
	r.wireGuard(conf)
}

func networkKeys(f Family) (network, enable string) {
	return [2]string{"Network", "IPv6Network"}[f], [2]string{"EnableIPv4", "EnableIPv6"}[f]
}

// CheckSelf tells why the own Node cannot take part yet, or nil. A family that the Node has no range of is no error
// as long as another one works, and neither is one whose range cannot be used: CheckFamily tells of that. The errors wrap
// ErrNoNode, ErrNoPodCIDR or ErrOutsideNetwork.
func (c NetConf) CheckSelf(self Self) error {
	if !self.Exists {
		return fmt.Errorf("node %q: %w: waiting for the kubelet to register it (is NODE_NAME right?)", self.Name, ErrNoNode)
	}
	var errs []error
	usable := false
	for _, f := range Families() {
		cidr := self.PodCIDRs[f]
		if !c.Enabled[f] || !cidr.IsValid() {
			continue
		}
		if err := c.CheckFamily(f, self); err != nil {
			errs = append(errs, err)
			continue
		}
		usable = true
	}
	switch {
	case usable:
		return nil
	case len(errs) > 0:
		return errors.Join(errs...)
	}
	return fmt.Errorf("node %q %w: does the controller-manager run with --allocate-node-cidrs and --cluster-cidr "+
		"(kubeadm: --pod-network-cidr), and has that range any room left?", self.Name, ErrNoPodCIDR)
}

// CheckFamily tells what is wrong with the own Node's range of one family: it has to lie in the network that net-conf.json
// has for it. The other family works without it.
func (c NetConf) CheckFamily(f Family, self Self) error {
	if cidr := self.PodCIDRs[f]; c.Enabled[f] && cidr.IsValid() && !Contains(c.Networks[f], cidr) {
		key, _ := networkKeys(f)
		return fmt.Errorf("subnet %q specified in the flannel net config doesn't contain %q PodCIDR of the %q node: %w: make %s of net-conf.json "+
			"the range of the controller-manager's --cluster-cidr, or delete the Node, so that it gets another one",
			c.Networks[f], cidr, self.Name, ErrOutsideNetwork, key)
	}
	return nil
}

// Contains reports whether inner lies inside outer; false when either is not set or their families differ.
func Contains(outer, inner netip.Prefix) bool {
	return outer.IsValid() && inner.IsValid() && outer.Bits() <= inner.Bits() && outer.Contains(inner.Addr())
}
