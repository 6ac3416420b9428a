package daemon

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"strings"

	"github.com/weft-cni/weft/subnet"
)

// sysctl is a switch of the host without which pod traffic is lost in a way that nobody finds.
type sysctl struct {
	path   string // below /proc/sys/net
	cure   string // for a file that is not there
	device bool   // it goes with its device, so that nobody has to turn it back
}

// needed lists the switches of a family. Without bridge-nf-call the answer of a Service's backend on the same node
// leaves the bridge untranslated, and the client drops it.
func needed(f subnet.Family) []sysctl {
	const module = "load the module: modprobe br_netfilter"
	return [2][]sysctl{
		{{path: "ipv4/ip_forward", cure: "the kernel has no IPv4"}, {path: "bridge/bridge-nf-call-iptables", cure: module}},
		{{path: "ipv6/conf/all/forwarding", cure: "the kernel has no IPv6"}, {path: "bridge/bridge-nf-call-ip6tables", cure: module}},
	}[f]
}

// switches are the sysctls of a host, with a memory of how they were found.
type switches struct {
	dir  string // /proc/sys/net of the host
	book sysctlBook
}

func switchesOf(p Paths, files subnet.Writer) switches {
	return switches{dir: sysctlDir(p.SysNet), book: newSysctlBook(p.SysctlFile(), files)}
}

// ensure turns on what the enabled families need and says what it could not turn on.
func (s switches) ensure(enabled [2]bool) error {
	var errs []error
	for _, f := range subnet.Families() {
		if !enabled[f] {
			continue
		}
		for _, one := range needed(f) {
			errs = append(errs, s.turnOn(one))
		}
	}
	return errors.Join(errs...)
}

// ensureDevices turns forwarding on for the devices that pods' packets come in by: somebody may have turned it off for one of
// them alone. A device that is not there needs none.
func (s switches) ensureDevices(enabled [2]bool, devices ...string) error {
	var errs []error
	for _, f := range subnet.Families() {
		for _, device := range devices {
			one := sysctl{path: [2]string{"ipv4", "ipv6"}[f] + "/conf/" + device + "/forwarding", device: true}
			if _, err := os.Stat(filepath.Join(s.dir, one.path)); enabled[f] && device != "" && err == nil {
				errs = append(errs, s.turnOn(one))
			}
		}
	}
	return errors.Join(errs...)
}

func (s switches) turnOn(one sysctl) error {
	path := filepath.Join(s.dir, one.path)
	value, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing; %s", one.key(), one.cure)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", one.key(), err)
	}
	// forwarding has more values than one (ip6 accepts 2); only 0 is off.
	if strings.TrimSpace(string(value)) != "0" {
		return nil
	}
	// The note comes first: a switch that was turned and not noted could never be turned back. A disk that takes no note is
	// no reason for a node without a network, and is complained of elsewhere.
	if !one.device {
		_ = s.book.note(one.path)
	}
	if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("%s is 0 and cannot be set here; run: sysctl -w %s=1", one.key(), one.key())
	}
	return nil
}

// restore turns off again what ensure turned on in this boot and nobody has changed since. It returns what it turned off.
func (s switches) restore() ([]string, error) {
	var off []string
	var errs []error
	for _, path := range s.book.noted() {
		one := sysctl{path: path}
		file := filepath.Join(s.dir, path)
		value, err := os.ReadFile(file)
		if errors.Is(err, fs.ErrNotExist) || err == nil && strings.TrimSpace(string(value)) != "1" {
			continue // the module is gone, or somebody has decided otherwise
		}
		if err == nil {
			err = os.WriteFile(file, []byte("0"), 0o644)
		}
		if err != nil {
			errs = append(errs, fmt.Errorf("put %s back to 0: %w", one.key(), err))
			continue
		}
		off = append(off, one.key()+"=0")
	}
	return off, errors.Join(errs...)
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
