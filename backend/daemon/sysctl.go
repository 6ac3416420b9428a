package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"

	"github.com/weft-cni/weft/backend/kernel"
	"github.com/weft-cni/weft/subnet"
)

// sysctl is a switch of the host without which pod traffic is lost in a way that nobody finds. It is turned from one value to
// another; any third one is somebody's choice, and left alone.
type sysctl struct {
	path string   // below /proc/sys/net
	off  []string // what it must not be
	on   string   // what it becomes then
	cure string   // for a file that is not there
	gone bool     // it goes with its device, so that nobody has to turn it back
}

// needed lists the switches of a family. Without bridge-nf-call the answer of a Service's backend on the same node
// leaves the bridge untranslated, and the client drops it.
func needed(f subnet.Family) []sysctl {
	const module = "load the module: modprobe br_netfilter"
	return [2][]sysctl{
		{
			{path: "ipv4/ip_forward", off: []string{"0"}, on: "1", cure: "the kernel has no IPv4"},
			{path: "bridge/bridge-nf-call-iptables", off: []string{"0"}, on: "1", cure: module},
		},
		{
			{path: "ipv6/conf/all/forwarding", off: []string{"0"}, on: "1", cure: "the kernel has no IPv6"},
			{path: "bridge/bridge-nf-call-ip6tables", off: []string{"0"}, on: "1", cure: module},
		},
	}[f]
}

// forwards is forwarding of one device: somebody may have turned it off for it alone.
func forwards(f subnet.Family, device string) sysctl {
	return sysctl{path: [2]string{"ipv4", "ipv6"}[f] + "/conf/" + device + "/forwarding", off: []string{"0"}, on: "1", gone: true}
}

// hearsRouters keeps a device listening to router advertisements: 1 means "unless forwarding is on", and the host would lose its
// default route minutes after the first pod.
// https://docs.kernel.org/networking/ip-sysctl.html
func hearsRouters(device string) sysctl {
	return sysctl{path: "ipv6/conf/" + device + "/accept_ra", off: []string{"1"}, on: "2"}
}

// deafToRouters keeps a device of ours from taking a route from whatever a pod advertises. 2 is what some hosts give each new
// device.
func deafToRouters(device string) sysctl {
	return sysctl{path: "ipv6/conf/" + device + "/accept_ra", off: []string{"1", "2"}, on: "0", gone: true}
}

// loose lets a packet in by another device than the one that answers go out by: so it is while two nodes change their backend
// one after the other. The larger value of the device's and of all devices' counts, so 2 is loose whatever "all" says.
func loose(device string, ours bool) sysctl {
	return sysctl{path: "ipv4/conf/" + device + "/rp_filter", off: []string{"0", "1"}, on: "2", gone: ours}
}

// turnedPaths are the switches of devices that outlive us.
var turnedPaths = regexp.MustCompile(`^(ipv6/conf/[^/]+/accept_ra|ipv4/conf/[^/]+/rp_filter)$`)

// turned finds the switch of a path that we may have to turn back.
func turned(path string) (sysctl, bool) {
	for _, f := range subnet.Families() {
		for _, s := range needed(f) {
			if s.path == path {
				return s, true
			}
		}
	}
	if !turnedPaths.MatchString(path) || strings.Contains(path, "..") {
		return sysctl{}, false
	}
	return sysctl{path: path, off: []string{"0", "1"}, on: "2"}, true
}

// switches are the sysctls of a host, with a memory of how they were found.
type switches struct {
	dir       string // /proc/sys/net of the host
	book      sysctlBook
	unbridged bool   // pods are on no bridge, so that a host may lack br_netfilter
	pods      string // the bridge otherwise
}

func switchesOf(p Paths, files subnet.Writer) switches {
	return switches{dir: sysctlDir(p.SysNet), book: newSysctlBook(p.SysctlFile(), files), unbridged: !bridges(p.CNITemplate()), pods: bridge(p.CNITemplate())}
}

// ensure turns on what a family needs and says what it could not turn on. The routers' devices come first: with forwarding on
// they would stop hearing.
func (s switches) ensure(f subnet.Family, routers ...string) error {
	// No pod is a router for its host, which may have IPv6 while pods have not. Bridges of older plugins listen; where that cannot
	// be changed, they do not once forwarding is on.
	_ = s.turnIfThere(deafToRouters(s.pods))
	if f == subnet.IPv6 {
		if err := s.enabled(); err != nil {
			return err
		}
		for _, device := range routers {
			if err := s.turnIfThere(hearsRouters(device)); err != nil {
				return fmt.Errorf("%s has its default route from a router, or may yet get it, and hears none with forwarding on: %w", device, err)
			}
		}
	}
	var errs []error
	for _, one := range needed(f) {
		if !s.unbridged || !strings.HasPrefix(one.path, "bridge/") {
			errs = append(errs, s.turn(one))
		}
	}
	return errors.Join(errs...)
}

