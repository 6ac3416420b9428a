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
	path string // below /proc/sys/net
	cure string // for a file that is not there
}

// needed lists the switches of a family. Without bridge-nf-call the answer of a Service's backend on the same node
// leaves the bridge untranslated, and the client drops it.
func needed(f subnet.Family) []sysctl {
	const module = "load the module: modprobe br_netfilter"
	return [2][]sysctl{
		{{"ipv4/ip_forward", "the kernel has no IPv4"}, {"bridge/bridge-nf-call-iptables", module}},
		{{"ipv6/conf/all/forwarding", "the kernel has no IPv6"}, {"bridge/bridge-nf-call-ip6tables", module}},
	}[f]
}

// ensureSysctls turns on what the enabled families need and says what it could not turn on.
func ensureSysctls(dir string, enabled [2]bool) error {
	var errs []error
	for _, f := range subnet.Families() {
		if !enabled[f] {
			continue
		}
		for _, s := range needed(f) {
			errs = append(errs, s.ensure(dir))
		}
	}
	return errors.Join(errs...)
}

func (s sysctl) ensure(dir string) error {
	path := filepath.Join(dir, s.path)
	value, err := os.ReadFile(path)
	if errors.Is(err, fs.ErrNotExist) {
		return fmt.Errorf("%s is missing; %s", s.key(), s.cure)
	}
	if err != nil {
		return fmt.Errorf("read %s: %w", s.key(), err)
	}
	// forwarding has more values than one (ip6 accepts 2); only 0 is off.
	if strings.TrimSpace(string(value)) != "0" {
		return nil
	}
	if err := os.WriteFile(path, []byte("1"), 0o644); err != nil {
		return fmt.Errorf("%s is 0 and cannot be set here; run: sysctl -w %s=1", s.key(), s.key())
	}
	return nil
}

// key is the name that sysctl(8) uses.
func (s sysctl) key() string { return "net." + strings.ReplaceAll(s.path, "/", ".") }

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
