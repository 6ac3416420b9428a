package underlay

import (
	"cmp"
	"fmt"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/kernel"
)

// candidate is one place to look, as the operator wrote it.
type candidate struct {
	name string
	find func(v view) (choice, error)
}

// candidates lists the places to look, in order. In dual-stack the options are one list for both families: an address settles
// the device for the other family too (I-12), unless there is one of that family as well; and where such a device has no address
// of the other family, nothing was said about that family, and it goes by its default route.
func candidates(opt Options) []candidate {
	var list []candidate
	var foreign []string
	for _, text := range opt.Iface {
		if opt.otherFamily(text) {
			if slices.ContainsFunc(opt.Iface, opt.ownFamily) {
				continue
			}
			foreign = append(foreign, text)
		}
		list = append(list, candidate{"--iface=" + text, byText(text)})
	}
	settles := !slices.ContainsFunc(opt.IfaceRegex, opt.ownPattern)
	for _, pattern := range opt.IfaceRegex {
		list = append(list, candidate{"--iface-regex=" + pattern, byRegex(pattern, settles)})
	}
	if opt.CanReach != "" {
		if opt.otherFamily(opt.CanReach) {
			foreign = append(foreign, opt.CanReach)
		}
		list = append(list, candidate{"--iface-can-reach=" + opt.CanReach, byTarget(opt.CanReach)})
	}
	if len(list) > len(foreign) {
		return list
	}
	if len(list) > 0 {
		return append(list, candidate{"default route", besides(foreign)})
	}
	if public, source := opt.public(); public.IsValid() {
		list = append(list, candidate{fmt.Sprintf("%s %s", strings.TrimPrefix(source, annotation), public), byPublic(public)})
	}
	if opt.From == FromInternalIP { // after a public address that is before a NAT, too
		list = append(list, candidate{"--iface-from=" + FromInternalIP, byInternalIP})
	}
	if len(list) > 0 {
		return list
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
