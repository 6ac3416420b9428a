package daemon

import (
	"context"
	"errors"
	"path/filepath"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/backend/mesh"
	"github.com/weft-cni/weft/subnet"
)

// sysctls is the round of the host's switches. What only one family of two lacks does not keep the node from having the other.
func (d *daemon) sysctls(ctx context.Context) error {
	conf := d.conf.load()
	if conf == nil {
		return errWaitingConf
	}
	s := switchesOf(d.cfg.Paths, d.files)
	var errs [2]error
	works := false
	for _, f := range subnet.Families() {
		if !conf.Enabled[f] {
			continue
		}
		routers, err := d.routers(ctx, s, f)
		if err == nil {
			err = s.ensure(f, routers...)
		}
		errs[f] = errors.Join(err, s.enableDevices(f), d.deviceSwitches(s, f))
		works = works || errs[f] == nil
	}
	all := errors.Join(errs[:]...)
	if !works {
		d.board.set(partFamilySwitch, nil)
		return all
	}
	d.board.set(partFamilySwitch, all)
	return nil
}

// routers are the devices that have their IPv6 default route from a router, or had it: one that is taken out and put in again
// would hear none otherwise, for forwarding is on by then. Before forwarding is switched on the host is read
// for them; later the data plane has seen it.
func (d *daemon) routers(ctx context.Context, s switches, f subnet.Family) ([]string, error) {
	switch {
	case f != subnet.IPv6:
		return nil, nil
	case s.forwardsOff(f):
		host, err := d.plane.kernel.Host(ctx)
		return d.outside(append(routersOf(host), listening(host)...)), err
	}
	routers := s.heard()
	if seen := d.plane.routers.Load(); seen != nil {
		routers = append(routers, *seen...)
	}
	return d.outside(routers), nil
}

// outside leaves out what pods may be the routers of, and names each device once.
func (d *daemon) outside(devices []string) []string {
	pods := bridge(d.cfg.Paths.CNITemplate())
	slices.Sort(devices)
	return slices.DeleteFunc(slices.Compact(devices), func(name string) bool { return name == pods || kernel.IsDeviceName(name) })
}

// routersOf finds the devices that need to hear a router again: those with a route that was learned from one, and those with an
// address that ends unless the next advertisement renews it, whoever has set the default route.
func routersOf(host kernel.Host) []string {
	var names []string
	for _, l := range host.Links {
		learned := func(r kernel.HostRoute) bool {
			return r.RA && slices.ContainsFunc(r.Hops, func(h kernel.Hop) bool { return h.Index == l.Index })
		}
		renewed := func(a kernel.HostAddr) bool {
			return a.Index == l.Index && a.Prefix.Addr().Is6() && !a.LinkLocal && !a.Permanent
		}
		if slices.ContainsFunc(host.Routes, learned) || slices.ContainsFunc(host.Addrs, renewed) {
			names = append(names, l.Name)
		}
	}
	return names
}

// listening are the devices by which a default route may yet come, for a host that has none: an agent that starts with the host
// is faster than its routers, and a service of the node does.
func listening(host kernel.Host) []string {
	var names []string
	for _, r := range host.Routes {
		if r.Dst.Bits() == 0 && r.Dst.Addr().Is6() {
			return nil // somebody has set one
		}
	}
	for _, l := range host.Links {
		if l.Up && !l.Loopback && l.Master == 0 && l.Kind != "bridge" && !kernel.IsDeviceName(l.Name) {
			names = append(names, l.Name)
		}
	}
	return names
}

// deviceSwitches sets the switches of single devices: those that pods' packets come in by forward, ours listen to no router,
// and let in what a peer sends by another way than we answer by.
func (d *daemon) deviceSwitches(s switches, f subnet.Family) error {
	a := d.plane.applied.Load()
	if a == nil {
		return nil // none is known before the first round of the data plane
	}
	var errs []error
	turn := func(one sysctl) { errs = append(errs, s.turnIfThere(one)) }
	turn(forwards(f, bridge(d.cfg.Paths.CNITemplate())))
	for _, device := range a.Plan.Devices {
		turn(forwards(f, device))
		if f == subnet.IPv6 {
			errs = append(errs, s.deafen(device))
		} else {
			errs = append(errs, s.loosen(device, a.Plan))
		}
	}
	if a.uses(f) {
		turn(forwards(f, a.Underlay[f].Link))
	}
	if f == subnet.IPv4 { // IPv6 has no such filter
		errs = append(errs, s.filter(a.Plan.Plain))
		d.heard.seenTo(a)
	}
	return errors.Join(errs...)
}

// enableDevices has our devices for IPv6, which all begin with flannel-, take addresses, whatever the host does by default: where default.disable_ipv6 is 1 none of
// their addresses could be set, and so no round of the data plane would ever be good.
func (s switches) enableDevices(f subnet.Family) error {
	if f != subnet.IPv6 {
		return nil
	}
	files, _ := filepath.Glob(filepath.Join(s.dir, "ipv6/conf/flannel-*/disable_ipv6")) // the pattern is good
	var errs []error
	for _, file := range files {
		if device := filepath.Base(filepath.Dir(file)); kernel.IsDeviceName(device) {
			errs = append(errs, s.turnIfThere(sysctl{path: "ipv6/conf/" + device + "/disable_ipv6", off: []string{"1"}, on: "0", gone: true}))
		}
	}
	return errors.Join(errs...)
}

// deafen keeps a device of ours from hearing routers. Where nothing can be set, as under flannel's manifest, forwarding does
// as much: a device that forwards hears none while the switch is at 1.
func (s switches) deafen(device string) error {
	err := s.turnIfThere(deafToRouters(device))
	if forwarding, _ := s.read(forwards(subnet.IPv6, device).path); forwarding == "1" {
		return nil
	}
	return err
}

// loosen lets in what a peer sends by another way than we answer by. Where nothing can be set, as under flannel's manifest on a
// host whose rp_filter is 1, that matters only while there is another way.
func (s switches) loosen(device string, plan mesh.Result) error {
	if !s.strict(device) {
		return nil
	}
	err := s.turnIfThere(loose(device, true))
	if plan.Also == 0 && len(plan.Plain) == 0 {
		return nil
	}
	return err
}

// filter makes the reverse path filter of some devices loose: of the underlay's while a peer may send plain packets that we
// answer through a tunnel. One that was strict is so again when it is not among them any more.
func (s switches) filter(plain []string) error {
	var errs []error
	for _, device := range plain {
		if s.strict(device) {
			errs = append(errs, s.turnIfThere(loose(device, false)))
		}
	}
	for path := range s.book.noted() {
		device, is := strings.CutSuffix(strings.TrimPrefix(path, "ipv4/conf/"), "/rp_filter")
		if is && !slices.Contains(plain, device) {
			_, err := s.restore(path)
			errs = append(errs, err)
		}
	}
	return errors.Join(errs...)
}

// strict tells whether a device drops what it would not answer by itself.
func (s switches) strict(device string) bool {
	own, err := s.read(loose(device, true).path)
	all, _ := s.read(loose("all", true).path)
	return err == nil && own != "2" && all != "2" && (own == "1" || all == "1")
}