// heard lists the devices that were made to go on hearing routers in this boot.
func (s switches) heard() []string {
	var devices []string
	for path := range s.book.noted() {
		device, is := strings.CutSuffix(strings.TrimPrefix(path, "ipv6/conf/"), "/accept_ra")
		if is {
			devices = append(devices, device)
		}
	}
	return devices
}

// enabled tells of a host that has IPv6 switched off. Some switch it off for all devices and on for single ones afterwards: what
// "all" says then is history, for each device has a switch of its own.
func (s switches) enabled() error {
	const key = "ipv6/conf/all/disable_ipv6"
	if value, err := s.read(key); err == nil && value == "1" && !s.someDevice() {
		return fmt.Errorf("EnableIPv6 is true in net-conf.json, but IPv6 is switched off on this host; run: sysctl -w %s=0", sysctl{path: key}.key())
	}
	return nil
}

// someDevice tells whether IPv6 is on for a device that may be an underlay.
func (s switches) someDevice() bool {
	files, _ := filepath.Glob(filepath.Join(s.dir, "ipv6/conf/*/disable_ipv6")) // the pattern is good
	return slices.ContainsFunc(files, func(file string) bool {
		device := filepath.Base(filepath.Dir(file))
		if slices.Contains([]string{"all", "default", "lo", "cni0"}, device) || kernel.IsDeviceName(device) {
			return false
		}
		value, err := s.read("ipv6/conf/" + device + "/disable_ipv6")
		return err == nil && value == "0"
	})
}

// forwardsOff tells whether a family's packets are not forwarded yet.
func (s switches) forwardsOff(f subnet.Family) bool {
	value, err := s.read(needed(f)[0].path)
	return err == nil && value == "0"
}

func (s switches) read(path string) (string, error) {
	value, err := os.ReadFile(filepath.Join(s.dir, path))
	return strings.TrimSpace(string(value)), err
}

// turnIfThere turns a device's switch. A device that is not there needs none.
func (s switches) turnIfThere(one sysctl) error {
	if _, err := os.Stat(filepath.Join(s.dir, one.path)); err != nil {
		return nil
	}
	return s.turn(one)
}

func (s switches) turn(one sysctl) error {
	value, err := s.read(one.path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing; %s", one.key(), one.cure)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", one.key(), err)
	}
	// forwarding has more values than one (ip6 accepts 2); only 0 is off.
	if !slices.Contains(one.off, value) {
		return nil
	}
	// The note comes first: a switch that was turned and not noted could never be turned back. A disk that takes no note is
	// no reason for a node without a network, and is complained of elsewhere.
	if !one.gone {
		_ = s.book.note(one.path, value)
	}
	if err := os.WriteFile(filepath.Join(s.dir, one.path), []byte(one.on), 0o644); err != nil {
		return fmt.Errorf("%s is %s and cannot be set here; run: sysctl -w %s=%s", one.key(), value, one.key(), one.on)
	}
	return nil
}

// restoreAll turns back whatever is in the book.
func (s switches) restoreAll() ([]string, error) {
	return s.restore(slices.Sorted(maps.Keys(s.book.noted()))...)
}

// restore turns back what was turned in this boot and nobody has changed since. It returns what it turned.
func (s switches) restore(paths ...string) ([]string, error) {
	var back []string
	var errs []error
	noted := s.book.noted()
	for _, path := range paths {
		one, _ := turned(path) // which is what the book is made of
		was := noted[path]
		value, err := s.read(path)
		if errors.Is(err, fs.ErrNotExist) || err == nil && value != one.on {
			_ = s.book.forget(path) // the module or the device is gone, or somebody has decided otherwise
			continue
		}
		if err == nil {
			err = os.WriteFile(filepath.Join(s.dir, path), []byte(was), 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("put %s back to %s: %w", one.key(), was, err))
			continue
		}
		back = append(back, one.key()+"="+was)
		_ = s.book.forget(path) // one that stays is passed over next time, by its value
	}
	return back, errors.Join(errs...)
}

// key is the name that sysctl(8) uses: a dot in a device's name is written as a slash there.
func (s sysctl) key() string { return "net." + strings.NewReplacer("/", ".", ".", "/").Replace(s.path) }

// sysctlDir finds the host's /proc/sys/net: the manifest mounts it writable, a plain process has its own.
func sysctlDir(configured string) string {
	const mounted = "/host/proc/sys/net"
	if configured != "" {
		return configured
	}
	if _, err := os.Stat(mounted); err == nil {
		return mounted
	}
	return "/proc/sys/net"
}
