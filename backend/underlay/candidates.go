package underlay

import (
	"cmp"
	"fmt"
	"net/netip"
	"regexp"
	"slices"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// candidate is one place to look, as the operator wrote it.
type candidate struct {
	name string
	find func(v view) (choice, error)
}

// candidates lists the places to look, in order.
func candidates(opt Options) []candidate {
	var list []candidate
	for _, text := range opt.Iface {
		list = append(list, candidate{"--iface=" + text, byText(text)})
	}
	for _, pattern := range opt.IfaceRegex {
		list = append(list, candidate{"--iface-regex=" + pattern, byRegex(pattern)})
	}
	if opt.CanReach != "" {
		list = append(list, candidate{"--iface-can-reach=" + opt.CanReach, byTarget(opt.CanReach)})
	}
	if len(list) > 0 {
		return list
	}
	if public, source := opt.public(); public.IsValid() {
		return []candidate{{fmt.Sprintf("%s %s", source, public), byPublic(public)}}
	}
	if opt.From == FromInternalIP {
		return []candidate{{"--iface-from=" + FromInternalIP, byInternalIP}}
	}
	return []candidate{{"default route", view.byDefault}}
}

// view is the host as seen with the options.
type view struct {
	opt   Options
	host  kernel.Host
	links []kernel.HostLink // by index, as "first interface" means the lowest index
}

func newView(opt Options, host kernel.Host) view {
	links := slices.Clone(host.Links)
	slices.SortStableFunc(links, func(a, b kernel.HostLink) int { return cmp.Compare(a.Index, b.Index) })
	return view{opt: opt, host: host, links: links}
}

// resolve finds a candidate's device, and ranks the addresses on it unless the candidate named one.
func (v view) resolve(c candidate) (choice, error) {
	found, err := c.find(v)
	if err != nil {
		return choice{}, err
	}
	if found.link.MTU <= 0 {
		return choice{}, fmt.Errorf("%s has no MTU", found.link.Name)
	}
	if found.addr.IsValid() {
		return found, v.refusedAddr(found)
	}
	if found.way == nil {
		found.way = v.defaultWay(found.link.Index)
	}
	addr, why, err := v.bestAddr(found.link, *found.way)
	if err != nil {
		return choice{}, err
	}
	found.addr = addr
	found.why += "; " + why
	return found, nil
}

func (v view) refusedAddr(c choice) error {
	if n, ok := v.podNetwork(c.addr); ok {
		return fmt.Errorf("address %s of %s lies in the pod network %s", c.addr, c.link.Name, n)
	}
	return nil
}

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
		return choice{}, fmt.Errorf("no interface of that name")
	}
}

// byAddr finds the device that carries an address. One of the other family settles the device alone.
func (v view) byAddr(addr netip.Addr) (choice, error) {
	err := fmt.Errorf("no interface has the address %s", addr)
	for _, l := range v.upFirst() {
		if !slices.ContainsFunc(v.host.Addrs, func(a kernel.HostAddr) bool {
			return a.Index == l.Index && a.Prefix.Addr() == addr
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

// byRegex looks at all usable addresses before it looks at names, in the order of the devices.
func byRegex(pattern string) func(view) (choice, error) {
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
		return v.byName(re)
	}
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
