package underlay

import (
	"errors"
	"fmt"
	"net/netip"
	"regexp"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// byText is --iface: the default route, an address, or an exact name whose state does not matter.
func byText(text string) func(view) (choice, error) {
	addr, err := netip.ParseAddr(text)
	switch {
	case text == "":
		return view.byDefault
	case err == nil:
		return func(v view) (choice, error) { return v.byAddr(addr) }
	}
	return func(v view) (choice, error) {
		for _, l := range v.links {
			if l.Name == text {
				return choice{link: l, why: "--iface names it"}, v.barred(l)
			}
		}
		if strings.Contains(text, ",") { // flannel takes the whole word for a name, and so do we
			return choice{}, fmt.Errorf("%w; for several, repeat --iface", errNoName)
		}
		return choice{}, errNoName
	}
}

var errNoName = errors.New("no interface of that name")

// names lists the devices that there are, for whoever has misspelt one; those of pods are no choice.
func (v view) names() string {
	const most = 6
	var list []string
	for _, l := range v.links {
		if l.Kind != "veth" && v.barred(l) == nil {
			list = append(list, l.Name)
		}
	}
	switch more := len(list) - most; {
	case len(list) == 0:
		return ""
	case more > 0:
		list = append(list[:most], fmt.Sprintf("and %d more", more))
	}
	return "; there are " + strings.Join(list, ", ")
}

// byAddr finds the device that carries an address. One of the other family settles the device alone.
func (v view) byAddr(addr netip.Addr) (choice, error) {
	err := fmt.Errorf("no interface has the address %s", addr)
	for _, l := range v.upFirst() {
		if !slices.ContainsFunc(v.host.Addrs, func(a kernel.HostAddr) bool {
			return a.Index == l.Index && a.Prefix.Addr() == addr && !a.Duplicate
		}) {
			continue
		}
		if barred := v.barred(l); barred != nil {
			err = barred
			continue
		}
		found := choice{link: l, why: fmt.Sprintf("it has the address %s", addr)}
		if subnet.FamilyOf(addr) == v.opt.Family {
			found.addr = addr
			if err := subnet.CheckPublicIP(v.opt.Family, addr); err != nil {
				return choice{}, mistake(err.Error())
			}
		}
		return found, nil
	}
	return choice{}, err
}

// upFirst lists the devices that are up before those that are down: kube-proxy's IPVS mode keeps Service addresses on
// a device that is down.
func (v view) upFirst() []kernel.HostLink {
	links := slices.Clone(v.links)
	slices.SortStableFunc(links, func(a, b kernel.HostLink) int {
		switch {
		case a.Up == b.Up:
			return 0
		case a.Up:
			return -1
		}
		return 1
	})
	return links
}

// byPublic is a public address without a place to look: it has to be local. Behind NAT it is not, and then only the
// operator knows the device.
func byPublic(addr netip.Addr) func(view) (choice, error) {
	return func(v view) (choice, error) {
		found, err := v.byAddr(addr)
		if err != nil {
			return choice{}, fmt.Errorf("%w (if it is the address before a NAT, name the interface with --iface)", err)
		}
		return found, nil
	}
}

func byInternalIP(v view) (choice, error) {
	if !v.opt.InternalIP.IsValid() {
		return choice{}, fmt.Errorf("the Node has no %s InternalIP", v.opt.Family)
	}
	found, err := v.byAddr(v.opt.InternalIP)
	if err != nil {
		return choice{}, err
	}
	found.why = "it has the Node's InternalIP"
	return found, nil
}

// byRegex looks at all usable addresses before it looks at names, in the order of the devices. A pattern may settle the device by
// an address of the other family, as an address does, where no pattern is for this one.
func byRegex(pattern string, settles bool) func(view) (choice, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return func(view) (choice, error) { return choice{}, mistake(err.Error()) }
	}
	return func(v view) (choice, error) {
		for _, l := range v.links {
			if v.barred(l) != nil || v.unlikely(l) != nil {
				continue
			}
			for _, a := range v.usable(l) {
				if re.MatchString(a.Prefix.Addr().String()) {
					why := fmt.Sprintf("--iface-regex=%s matches the address", pattern)
					return choice{link: l, addr: a.Prefix.Addr(), why: why}, nil
				}
			}
		}
		found, err := v.byName(re)
		if err != nil && settles {
			if other, ok := v.byOtherFamily(re); ok {
				return other, nil
			}
		}
		return found, err
	}
}

// byOtherFamily finds a device by its address of the other family, if it has one of this family too.
func (v view) byOtherFamily(re *regexp.Regexp) (choice, bool) {
	other := v
	other.opt.Family = 1 - v.opt.Family
	for _, l := range v.links {
		if v.barred(l) != nil || v.unlikely(l) != nil || len(v.usable(l)) == 0 {
			continue
		}
		for _, a := range other.usable(l) {
			if text := a.Prefix.Addr().String(); re.MatchString(text) {
				return choice{link: l, why: fmt.Sprintf("--iface-regex=%s matches its address %s", re, text)}, true
			}
		}
	}
	return choice{}, false
}

// ownPattern tells by its colons whether a regular expression is meant for addresses of this family.
func (o Options) ownPattern(pattern string) bool {
	return strings.Contains(pattern, ":") == (o.Family == subnet.IPv6)
}

func (v view) byName(re *regexp.Regexp) (choice, error) {
	err := fmt.Errorf("no interface has a matching address or name")
	for _, l := range v.links {
		if !re.MatchString(l.Name) {
			continue
		}
		refused := v.barred(l)
		if refused == nil {
			refused = v.unlikely(l)
		}
		if refused == nil && len(v.usable(l)) == 0 {
			refused = v.noAddr(l)
		}
		if refused == nil {
			return choice{link: l, why: fmt.Sprintf("--iface-regex=%s matches the name", re)}, nil
		}
		err = refused
	}
	return choice{}, err
}

// besides is the default route once the devices are there that the other family's addresses name: until then nobody knows
// whether they have an address of this one.
func besides(foreign []string) func(view) (choice, error) {
	return func(v view) (choice, error) {
		for _, text := range foreign {
			if found, err := v.settle(text); err != nil {
				return choice{}, fmt.Errorf("nothing is said of %s but %s: %w", v.opt.Family, text, err)
			} else if len(v.usable(found.link)) > 0 {
				return choice{}, fmt.Errorf("nothing is said of %s but %s", v.opt.Family, text)
			}
		}
		return v.byDefault()
	}
}

// settle is the device that an address of the other family stands for: the one that has it, or else the one towards it.
func (v view) settle(text string) (choice, error) {
	addr, err := netip.ParseAddr(text)
	if err != nil {
		return choice{}, err
	}
	if v.opt.CanReach == text {
		return v.byRoute(addr)
	}
	return v.byAddr(addr)
}

func (o Options) ownFamily(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && subnet.FamilyOf(addr) == o.Family
}

func (o Options) otherFamily(text string) bool {
	addr, err := netip.ParseAddr(text)
	return err == nil && subnet.FamilyOf(addr) != o.Family
}
