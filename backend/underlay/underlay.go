// Package underlay chooses the network device and the address that carry the tunnels, from values alone: the options
// of the operator and a dump of the host. The same inputs always give the same choice, with the reason for it, so
// the daemon can choose again after every change of the host, and the doctor can explain what the daemon did.
package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"strings"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
	"github.com/weft-cni/weft/subnet/claim"
)

// ErrNotYet means that nothing on the host matches the options now. A device or an address that comes later can
// change that: wait for the host to change and pick again. While nodes run, keep what was picked before.
var ErrNotYet = errors.New("waiting for the host to have one")

// ErrOptions means that the options cannot match on any host. Waiting does not help.
var ErrOptions = errors.New("the options need a change")

// FromInternalIP is the value of Options.From that follows the Node's InternalIP.
const FromInternalIP = "internal-ip"

// Options are what decides the choice. The three lists of places to look (Iface, IfaceRegex, CanReach) are tried in
// this order; without any of them the public address decides, then From, then the default route.
type Options struct {
	Family     subnet.Family
	Iface      []string // --iface: a name or an address; empty text is the default route
	IfaceRegex []string // --iface-regex: matched against addresses, then against names
	CanReach   string   // --iface-can-reach: the way to this address
	From       string   // --iface-from: "" or FromInternalIP

	PublicIP     netip.Addr // --public-ip: announced, and a place to look when there is no other
	NodePublicIP netip.Addr // the node-public-ip annotation, in place of PublicIP
	Overwrite    netip.Addr // the public-ip-overwrite annotation: announced, and nothing else
	InternalIP   netip.Addr // the Node's InternalIP
	Announced    netip.Addr // what our Node announces already: kept when it is as good as another address

	PodNetworks []netip.Prefix // an address in one of these belongs to a pod or a bridge of pods
}

// Underlay is the choice.
type Underlay struct {
	Link      string
	Index     int
	MTU       int
	Addr      netip.Addr // the tunnel's local address; always on the device
	Public    netip.Addr // Addr, or the public address of the options: where other nodes reach us
	Announced netip.Addr // Public, or the overwrite: what the Node's public-ip annotation says
	Source    string     // the flag or the annotation that says what is announced; "" for Addr
	Reason    string     // the choice and why, one line for the log
	Warnings  []string   // what may make the choice wrong, one line each
}

// Pick chooses. Its error names each candidate with the reason against it, on one line, and wraps ErrNotYet or
// ErrOptions.
func Pick(opt Options, host kernel.Host) (Underlay, error) {
	if opt.From != "" && opt.From != FromInternalIP {
		return Underlay{}, fmt.Errorf("pick the %s underlay: --iface-from=%s: want %q or nothing: %w",
			opt.Family, opt.From, FromInternalIP, ErrOptions)
	}
	if public, source := opt.public(); public.IsValid() && subnet.CheckPublicIP(opt.Family, public) != nil {
		return Underlay{}, fmt.Errorf("pick the %s underlay: %s: %w: %w", opt.Family, source, subnet.CheckPublicIP(opt.Family, public), ErrOptions)
	}
	var against []string
	there := ""
	sentinel := ErrOptions
	v := newView(opt, host)
	for _, c := range candidates(opt) {
		found, err := v.resolve(c)
		if err == nil {
			return v.underlay(found, against), nil
		}
		against = append(against, fmt.Sprintf("%s: %v", c.name, err))
		if !errors.As(err, new(mistake)) {
			sentinel = ErrNotYet
		}
		if errors.Is(err, errNoName) {
			there = v.names()
		}
	}
	if host.Rules > 0 {
		against = append(against, v.rulesWarning())
	}
	return Underlay{}, fmt.Errorf("pick the %s underlay: %s%s: %w", opt.Family, strings.Join(against, "; "), there, sentinel)
}

// choice is a device, the address on it, and why.
type choice struct {
	link kernel.HostLink
	addr netip.Addr // invalid until the address is chosen by rank
	way  *way       // the route that led to the device, if one did
	why  string
}

// mistake is an error of the options: no host would make it good.
type mistake string

func (m mistake) Error() string { return string(m) }

// underlay writes a choice down. against is what was said against the candidates before it.
func (v view) underlay(c choice, against []string) Underlay {
	u := Underlay{Link: c.link.Name, Index: c.link.Index, MTU: c.link.MTU, Addr: c.addr, Public: c.addr}
	external := fmt.Sprintf("Defaulting external address to interface address (%s)", c.addr)
	if public, source := v.opt.public(); public.IsValid() {
		u.Public, u.Source = public, source
		external = fmt.Sprintf("Using %s as external address (%s)", public, strings.TrimPrefix(source, annotation))
	}
	u.Announced = u.Public
	if over := v.opt.Overwrite; over.IsValid() && subnet.FamilyOf(over) == v.opt.Family {
		key := claim.KeysOf(v.opt.Family).Overwrite
		u.Announced, u.Source = over, annotation+key
		external += fmt.Sprintf(", announcing %s instead (%s)", over, key)
	}
	u.Reason = fmt.Sprintf("Using interface with name %s and address %s (%s; MTU %d). %s",
		u.Link, u.Addr, c.why, u.MTU, external)
	if len(against) > 0 {
		u.Reason += ". Passed over: " + strings.Join(against, "; ")
	}
	if v.host.Rules > 0 {
		u.Warnings = append(u.Warnings, v.rulesWarning())
	}
	return u
}

// rulesWarning: only the main table is looked at, which is the whole truth as long as nobody adds rules.
func (v view) rulesWarning() string {
	return fmt.Sprintf("%d ip rules beyond the usual three: routes outside the main table are not looked at "+
		"(see ip rule; --iface settles the choice)", v.host.Rules)
}

// annotation begins what is said of a value that comes from the Node.
const annotation = "the Node's annotation "

// public is the public address of the options and where it comes from. The annotation replaces the flag.
func (o Options) public() (netip.Addr, string) {
	for _, p := range []struct {
		addr   netip.Addr
		source string
	}{{o.NodePublicIP, annotation + claim.KeysOf(o.Family).NodePublicIP}, {o.PublicIP, "--" + claim.KeysOf(o.Family).PublicIP}} {
		if p.addr.IsValid() && subnet.FamilyOf(p.addr) == o.Family {
			return p.addr, p.source
		}
	}
	return netip.Addr{}, ""
}
